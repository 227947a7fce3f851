"""Helpers for tests of producers."""
