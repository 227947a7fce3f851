"""Verifies a captured table: compares it with its streams, chunk by chunk, while it changes and is captured.

    begun -> chunk read -> captured up to what it saw -> compared -> … -> ended

It needs no lease: this process captures if no other does. If it is killed, run it again from the start.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from threading import Event
from typing import Self

import psycopg

from millrace.capture.backfill import FIRST_CHUNK, next_chunk_rows
from millrace.capture.backfilled_rows import backfilled_rows
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.drain import CaptureDrain
from millrace.capture.sealing import sealer_of
from millrace.capture.source.chunks import Chunk, TableUnreadable, commit_something, read_chunk
from millrace.capture.source.connection import connect_source, next_xid, oldest_transaction, oldest_xid
from millrace.capture.source.slot import UNSEEN
from millrace.capture.source.tables import with_key
from millrace.capture.store import CaptureStore, VerifiedRows, find_capture
from millrace.errors import CaptureInUse, LeaseLost, MillraceError
from millrace.patience import PATIENCE_S, POLL_S
from millrace.postgres.connecting import connect

MOST_EXAMPLES = 20


class BadCondition(MillraceError):
    """The source rejects the condition of a verification."""


@dataclass
class Verification:
    """How a table compares with its streams.

    Attributes:
        table: Its name.
        rows: Rows that were read.
        unchanged: Rows that match their streams.
        changed: Rows that differ from their streams.
        missing: Rows without a live stream.
        gone: Live streams without a row.
        held: Rows with streams that wait in the quarantine, or rows that cannot be events.
        nameless: Rows with unreadable keys. If there are any, no stream counts as gone: it may be such a row's.
        quarantined: Changes of the table that wait in the quarantine afterwards.
        left_out: Rows that changed after they were read: the capture has those changes.
        examples: Keys of rows that differ or are gone, up to twenty.
        waits_for: The source's transaction that has to end before the table is read, as text for an operator.
    """

    table: str
    rows: int = 0
    unchanged: int = 0
    changed: int = 0
    missing: int = 0
    gone: int = 0
    held: int = 0
    nameless: int = 0
    quarantined: int = 0
    left_out: int = 0
    examples: list[str] = field(default_factory=list)
    waits_for: str | None = None

    @property
    def differing(self) -> int:
        """Rows and streams that do not match."""
        return self.changed + self.missing + self.gone

    def add(self, verified: VerifiedRows, rows: int) -> None:
        """Add a chunk."""
        self.rows += rows
        self.unchanged += verified.unchanged or 0
        self.changed += (verified.differing or 0) - (verified.missing or 0)
        self.missing += verified.missing or 0
        self.held += verified.held or 0
        self.left_out += verified.left_out or 0
        self.examples = (self.examples + (verified.examples or []))[:MOST_EXAMPLES]


def verify(
    dsn: str,
    capture: Capture,
    table: CapturedTable,
    *,
    repairs: str | None = None,
    where: str | None = None,
    on_step: Callable[[Verification], None] = lambda _: None,
) -> Verification:
    """Compare a table with its streams; with a reason to repair, append events for what differs.

    A repair also discards quarantined changes older than the rows that were read, if the row can be an event.

    Args:
        dsn: The event store.
        capture: The capture.
        table: One of its tables.
        repairs: The reason for the repair, for the audit log; None to count only.
        where: A condition on the rows, as in a query; None for all. Rows that are gone are found only with None.
        on_step: Called after each chunk.

    Raises:
        BadCondition: The source rejects the condition.
        ChangesWaiting: The table's backfill has not ended.
        VerificationOver: Another verification of the table began, or the capture was begun anew.
    """
    result = Verification(table.name)
    with ExitStack() as opened:
        source = opened.enter_context(connect_source(capture.source()))
        store = CaptureStore(opened.enter_context(connect(dsn)), sealer=sealer_of(capture))
        capturing = opened.enter_context(_Capturing(dsn, capture, source, CaptureStore(store.connection)))
        capturing.begin()
        keyed = with_key(source, table)
        if where is not None:
            keyed = replace(keyed, where=where if keyed.where is None else f"({keyed.where}) and ({where})")
            _require_condition(source, keyed, where)
        published_xid = next_xid(source)
        number = store.begin_verification(
            capture.name, table.schema, table.table, published_xid, repairs, repairs=repairs is not None
        )
        _wait_for_older(source, published_xid, result, on_step)
        after, chunk_rows, more = None, FIRST_CHUNK, True
        while more:
            chunk = read_chunk(source, keyed, after, chunk_rows)
            chunk_rows, fits = next_chunk_rows(chunk, chunk_rows)
            if not fits:
                continue
            result.add(_verify_chunk(store, number, chunk, result, keyed, capturing), len(chunk.rows))
            on_step(result)
            after, more = chunk.last_key, not chunk.is_last
        finished = False
        while not finished:
            ended = store.end_verification(number, whole=where is None)
            finished = ended.done
            result.gone += ended.gone
            result.quarantined = ended.quarantined or 0
            result.examples = (result.examples + (ended.examples or []))[:MOST_EXAMPLES]
    return result


def _verify_chunk(
    store: CaptureStore, number: int, chunk: Chunk, result: Verification, table: CapturedTable, capturing: "_Capturing"
) -> VerifiedRows:
    """Compare a chunk, once everything that its snapshot saw is captured."""
    capturing.capture_until(chunk.high_lsn)
    while True:
        rows = backfilled_rows(chunk, table, capturing.capture.name, capturing.generation, number, result.rows)
        verified = store.verify_rows(number, chunk.snapshot, chunk.high_lsn, rows)
        if verified.status == "stored":
            result.nameless += rows.decider_ids.count(None)
            return verified
        capturing.capture_until(chunk.high_lsn)


def _wait_for_older(
    source: psycopg.Connection, xid: int, result: Verification, on_step: Callable[[Verification], None]
) -> None:
    """Wait until the transactions that are open now have ended: their changes are invisible until then."""
    while oldest_xid(source) < xid:
        waits_for = oldest_transaction(source) or UNSEEN
        if waits_for != result.waits_for:
            result.waits_for = waits_for
            on_step(result)
        Event().wait(POLL_S)
    result.waits_for = None


def _require_condition(source: psycopg.Connection, table: CapturedTable, where: str) -> None:
    try:
        read_chunk(source, table, None, 1)
    except TableUnreadable as unreadable:
        error = unreadable.__cause__
        if not isinstance(error, psycopg.ProgrammingError | psycopg.DataError | psycopg.NotSupportedError):
            raise
        raise BadCondition(
            f"The rows of {table.name} cannot be chosen by: {where}",
            detail=str(error).strip(),
            hint="State a condition on its columns, as behind where in a query.",
        ) from error


class _Capturing:
    """Captures in this process while no other process does. A context manager.

    Args:
        dsn: The event store.
        capture: The capture.
        source: A connection to its source.
        store: The event store.
    """

    def __init__(self, dsn: str, capture: Capture, source: psycopg.Connection, store: CaptureStore) -> None:
        self.capture = capture
        self._dsn = dsn
        self._source = source
        self._store = store
        self._drain: CaptureDrain | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @property
    def generation(self) -> int:
        """The generation of the slot."""
        (info,) = self._store.capture_info(self.capture.name)
        # callers read only tables with an ended backfill
        assert info.source_generation is not None
        return info.source_generation

    def begin(self) -> None:
        """Read the tables that were not read yet, if no other process does."""
        if (
            self._claim()
            and self._drain is not None
            and self._store.capture_info(self.capture.name)[0].tables_to_backfill
        ):
            self._drain.drain(budget_s=inf, idle_s=0)

    def capture_until(self, lsn: Lsn) -> None:
        """Capture up to a position of the source's log; if another process captures, give it a moment."""
        if not self._claim() or self._drain is None:
            commit_something(self._source)
            Event().wait(POLL_S)
            return
        try:
            self._drain.catch_up(lsn)
        except LeaseLost:
            self._leave()

    def _claim(self) -> bool:
        """Return whether this process captures; start to, if no other process does."""
        if self._drain is not None:
            return True
        info = find_capture(self._store, self.capture.name)
        if info is not None and info.leased:
            return False
        # the lease lasts this long without renewal: a chunk of a table without an index on its key takes long
        owner = f"verify by process {os.getpid()}"
        drain = CaptureDrain(self._dsn, self.capture, owner, lease_s=2 * PATIENCE_S)
        try:
            self._drain = drain.__enter__()
        except CaptureInUse:
            return False
        return True

    def _leave(self) -> None:
        if self._drain is not None:
            self._drain.__exit__(None, None, None)
            self._drain = None
