"""Rounds: many views consumed by one process, one read of the log, and one Spark plan that never changes."""
