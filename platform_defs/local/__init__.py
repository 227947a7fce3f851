"""The local platform: what `millrace up` starts, watches and ends on one machine."""
