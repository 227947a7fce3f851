"""Helpers for tests of views: sessions, models of the expected state, receivers."""
