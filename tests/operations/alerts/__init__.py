"""Alerts: from what is wrong to a receiver that verifies who told it."""
