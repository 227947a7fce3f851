"""The metrics that monitoring scrapes."""
