"""Metrics of a deployment, for Prometheus and compatible collectors."""
