"""Works that start at the same time in separate processes: threads would wait for each other's Python."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from threading import Event, Thread
from typing import TYPE_CHECKING
from uuid import UUID

from benchmarks.event_store.bench import Database
from millrace.sequencer import run_sequencer

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

PATIENCE_S = 300


@dataclass(frozen=True)
class Worked:
    """When a worker began, ended, and finished each event, by the clock that all processes share."""

    began: float
    ended: float
    events: dict[UUID, float]


_shared: list["Barrier"] = []  # of this process, set when it starts


def _join(barrier: "Barrier") -> None:
    _shared[:] = [barrier]


def run_together(works: Sequence[Callable[[], Worked]]) -> list[Worked]:
    """Do each work in a separate process; they begin when all are ready."""
    context = get_context("spawn")  # a fork would share this process's connections
    with ProcessPoolExecutor(len(works), context, _join, (context.Barrier(len(works)),)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


@contextmanager
def sequencing(database: Database) -> Iterator[None]:
    """Run a sequencer beside a database of ours, as `millrace run sequencer` does; the other schema needs none."""
    stop = Event()
    loop = Thread(target=run_sequencer, args=(database.dsn, stop))
    if database.ours:
        loop.start()
    try:
        yield
    finally:
        stop.set()
        if database.ours:
            loop.join()


def begin() -> float:
    """Wait until all workers are ready; return the time."""
    _shared[0].wait(PATIENCE_S)
    return time.monotonic()


def seconds_of(worked: Sequence[Worked]) -> float:
    """Return the seconds from the first beginning to the last end."""
    return max(work.ended for work in worked) - min(work.began for work in worked)
