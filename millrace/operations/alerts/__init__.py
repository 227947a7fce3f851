"""Alerts: one message when something is wrong, and one when it is over."""
