"""What every line of ingestion has beside what all benchmarks share: a second server, whose databases are captured.

Belongs here: both servers. Not here: what is measured, what a source does (`sources`).
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.event_store.bench import Bench
from millrace.resources.postgres.embedded import EmbeddedPostgres


@dataclass(kw_only=True)
class IngestBench(Bench):
    """A server for the stores and one for the sources, so that readers of a source's log do not read the store's."""

    sources: EmbeddedPostgres

    def source(self) -> str:
        """Make a new source database and return its connection string."""
        name = f"source_{next(self._numbers)}"
        self.sources.create_database(name)
        return self.sources.dsn(name)


@contextmanager
def ingest_bench(*, rounds: int, small: bool, console: Console) -> Iterator[IngestBench]:
    """Start both servers for a run, and remove them at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        EmbeddedPostgres(Path(directory) / "stores") as server,
        EmbeddedPostgres(Path(directory) / "sources") as sources,
    ):
        yield IngestBench(server, "", rounds, small, console, sources=sources)
