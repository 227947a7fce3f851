"""The local platform: the services that `millrace up` starts, watches and ends on one machine."""
