"""Dagster's instance for tests of assets."""

from tests.support.running.in_process import instance

__all__ = ["instance"]
