"""Protocols as small models, whose states are all looked at."""
