"""Captures a source's changes: slot -> wal_events -> events, and the rows that were there before as a backfill.

Belongs here: the order of the steps. Not here: the source (`replication`, `publication`), what a message means
(`captured_changes`), what is stored and under which lease (`capture_store` and its SQL functions), setting a capture up and
taking it down (`capture_setup`).

A step that is killed is done again:

| killed after                  | on disk      | next time                                                     |
|-------------------------------|--------------|---------------------------------------------------------------|
| some rows were copied         | nothing      | the slot gives them again                                     |
| `store_changes`               | `wal_events` | the slot gives them again; they are compared, and not stored  |
| the slot was advanced         | `wal_events` | `emit_changes` goes on where it was                           |
| some chunks of a backfill     | their events | the next chunk                                                |

One process at a time holds a capture's lease; each of its transactions is fenced by the lease's token.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import TracebackType
from typing import Self

import psycopg

from millrace.resources.capture.backfilled_rows import backfilled_rows
from millrace.resources.capture.declaration import Capture
from millrace.resources.capture.decoding.changes import Change, ChangeDecoder
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.setup import ReadyCapture, prepare
from millrace.resources.capture.source.chunks import Chunk, read_chunk
from millrace.resources.capture.source.slot import (
    PublicationMissing,
    SlotLost,
    advance,
    connect_source,
    flush_lsn,
    oldest_xid,
    peek,
)
from millrace.resources.capture.store import CaptureStore, RegisteredTable
from millrace.resources.errors import ChangesDiffer

LEASE_S = 30
# Changes of one peek, which ends with a transaction: the more, the less it counts that each one decodes from the slot's start.
MOST_CHANGES = 50_000
# Events of one transaction, in which the capture's row is locked
EMIT = 5_000
# Rows of a backfill that are read at a time, at most, and about how many bytes
CHUNK = 5_000
CHUNK_BYTES = 8_000_000
FIRST_CHUNK = 100
# Replayed changes that are compared at a time, and about how many characters
COMPARE = 1_000
COMPARE_CHARACTERS = 8_000_000
# Rows of wal_events that are removed at a time
PURGE = 10_000
# Between two polls that found nothing
POLL_S = 0.05
# How often an idle slot is moved on past the WAL of others
IDLE_ADVANCE_S = 1.0
# How long to wait for rows that a former owner's session has not given up yet
LOCK_S = 10


@dataclass
class CaptureReport:
    """What a capture did.

    Attributes:
        stored: Changes that were stored.
        replayed: Changes that the slot gave again: compared, and not stored.
        emitted: Changes that became events, and the deletions that a truncation is.
        quarantined: Changes that could not, and those that wait behind them.
        backfilled: Rows of backfills that became events.
        busy_s: How long it worked, in seconds.
    """

    stored: int = 0
    replayed: int = 0
    emitted: int = 0
    quarantined: int = 0
    backfilled: int = 0
    busy_s: float = 0.0


class _Arriving:
    """What one peek gives: its changes, and how far it came."""

    def __init__(self, ready: ReadyCapture, capture: str) -> None:
        self._decoder = ChangeDecoder(ready.tables, capture, ready.source_generation, ready.xid_reference, ready.oids)
        self.messages = 0
        self.changed = 0
        self.committed_at: datetime | None = None

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the last transaction; None if there was none."""
        return self._decoder.end_lsn

    def changes(self, messages: Iterable[bytes]) -> Iterator[Change]:
        """Decode the messages."""
        for message in messages:
            self.messages += 1
            for change in self._decoder.feed(message):
                self.changed += 1
                self.committed_at = change.committed_at
                yield change


class Capturing:
    """One process of a capture, from its claim to its release; a context manager.

    Args:
        dsn: The event store.
        capture: What is captured.
        owner: Who holds the lease, such as a run's id.
        lease_s: How long the lease lasts without a sign of life, in seconds.

    Raises:
        CaptureInUse: Another process captures it.
        NotReady: The source lacks something; it says what.
        GapOpen: Changes of the source are lost.
    """

    def __init__(self, dsn: str, capture: Capture, owner: str, *, lease_s: int = LEASE_S) -> None:
        self.capture = capture
        self.report = CaptureReport()
        self._dsn = dsn
        self._owner = owner
        self._lease_s = lease_s
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._source = opening.enter_context(connect_source(self.capture.source()))
            self._control = opening.enter_context(self._connect())
            self._ready = prepare(self._source, self._control, self.capture, self._owner, self._lease_s)
            opening.callback(self._release)
            self._end_former_sessions()
            # one connection to store with, and one to append events with at the same time
            self._storing = opening.enter_context(self._connect(self._working))
            self._emitting = opening.enter_context(self._connect(self._working))
            self._opened = opening.pop_all()
        self._token = self._ready.lease_token
        self._stored_lsn = self._ready.stored_lsn
        self._captured = {(table.schema, table.table): table for table in self._ready.tables}
        self._stop = threading.Event()
        self._kept_at = self._idle_at = time.monotonic()
        self._due = self._tables()
        self._chunk_rows = min(CHUNK, FIRST_CHUNK)
        self._chunk: tuple[RegisteredTable, Chunk] | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @contextmanager
    def _connect(self, name: str = "millrace") -> Iterator[CaptureStore]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("select set_config('application_name', %s, false)", (name,))
            connection.execute("set default_transaction_isolation = 'read committed'")
            connection.execute("select set_config('lock_timeout', %s, false)", (f"{LOCK_S}s",))
            yield CaptureStore(connection)

    @property
    def _working(self) -> str:
        """The name of sessions that only the owner of the lease has: by it the next one finds those of one that hangs."""
        return f"millrace capture {self.capture.name}"

    def _end_former_sessions(self) -> None:
        """End sessions of a former owner, whose lease has ended: a process that hangs would hold the rows that it copied."""
        self._control.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = %s and datname = current_database() and pid <> pg_backend_pid()",
            (self._working,),
        )

    def _release(self) -> None:
        # over a connection of its own: one that was interrupted in a statement gives nothing back
        with suppress(psycopg.OperationalError), psycopg.connect(self._dsn, autocommit=True) as connection:
            CaptureStore(connection).release_capture(self.capture.name, self._ready.lease_token)

    def drain(
        self,
        *,
        budget_s: float,
        idle_s: float,
        stop: threading.Event | None = None,
        on_step: Callable[[CaptureReport], None] = lambda _: None,
    ) -> CaptureReport:
        """Capture until nothing came for `idle_s`, the budget of seconds is used up, or `stop` is set."""
        self._stop = stop or threading.Event()
        started = busy_at = time.monotonic()
        waiting = True  # whether there may be changes that are stored, and no events yet
        with ThreadPoolExecutor(1, "emit") as emitter:
            while not self._stop.is_set() and time.monotonic() - started < budget_s:
                began = time.monotonic()
                stored = threading.Event()
                # what was stored before becomes events while the next changes are decoded
                emitting = emitter.submit(self._emit_until, stored, emit=waiting)
                try:
                    came = self.store()
                    stored.set()
                    emitted = emitting.result()
                    read = self.backfill()
                except (SlotLost, PublicationMissing) as lost:
                    self._control.record_gap(self.capture.name, self._stored_lsn, None, str(lost))
                    raise
                except BaseException:
                    # whatever it is, the emitter does not go on without us
                    self._stop.set()
                    raise
                finally:
                    stored.set()
                waiting = came > 0
                if came or emitted or read:
                    busy_at = time.monotonic()
                    self.report.busy_s += busy_at - began
                    on_step(self.report)
                elif time.monotonic() - busy_at >= idle_s:
                    break
                else:
                    # a transaction that is open on the source for long makes every look at the slot dear
                    self._stop.wait(max(POLL_S, 2 * (time.monotonic() - began)))
        self.purge()
        return self.report

    def store(self) -> int:
        """Store the next changes that the slot holds, in one transaction, and move the slot behind them; return how many came."""
        # Before the peek, which then waits for every record that begins below it: what commits later, and what lies across it, is
        # not passed over by the idle advance.
        flushed, at = flush_lsn(self._source)
        arriving = _Arriving(self._ready, self.capture.name)
        with (
            self._storing.connection.transaction(),
            peek(self._source, self._ready.slot, self._ready.publication, MOST_CHANGES) as messages,
        ):
            changes = self._unknown(arriving.changes(messages))
            first = next(changes, None)
            copied = 0
            if first is not None:
                copied = self._storing.copy_changes(self._ready.source_generation, chain([first], changes))
            to_lsn = self._passed(arriving, flushed)
            if to_lsn is not None and to_lsn > self._stored_lsn:
                # a peek that was cut at its limit says nothing about now
                stored_at = at if arriving.messages < MOST_CHANGES else arriving.committed_at or at
                stored = self._storing.store_changes(self.capture.name, self._token, to_lsn, stored_at)
                if stored != copied:
                    raise ChangesDiffer(
                        "wal_events has other rows than those that were copied",
                        detail=f"capture {self.capture.name}: {copied} copied, {stored} found below {to_lsn}",
                        hint="Nothing was stored. Nobody but the capture may write there.",
                    )
        if to_lsn is not None:
            self._stored_lsn = max(self._stored_lsn, to_lsn)
            # only what is stored is given up
            advance(self._source, self._ready.slot, to_lsn)
        self.report.stored += copied
        return arriving.changed

    def emit(self) -> int:
        """Make what is stored events; return how many changes that were."""
        moved = 0
        behind = True
        while behind and not self._stop.is_set():
            done = self._emitting.emit_changes(self.capture.name, self._token, EMIT)
            self.report.emitted += done.emitted
            self.report.quarantined += done.quarantined + done.held
            moved += done.emitted + done.quarantined + done.held
            behind = done.behind
            self._keep_lease(self._emitting)
        return moved

    def _emit_until(self, stored: threading.Event, *, emit: bool) -> int:
        """Emit, and keep the lease until everything else of this step is done: the source may decode for long."""
        moved = self.emit() if emit else 0
        while not stored.wait(self._lease_s / 3):
            self._keep_lease(self._emitting)
        return moved

    def backfill(self) -> int:
        """Do the next part of a backfill that is due; return 0 if there was nothing to do."""
        if self._chunk is None:
            self._due = self._due and [table for table in self._tables() if table.backfill_generation is None]
            if not self._due:
                return 0
            table = self._due[0]
            if table.rows_read:
                self._control.finish_backfill(self.capture.name, self._token, table.schema_name, table.table_name, EMIT)
                return 1
            if table.published_xid is None or oldest_xid(self._source) < table.published_xid:
                # a transaction that is older than the publication is open on the source
                return 0
            after = None if table.backfill_key is None else json.loads(table.backfill_key)
            captured = self._captured[table.schema_name, table.table_name]
            chunk = read_chunk(self._source, captured, after, self._chunk_rows)
            size = sum(len(value) for row in chunk.rows for value in row if isinstance(value, bytes))
            fit = int(len(chunk.rows) * CHUNK_BYTES / max(size, 1))
            # rows may be of any width: it grows in steps, and one that is far too large is read again
            self._chunk_rows = max(1, min(CHUNK, fit, self._chunk_rows * 4))
            if size > 8 * CHUNK_BYTES and len(chunk.rows) > 1:
                return 1
            self._chunk = table, chunk
        table, chunk = self._chunk
        # what the snapshot saw is in the log before it
        if self._stored_lsn < chunk.high_lsn:
            return 1
        self.emit()
        captured = self._captured[table.schema_name, table.table_name]
        done = self._control.emit_backfill(
            self.capture.name,
            self._token,
            table.schema_name,
            table.table_name,
            chunk.snapshot,
            chunk.high_lsn,
            backfilled_rows(chunk, captured, self.capture.name, self._ready.source_generation, table.backfill_offset),
            None if chunk.last_key is None else json.dumps(chunk.last_key, ensure_ascii=False),
            done=chunk.done,
        )
        self.report.backfilled += done.appended
        self.report.quarantined += done.held
        if done.status != "behind":
            self._chunk = None
        return 1

    def purge(self) -> int:
        """Remove what `wal_events` need not keep any more; return how many changes that were."""
        before = datetime.now(UTC) - timedelta(days=self.capture.keep_days)
        removed = 0
        while not self._stop.is_set():
            gone = self._control.purge_wal_events(self.capture.name, before, PURGE)
            removed += gone
            if gone < PURGE:
                break
        return removed

    def _unknown(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The changes that are not stored yet; the others are compared with what is."""
        replayed: list[Change] = []
        size = 0
        for change in changes:
            if change.commit_lsn >= self._stored_lsn:
                yield change
                continue
            replayed.append(change)
            size += len(change.data or "")
            if len(replayed) == COMPARE or size >= COMPARE_CHARACTERS:
                self._verify(replayed)
                replayed, size = [], 0
        if replayed:
            self._verify(replayed)

    def _verify(self, changes: list[Change]) -> None:
        self.report.replayed += self._control.verify_changes(self.capture.name, changes)

    def _passed(self, arriving: "_Arriving", flushed: Lsn) -> Lsn | None:
        """Up to where the slot has given everything; None to leave it where it is."""
        if arriving.end_lsn is not None:
            return arriving.end_lsn
        if self._chunk is None and time.monotonic() - self._idle_at < IDLE_ADVANCE_S:
            return None
        # nothing of ours lies before it
        self._idle_at = time.monotonic()
        return flushed

    def _tables(self) -> list[RegisteredTable]:
        """The tables as they are registered by this declaration: another process may have registered another one since."""
        return [
            table
            for table in self._control.captured_tables(self.capture.name)
            if self._ready.fingerprints.get((table.schema_name, table.table_name)) == table.fingerprint
        ]

    def _keep_lease(self, store: CaptureStore) -> None:
        if time.monotonic() - self._kept_at >= self._lease_s / 3:
            store.extend_capture(self.capture.name, self._token, self._lease_s)
            self._kept_at = time.monotonic()
