"""The metrics of an event store for monitoring."""
