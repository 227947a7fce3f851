"""Rounds need here what they need in `consumption/rounds`."""

from tests.consumption.rounds.conftest import slow_machine

__all__ = ["slow_machine"]
