"""Runs of Dagster as the store sees them: the owners of leases, and the progress of a long run.

Belongs here: the common part of drains and captures as runs. Not here: their work, and the numbers that they show.
"""

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import dagster as dg

# Dagster keeps every event for ever: sixteen partitions a view add up
REPORT_EVERY_S = 300.0

T = TypeVar("T")


def release_dead(instance: dg.DagsterInstance, owners: Iterable[str], release: Callable[[str], object]) -> None:
    """Call `release` for each owner of leases that is a finished run by Dagster's account: a killed run could not."""
    for owner in owners:
        run = instance.get_run_by_id(owner)
        if run is not None and run.is_finished:
            release(owner)


class Progress(Generic[T]):
    """Shows how far a running drain or capture is: after its first step that did something, then every five minutes."""

    def __init__(self, show: Callable[[T], None]) -> None:
        self._show = show
        self._shown_at = float("-inf")

    def step(self, sofar: T) -> None:
        """Show the progress if it is time."""
        if time.monotonic() - self._shown_at >= REPORT_EVERY_S:
            self.show(sofar)

    def show(self, sofar: T) -> None:
        """Show the progress now."""
        self._show(sofar)
        self._shown_at = time.monotonic()
