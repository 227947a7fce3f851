"""Rounds need here what they need in `tests/consumption`."""

from tests.consumption.conftest import slow_machine

__all__ = ["slow_machine"]
