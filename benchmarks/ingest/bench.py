"""The base of all ingestion lines: both servers, one with captured databases, and the CPU of each process."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import Bench, Result
from benchmarks.servers import started
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres


@dataclass(kw_only=True)
class IngestBench(Bench):
    """A server for the stores and one for the sources, so that readers of a source's log do not read the store's."""

    sources: EmbeddedPostgres

    def source(self) -> str:
        """Make a new source database and return its connection string."""
        name = f"source_{next(self._numbers)}"
        self.sources.create_database(name)
        return self.sources.dsn(name)


class Costs:
    """The CPU that work took in this process, at the source and in the store, per row or change; medians of the rounds.

    Args:
        bench: The bench that measures.
        number: The rows or changes of each call of `of`.
    """

    def __init__(self, bench: IngestBench, number: int) -> None:
        self._bench = bench
        self._number = number
        self._rounds: list[tuple[float, float, float]] = []

    def of(self, work: Callable[[], object]) -> float:
        """Do the work; return its seconds."""
        before, began = self._spent(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        python, source, store = (now - then for now, then in zip(self._spent(), before, strict=True))
        self._rounds.append((python, source, store))
        return seconds

    def results(self, what: str, unit: str) -> list[Result]:
        """Return a line for each process, and one for all."""
        found = [median(values) / self._number * 1e6 for values in zip(*self._rounds, strict=True)]
        names = ("of this process", "of the source", "of the store", "of all")
        return [
            Result(f"{what}, CPU {name}", value, unit=unit)
            for name, value in zip(names, [*found, sum(found)], strict=True)
        ]

    def _spent(self) -> tuple[float, float, float]:
        # includes the child processes that have ended
        ours = sum(os.times()[:4])
        return ours, of_server(self._bench.sources), of_server(self._bench.server)


@contextmanager
def ingest_bench(*, rounds: int, small: bool, console: Console, programs: Path = PROGRAMS) -> Iterator[IngestBench]:
    """Start both servers for a run, and remove them at the end: ours, or other programs with their own settings."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        started(Path(directory) / "stores", programs, console) as server,
        started(Path(directory) / "sources", programs, console, logical=True) as sources,
    ):
        yield IngestBench(server, "", rounds, small, console, sources=sources)
