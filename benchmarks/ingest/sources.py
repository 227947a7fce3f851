"""A source that changes, its capture, and copies of the capture's slot, which give other readers the same changes."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import psycopg

from benchmarks.event_store.bench import Database
from benchmarks.ingest.bench import IngestBench
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.arriving import Arriving
from millrace.capture.decoding.changes import ChangeDecoder
from millrace.capture.drain import CaptureDrain, CaptureReport
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid
from millrace.capture.source.slot import drop_slot
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureInfo, CaptureStore
from millrace.postgres.embedded import PROGRAMS

PATIENCE_S = 600.0
TABLE = CapturedTable("items", key=("id",))

# of ten changes six are inserts, three updates and one a delete, row by row, for any size of transaction
MAKE = """
create table items (
  id bigint primary key,
  customer_id text not null,
  total numeric not null,
  paid boolean not null,
  note text,
  changed_at timestamptz not null
);
create procedure change_items(changes int, of_transaction int)
language plpgsql
as $$
declare
  _base constant bigint := coalesce((select (max(id) + 9) / 10 * 10 from items), 0);
begin
  for n in 1 .. changes loop
    if n % 10 between 1 and 6 then
      insert into items values (_base + n, 'customer-' || n % 1000, n / 100.0, false, 'made by ''change_items''', clock_timestamp());
    elsif n % 10 >= 7 then
      update items set paid = true, changed_at = clock_timestamp() where id = _base + n - 5;
    else
      delete from items where id = _base + n - 9;
    end if;
    if n % of_transaction = 0 then
      commit;
    end if;
  end loop;
end
$$;
"""


@dataclass(frozen=True)
class Pipeline:
    """A source with a captured table, and the store that its changes go to. Other processes may open both, too."""

    source: str
    store: Database
    table: CapturedTable = TABLE

    @property
    def capture(self) -> Capture:
        """The declaration of the capture."""
        return Capture("bench", lambda: self.source, (self.table,))

    def capturing(self) -> CaptureDrain:
        """Make one process of the capture."""
        # a long lease: a capture may wait for its turn while others are measured
        return CaptureDrain(self.store.dsn, self.capture, "bench", lease_s=int(PATIENCE_S))

    def info(self) -> CaptureInfo:
        """Return the capture as operators see it."""
        with self.store.connect() as connection:
            (info,) = CaptureStore(connection).capture_info("bench")
        return info

    def set_up(self) -> None:
        """Make slot and publication, and finish the table's backfill; the table is empty for the first capture."""
        with self.capturing() as process:
            while self.info().tables_to_backfill:
                process.drain(budget_s=PATIENCE_S, idle_s=0)

    def drained(self, changes: int, of_transaction: int) -> float:
        """Make changes, then capture them; return the seconds that the capture takes."""
        change(self.source, changes, of_transaction)
        return self.drain(changes)

    def drain(self, changes: int, timing: Callable[[Callable[[], object]], float] | None = None) -> float:
        """Capture the pending changes, `changes` in number; return the seconds by `timing`, or by `timed`."""
        with self.capturing() as process:
            seconds = (timing or timed)(lambda: process.drain(budget_s=PATIENCE_S, idle_s=0))
            require_all(process.report, changes)
        return seconds


def new_source(bench: IngestBench) -> str:
    """Make a source; return its connection string."""
    source = bench.source()
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(MAKE.encode())
    return source


def new_pipeline(bench: IngestBench, source: str | None = None) -> Pipeline:
    """Make a store that captures a source, a new one unless it is given."""
    pipeline = Pipeline(new_source(bench) if source is None else source, bench.ours())
    pipeline.set_up()
    return pipeline


def change(source: str, changes: int, of_transaction: int) -> None:
    """Make `changes` changes in transactions of `of_transaction` each; then the log is on disk."""
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute("call change_items(%s, %s)", (changes, of_transaction))
        connection.execute("checkpoint")


@contextmanager
def slot_copy(pipeline: Pipeline, name: str) -> Iterator[str]:
    """Yield a copy of the capture's slot, which holds the same changes as the slot now; drop it at the end."""
    with connect_source(pipeline.source) as connection:
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (pipeline.info().slot, name))
        try:
            yield name
        finally:
            drop_slot(connection, name)


def received(pipeline: Pipeline, slot: str) -> float:
    """Let pg_recvlogical read a slot to the end and discard the changes; return the seconds."""
    with connect_source(pipeline.source) as connection:
        row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
    command = [str(PROGRAMS / "pg_recvlogical"), "--start", "--no-loop", "--slot", slot, "--dbname", pipeline.source]
    options = ["proto_version=1", f"publication_names={pipeline.info().publication}", "messages=true"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--endpos", row[0], "--file", "/dev/null", *(f"--option={option}" for option in options)],
        env={**os.environ, "LD_LIBRARY_PATH": str(PROGRAMS.parent / "lib")},
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return time.perf_counter() - began


def streamed(pipeline: Pipeline, slot: str, *, decoding: bool) -> float:
    """Read a slot to the end as a capture does, with or without decoding the messages; return the seconds."""
    info = pipeline.info()
    with connect_source(pipeline.source) as connection:
        decoder = ChangeDecoder((TABLE,), info.capture, 1, next_xid(connection))
        flushed, _ = flush_lsn(connection)

        def read() -> None:
            with SlotStream(connection, slot, info.publication) as stream:
                while stream.passed_lsn < flushed:
                    messages = stream.messages(flushed, Event())
                    for _ in Arriving(decoder, messages).piece() if decoding else messages:
                        pass
                stream.advance(stream.passed_lsn)

        return timed(read)


def require_all(report: CaptureReport, changes: int) -> None:
    """Require that all changes became events."""
    if (report.stored, report.emitted) != (changes, changes):
        raise RuntimeError(f"{report.stored} changes were stored and {report.emitted} emitted, not {changes}")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that the work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
