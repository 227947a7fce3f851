"""The backfills of a capture: the rows that its tables held already, chunk by chunk, between the changes.

Belongs here: which table is next, how large a chunk is, when its rows may become events. Not here: reading a chunk
(`source.chunks`), its rows as events (`backfilled_rows`), the loop (`drain`), what is appended (`emit_backfill` in
`sql/functions`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from millrace.resources.capture.backfilled_rows import backfilled_rows
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.setup import ReadyCapture
from millrace.resources.capture.source.chunks import Chunk, read_chunk
from millrace.resources.capture.source.connection import oldest_xid
from millrace.resources.capture.store import CaptureStore, RegisteredTable

# rows of a chunk, at most, and about how many bytes
CHUNK = 5_000
CHUNK_BYTES = 8_000_000
# rows of the first chunk: nobody knows yet how wide they are
FIRST_CHUNK = 100
# streams of a table that the end of its backfill looks at in one call
FINISH = 5_000


@dataclass(frozen=True)
class BackfillStep:
    """What one step did.

    Attributes:
        worked: Whether there was anything to do.
        appended: Rows that became events.
        held: Rows that could not, and those that wait behind such.
        unchanged: Rows that are as their streams say.
    """

    worked: bool
    appended: int = 0
    held: int = 0
    unchanged: int = 0


class Backfill:
    """The backfills of a capture, while one process holds its lease.

    Args:
        source: An autocommit connection to the source.
        store: The event store.
        ready: The capture and its lease.
    """

    def __init__(self, source: psycopg.Connection, store: CaptureStore, ready: ReadyCapture) -> None:
        self._source = source
        self._store = store
        self._ready = ready
        self._declared = {(table.schema, table.table): table for table in ready.tables}
        self._unfinished = self._registered()
        self._chunk_rows = min(CHUNK, FIRST_CHUNK)
        # a chunk that was read, and whose rows are not events yet
        self._chunk: tuple[RegisteredTable, Chunk] | None = None

    @property
    def waits_for_changes(self) -> bool:
        """Whether a chunk was read that has to wait until the changes before it are stored."""
        return self._chunk is not None

    def look_again(self) -> None:
        """Look which tables are to be read: some are read anew. A chunk that was read before is read again."""
        self._unfinished = self._registered()
        self._chunk = None

    def step(self, stored_lsn: Lsn, emit: Callable[[], object]) -> BackfillStep:
        """Do the next part of a backfill that is due.

        Args:
            stored_lsn: All changes below it are stored.
            emit: Makes the stored changes events; called before a chunk becomes events, which stand behind them.
        """
        if self._chunk is None:
            self._unfinished = self._unfinished and [
                table for table in self._registered() if table.backfill_generation is None
            ]
            if not self._unfinished:
                return BackfillStep(worked=False)
            table = self._unfinished[0]
            if table.rows_read:
                self._store.finish_backfill(
                    self._ready.capture, self._ready.lease_token, table.schema_name, table.table_name, FINISH
                )
                return BackfillStep(worked=True)
            if table.published_xid is None or oldest_xid(self._source) < table.published_xid:
                # A transaction is open on the source that began before the table was published: its changes may be
                # missing from the slot. It has to end before the table is read.
                return BackfillStep(worked=False)
            self._chunk = self._read(table)
            if self._chunk is None:
                return BackfillStep(worked=True)
        table, chunk = self._chunk
        if stored_lsn < chunk.high_lsn:
            # what the chunk's snapshot has seen comes before it in the log
            return BackfillStep(worked=True)
        emit()
        return self._emit(table, chunk)

    def _read(self, table: RegisteredTable) -> tuple[RegisteredTable, Chunk] | None:
        """Read a table's next chunk, and choose the size of the one after; return None if it is far too large."""
        after = None if table.backfill_key is None else json.loads(table.backfill_key)
        declared = self._declared[table.schema_name, table.table_name]
        chunk = read_chunk(self._source, declared, after, self._chunk_rows)
        size = sum(len(value) for row in chunk.rows for value in row if isinstance(value, bytes))
        fitting_rows = int(len(chunk.rows) * CHUNK_BYTES / max(size, 1))
        # it grows in steps: the next rows may be wider than these
        self._chunk_rows = max(1, min(CHUNK, fitting_rows, self._chunk_rows * 4))
        if size > 8 * CHUNK_BYTES and len(chunk.rows) > 1:
            return None
        return table, chunk

    def _emit(self, table: RegisteredTable, chunk: Chunk) -> BackfillStep:
        """Append the rows of a chunk as events."""
        ready = self._ready
        declared = self._declared[table.schema_name, table.table_name]
        done = self._store.emit_backfill(
            ready.capture,
            ready.lease_token,
            table.schema_name,
            table.table_name,
            chunk.snapshot,
            chunk.high_lsn,
            backfilled_rows(chunk, declared, ready.capture, ready.source_generation, table.backfill_offset),
            None if chunk.last_key is None else json.dumps(chunk.last_key, ensure_ascii=False),
            done=chunk.done,
        )
        if done.status != "behind":
            self._chunk = None
        return BackfillStep(worked=True, appended=done.appended, held=done.held, unchanged=done.unchanged)

    def _registered(self) -> list[RegisteredTable]:
        """Return the tables that are registered as we declare them: by now another process may declare others."""
        return [
            table
            for table in self._store.captured_tables(self._ready.capture)
            if self._ready.fingerprints.get((table.schema_name, table.table_name)) == table.fingerprint
        ]
