"""The backfills of a capture: which table is next, how large a chunk is, and when it is appended."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg

from millrace.capture.backfilled_rows import BackfilledRows, backfilled_rows
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.prepare import ReadyCapture
from millrace.capture.source.chunks import Chunk, TableUnreadable, read_chunk
from millrace.capture.source.connection import oldest_xid
from millrace.capture.store import CaptureStore, EmittedRows, RegisteredTable
from millrace.patience import ASK_S, PATIENCE_S, PAUSE_S, POLL_S

# rows of a chunk, at most, and about how many bytes
CHUNK = 5_000
CHUNK_BYTES = 8_000_000
# rows of the first chunk: their width is not known yet
FIRST_CHUNK = 100
# streams of a table that one call at the end of its backfill checks
FINISH = 5_000
# how long one step reads or ends tables before changes are stored again
STEP_S = PAUSE_S

logger = logging.getLogger(__name__)


def next_chunk_rows(chunk: Chunk, rows: int) -> tuple[int, bool]:
    """Return how many rows to read after a chunk of `rows`; and False if that chunk is far too large, else True."""
    if not chunk.rows:
        return rows, True  # the width of the next rows is still unknown
    fitting_rows = int(len(chunk.rows) * CHUNK_BYTES / max(chunk.size, 1))
    # it grows in steps: the next rows may be wider than these
    return max(1, min(CHUNK, fitting_rows, rows * 4)), chunk.size <= 8 * CHUNK_BYTES or len(chunk.rows) == 1


@dataclass(frozen=True)
class BackfillStep:
    """What one step did.

    Attributes:
        worked: Whether there was anything to do.
        appended: Rows that became events.
        held: Rows that could not become events, and those that wait behind such rows.
        unchanged: Rows that match their streams.
    """

    worked: bool
    appended: int = 0
    held: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class _TableChunk:
    """A chunk of a table that was read, how many rows its backfill read before it, and its rows as events."""

    table: RegisteredTable
    chunk: Chunk
    rows_before: int
    rows: BackfilledRows


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
        self._schemas = {(t.table.schema, t.table.table): t.schema for t in ready.admitted.tables}
        self._unfinished = self._registered()
        self._chunk_rows = min(CHUNK, FIRST_CHUNK)
        # when to retry a table that is locked, or cannot be read, by its name
        self._waiting: dict[str, float] = {}
        # chunks that are not events yet, in the order of their positions; those of one table in the order of its keys
        self._chunks: list[_TableChunk] = []

    @property
    def waits_for_changes(self) -> bool:
        """Whether a chunk was read that has to wait until the changes before it are stored."""
        return bool(self._chunks)

    def refresh(self) -> None:
        """Check which tables are to be read: some are read anew. Chunks that were read before are read again."""
        self._unfinished = self._registered()
        self._chunks = []

    def step(self, stored_lsn: Lsn, await_emitted: Callable[[], object]) -> BackfillStep:
        """Do the next part of a backfill that is due.

        Args:
            stored_lsn: All changes below it are stored.
            await_emitted: Returns once the stored changes are events. Called before the events of a chunk.
        """
        if not self._chunks:
            self._unfinished = self._unfinished and [
                table for table in self._registered() if table.backfill_generation is None
            ]
            if not self._unfinished:
                return BackfillStep(worked=False)
            if not self._finish() and not self._read_tables():
                return BackfillStep(worked=False)
        if not self._chunks or stored_lsn < self._chunks[-1].chunk.high_lsn:
            # everything that a chunk's snapshot has seen comes before the chunk in the log
            return BackfillStep(worked=True)
        await_emitted()
        chunks, self._chunks = self._chunks, []
        with ThreadPoolExecutor(1, "append") as appender:
            appending = appender.submit(self._append, chunks)
            # the next rows of a large table are read while these become events
            ahead = self._read_ahead(chunks[-1])
        results = appending.result()
        self._chunks = [chunk for chunk, stored in zip(chunks, results, strict=True) if stored.status == "behind"]
        if results[-1].status != "unpublished":
            self._chunks += ahead
        return BackfillStep(
            worked=True,
            appended=sum(stored.appended for stored in results),
            held=sum(stored.held for stored in results),
            unchanged=sum(stored.unchanged for stored in results),
        )

    def _finish(self) -> bool:
        """End the backfills that have read every row, for a limited time; return whether there was one."""
        fully_read = [table for table in self._unfinished if table.rows_read]
        until = time.monotonic() + STEP_S
        for table in fully_read:
            self._store.finish_backfill(
                self._ready.capture, self._ready.lease_token, table.schema_name, table.table_name, FINISH
            )
            if time.monotonic() >= until:
                break
        return bool(fully_read)

    def _read_tables(self) -> bool:
        """Read the next chunk of a table, and the chunks after it if they are small; return whether any may be read.

        The chunks read together have about the size of one, and wait once for the changes before them.
        """
        # A transaction that began before a table was published may be open on the source. The slot may lack its
        # changes, so it has to end before that table is read.
        oldest = oldest_xid(self._source)
        now = time.monotonic()
        due = [
            table
            for table in self._unfinished
            if table.published_xid is not None
            and oldest >= table.published_xid
            and self._waiting.get(table.name, now) <= now
        ]
        until = now + STEP_S
        rows = size = 0
        for table in due:
            try:
                after = None if table.backfill_key is None else json.loads(table.backfill_key)
                next_chunk = self._read(table, after, table.backfilled_rows)
            except psycopg.errors.LockNotAvailable:
                self._waiting[table.name] = time.monotonic() + ASK_S
                continue
            except TableUnreadable as unreadable:
                self._waiting[table.name] = time.monotonic() + PATIENCE_S
                self._hold(table, unreadable)
                continue
            self._waiting.pop(table.name, None)
            if table.unread_reason is not None:
                self._hold(table, None)
            if next_chunk is None:
                break
            self._chunks.append(next_chunk)
            rows += len(next_chunk.chunk.rows)
            size += next_chunk.chunk.size
            if not next_chunk.chunk.is_last or rows >= CHUNK or size >= CHUNK_BYTES or time.monotonic() >= until:
                break
        return any(table.name not in self._waiting for table in due)

    def _hold(self, table: RegisteredTable, error: TableUnreadable | None) -> None:
        """Record why a table cannot be read, or that it can be read again."""
        reason = None if error is None else f"{error.detail}: {error.hint}"
        if self._store.hold_backfill(
            self._ready.capture, self._ready.lease_token, table.schema_name, table.table_name, reason
        ):
            state = "its backfill goes on" if reason is None else f"its backfill does not go on: {reason}"
            logger.warning("%s: table %s: %s", self._ready.capture, table.name, state)

    def _read_ahead(self, before: _TableChunk) -> list[_TableChunk]:
        """Read the chunk after one that is about to become events; return nothing if it cannot be read now."""
        if before.chunk.is_last:
            return []
        try:
            rows_before = before.rows_before + len(before.chunk.rows)
            next_chunk = self._read(before.table, before.chunk.last_key, rows_before)
        except (psycopg.errors.LockNotAvailable, TableUnreadable, TableUnfit):
            # the next step meets that error again
            return []
        return [] if next_chunk is None else [next_chunk]

    def _read(self, table: RegisteredTable, after: Sequence[str] | None, rows_before: int) -> _TableChunk | None:
        """Read a table's next chunk, and choose the size of the one after; return None if it is far too large."""
        ready = self._ready
        declared = self._declared[table.schema_name, table.table_name]
        chunk = read_chunk(self._source, declared, after, self._chunk_rows, POLL_S)
        columns = {
            (column.name, column.type_oid) for column in self._schemas[table.schema_name, table.table_name].columns
        }
        if any((c.name, c.type_oid) not in columns for c in chunk.relation.columns if c.name in (declared.key or ())):
            # other rows follow a key then
            raise TableUnfit(declared.name, "its key is of another type")
        self._chunk_rows, fits = next_chunk_rows(chunk, self._chunk_rows)
        if not fits:
            return None
        rows = backfilled_rows(
            chunk, declared, ready.capture, ready.source_generation, table.backfill_offset, rows_before
        )
        return _TableChunk(table, chunk, rows_before, rows)

    def _append(self, chunks: Sequence[_TableChunk]) -> list[EmittedRows]:
        return [
            self._store.emit_backfill(
                self._ready.capture,
                self._ready.lease_token,
                each.table.schema_name,
                each.table.table_name,
                each.chunk.snapshot,
                each.chunk.high_lsn,
                each.rows,
                None if each.chunk.last_key is None else json.dumps(each.chunk.last_key, ensure_ascii=False),
                done=each.chunk.is_last,
            )
            for each in chunks
        ]

    def _registered(self) -> list[RegisteredTable]:
        """Return the registered tables that match our declaration: another process may have declared others by now."""
        return [
            table
            for table in self._store.captured_tables(self._ready.capture)
            if self._ready.fingerprints.get((table.schema_name, table.table_name)) == table.fingerprint
        ]
