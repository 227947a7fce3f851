"""Helpers for tests of a running `millrace up`."""
