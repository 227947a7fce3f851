"""Dagster's instance for tests of sensors, checks and jobs."""

from tests.support.running.in_process import instance

__all__ = ["instance"]
