"""Helpers for tests that build with Spark: read models, drains, places where Spark runs."""
