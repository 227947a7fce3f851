"""Commands: deciders, and handling what they decide on."""
