"""Alerts of what Dagster knows, and beside the sequencer."""
