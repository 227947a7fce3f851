"""Functions that are called for events: one's own consumers."""
