"""Spark on the event store: reading the log, following it, building read models from it."""
