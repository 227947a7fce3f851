"""Helpers for tests of docs/incidents.md."""
