"""Metrics of a deployment, as Prometheus and those who speak its language collect them."""
