"""Helpers for tests of change capture."""
