"""Alerts: from a fault to a receiver that verifies the sender."""
