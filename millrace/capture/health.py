"""The health of a capture: its slot on the source, what waits in the store, whether a run would find work."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event

import psycopg

from millrace.capture.declaration import Capture
from millrace.capture.decoding.pgoutput import Begin, Lsn, decode
from millrace.capture.source.connection import (
    connect_source,
    flush_lsn,
    oldest_transaction,
    oldest_xid,
    source_identity,
)
from millrace.capture.source.patterns import with_tables
from millrace.capture.source.probe import LOCKED
from millrace.capture.source.publication import withdrawn_tables
from millrace.capture.source.published import published_tables
from millrace.capture.source.readiness import is_one_ready
from millrace.capture.source.slot import (
    UNSEEN,
    PublicationMissing,
    SlotBusy,
    SlotLost,
    SlotSlow,
    SlotState,
    slot_limits,
    slot_state,
)
from millrace.capture.source.standbys import standby_notes
from millrace.capture.source.stream import NoStream, SlotStream
from millrace.capture.source.timelines import Timelines
from millrace.capture.store import CaptureInfo, CaptureStore, RegisteredTable, find_capture
from millrace.errors import MillraceError
from millrace.patience import BUSY_S, POLL_S
from millrace.postgres.connecting import connect

# A capture with a lease that stored changes this recently is trusted; the check does not look into its slot.
RECENT_S = 10
# How far an idle slot may lag behind, in log of other tables, until a run is worth it just to move the slot.
IDLE_LAG_BYTES = 64 * 1024 * 1024
# How long after a failed read of a table a run is worth it again.
UNREAD_AGAIN = timedelta(minutes=10)
# Above this, a look into the slot makes the source read too much WAL again. An open transaction holds the slot back.
DEAR_BYTES = 1024 * 1024 * 1024


class SourceRefuses(MillraceError):
    """The source answers with an error."""


@dataclass(frozen=True)
class CaptureHealth:
    """A capture and its slot.

    Attributes:
        info: What the store knows; None where the capture is not registered yet.
        slot: What the source knows; None where there is no slot.
        lag_bytes: How much of the source's log was not looked at yet.
        lag_s: The age of the oldest change that is not stored yet, in seconds. An upper bound if looking would cost
            too much.
        retained_bytes: How much of its log the source keeps for the slot.
        oldest_transaction: The transaction that is open on the source the longest, as text. None if nothing waits for
            it, or our role cannot see it.
        waits_to_backfill: The tables that cannot be read before that transaction ends.
        unread: Why backfills do not continue, with the remedies, by the names of their tables.
        stopped: Why declared tables are not captured, with the remedies, by their names.
        refused: Published tables of which the source refuses the application's updates or deletes.
        notes: What may remove the slot, and what would turn a takeover by a standby into a gap, a sentence each.
    """

    info: CaptureInfo | None
    slot: SlotState | None
    lag_bytes: int
    lag_s: float
    retained_bytes: int
    oldest_transaction: str | None = None
    waits_to_backfill: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def quarantined(self) -> int:
        """Changes that are not events: those with a fault, and those that wait behind them."""
        return self.info.quarantined + self.info.held if self.info else 0

    @property
    def stopped_problems(self) -> list[str]:
        """The `problems` that are about stopped tables."""
        others = self.info is not None and not self.info.open_gaps and self.info.tables > self.info.tables_stopped
        stopped = "is stopped, the others are captured" if others else "is stopped"
        return [f"table {table} {stopped}: {why}" for table, why in self.stopped.items()]

    def problems(self, capture: Capture) -> list[str]:
        """Return what an operator should know, a sentence each; none if all is well."""
        if self.info is None:
            return []
        if self.slot is not None and self.slot.is_being_made:
            return [
                f"slot {self.slot.slot} is being made, which waits for the end of {self.oldest_transaction or UNSEEN}"
            ]
        if self.info.source_generation is None:
            return []
        found = []
        remedy = f"millrace capture restart {capture.name} --reason WHY reads the tables anew"
        # the remedy is stated once: with the gap, which the next run records
        remedy_clause = "" if self.info.open_gaps else f"; {remedy}"
        if self.slot is None:
            found.append(f"there is no slot {self.info.slot} on the source{remedy_clause}")
        elif self.slot.lost:
            found.append(f"slot {self.slot.slot} is lost: {self.slot.lost}{remedy_clause}")
        elif self.slot.wal_status == "unreserved":
            found.append(f"slot {self.slot.slot} is about to be lost: the source's log has reached its limit")
        if self.info.open_gaps:
            found.append(f"changes are lost; {remedy}")
        if self.retained_bytes > capture.max_retained_bytes:
            found.append(
                f"the source keeps {self.retained_bytes:,} bytes of its log for the slot; at most"
                f" {capture.max_retained_bytes:,} are expected"
                + (f"; open the longest is {self.oldest_transaction}" if self.oldest_transaction else "")
            )
        if self.refused:
            found.append(
                f"the source refuses updates and deletes of {', '.join(self.refused)}, as long as they are published: a run of"
                " the capture stops them, and says what they lack"
            )
        found += self.stopped_problems
        found += unread_problems(self.unread)
        if self.waits_to_backfill:
            found.append(
                f"the backfill of {', '.join(self.waits_to_backfill)} waits for the end of"
                f" {self.oldest_transaction or UNSEEN}, which is older than the publication"
            )
        if self.lag_s > capture.max_lag_s:
            found.append(f"changes wait for up to {self.lag_s:.0f} s; at most {capture.max_lag_s} are expected")
        return found


def capture_health(dsn: str, capture: Capture) -> CaptureHealth:
    """Look at a capture in the store and on its source.

    Raises:
        Unreachable: The source does not answer, or its address is not set.
        SourceRefuses: The source does not let our role look.
    """
    with connect(dsn) as connection:
        store = CaptureStore(connection)
        info = find_capture(store, capture.name)
        tables = (
            store.captured_tables(capture.name) if info and (info.tables_to_backfill or info.tables_stopped) else []
        )
    if info is None:
        return CaptureHealth(None, None, 0, 0.0, 0)
    with _source_of(capture) as source:
        slot = slot_state(source, info.slot)
        notes = (*slot_limits(source), *standby_notes(source, slot))
        refused = tuple(sorted(published_tables(source, info.publication).refused))
        flushed, now = flush_lsn(source)
        oldest_open = oldest_xid(source)
        # these may not be read while a transaction is open that is older than their publication
        waiting = tuple(
            table.name
            for table in tables
            if table.backfill_generation is None and not table.rows_read
            if table.published_xid is not None and oldest_open < table.published_xid
        )
        retains = bool(slot and (slot.retained_bytes or 0) > capture.max_retained_bytes)
        making = slot is not None and slot.is_being_made
        transaction = oldest_transaction(source) if waiting or retains or making else None
        oldest = None if slot is None or slot.lost or making else _oldest(source, info, slot, flushed, now)
    return CaptureHealth(
        info,
        slot,
        slot.lag_bytes or 0 if slot else 0,
        # by the source's clock; a stored change becomes an event moments later
        max(0.0, (now - oldest).total_seconds()) if oldest else 0.0,
        slot.retained_bytes or 0 if slot else 0,
        transaction,
        waiting,
        unread_tables(tables),
        {table.name: table.stopped_reason for table in tables if table.stopped_reason is not None},
        refused,
        notes,
    )


def unread_tables(tables: Iterable[RegisteredTable]) -> dict[str, str]:
    """Return why backfills do not continue, by the names of their tables."""
    return {table.name: table.unread_reason for table in tables if table.unread_reason is not None}


def unread_problems(unread: Mapping[str, str]) -> list[str]:
    """Return the problems of these tables for an operator, a sentence each."""
    return [
        f"the backfill of {table} does not go on, its changes and the others are captured: {why}"
        for table, why in unread.items()
    ]


def _oldest(
    source: psycopg.Connection, info: CaptureInfo, slot: SlotState, flushed: Lsn, now: datetime
) -> datetime | None:
    """Return about when the oldest change that is not stored was committed; None if there is none, or if unknown."""
    if info.lease_owner and info.stored_at and (now - info.stored_at).total_seconds() < RECENT_S:
        # a look would block the slot, which the lease's owner is about to read
        return info.stored_at
    if (slot.retained_bytes or 0) > DEAR_BYTES and slot.active_pid is None:
        return info.stored_at if slot.lag_bytes else None
    if slot.active_pid is not None:
        # the process that reads the slot passes the position within a few seconds if it is idle
        until = time.monotonic() + BUSY_S
        while (state := slot_state(source, slot.slot)) and state.confirmed_flush_lsn is not None:
            if state.confirmed_flush_lsn >= flushed:
                return None
            if time.monotonic() >= until:
                break
            Event().wait(POLL_S)
        return info.stored_at
    try:
        return oldest_change(source, info)
    except SlotBusy:
        # a process captures at this moment, or the source takes long to look
        return info.stored_at


def oldest_change(source: psycopg.Connection, info: CaptureInfo) -> datetime | None:
    """Return the commit time of the oldest transaction that the slot holds; None if it holds none.

    Raises:
        SlotBusy: Another session reads the slot for longer than a few seconds, or the source takes long to look.
        SlotLost: The slot is gone, or is no longer good.
        PublicationMissing: There is no publication.
        NoStream: A replication connection cannot be had.
    """
    flushed, _ = flush_lsn(source)
    until = time.monotonic() + BUSY_S
    with SlotStream(source, info.slot, info.publication, converted=False) as stream:
        while stream.passed_lsn < flushed:
            message = stream.read(POLL_S)
            if message is not None and isinstance(begin := decode(message), Begin):
                return begin.committed_at
            if time.monotonic() >= until:
                raise SlotSlow(
                    f"The source did not look into slot {info.slot} within {BUSY_S:g} s.",
                    hint="It decodes a large part of its log, or waits for a standby that synchronized_standby_slots names.",
                )
    return None


def has_work(dsn: str, capture: Capture) -> bool:
    """Return whether a run of the capture would find work.

    Raises:
        Unreachable: The source does not answer, or its address is not set.
        SourceRefuses: The source does not let our role look.
        SlotBusy: Another session reads the slot for longer than a few seconds.
    """
    with connect(dsn) as connection:
        store = CaptureStore(connection)
        info = find_capture(store, capture.name)
        tables = store.captured_tables(capture.name)
    with _source_of(capture) as source:
        # whether a backfill may continue; tables that could not be read are retried only now and then
        to_read = any(
            table.unread_at is None or datetime.now(UTC) - table.unread_at >= UNREAD_AGAIN
            for table in tables
            if table.backfill_generation is None and table.stopped_reason is None
        )
        if info is None or info.source_generation is None or info.unemitted or to_read:
            return True
        # a run compares a server that took over with what is stored
        took_over = not info.timelines or Timelines.parse(info.timelines).present != source_identity(source).timeline
        if (
            took_over
            or _other_tables(source, capture, tables, info.publication)
            or published_tables(source, info.publication).refused
        ):
            return True
        slot = slot_state(source, info.slot)
        # a run reports what is wrong with the slot, and records that changes are lost
        if slot is None or slot.lost or (slot.lag_bytes or 0) > IDLE_LAG_BYTES:
            return True
        if (slot.retained_bytes or 0) > DEAR_BYTES:
            return bool(slot.lag_bytes)
        try:
            return oldest_change(source, info) is not None
        except (SlotLost, PublicationMissing, SlotSlow):
            # a run repairs it, records the gap, or has more patience
            return True


def _other_tables(
    source: psycopg.Connection, capture: Capture, registered: Sequence[RegisteredTable], publication: str
) -> bool:
    """Return whether a run would capture other tables than the last one: of a pattern, or one that was stopped."""
    declared = with_tables(source, capture)
    if capture.patterns and {table.name for table in declared.tables} != {table.name for table in registered}:
        return True
    stopped = {table.name: table.stopped_reason for table in registered if table.stopped_reason is not None}
    published = [table.name for table in registered if table.published_xid is not None]
    stopped |= dict.fromkeys(withdrawn_tables(source, publication, published), "withdrawn")
    return bool(stopped) and (LOCKED in stopped.values() or is_one_ready(source, declared, stopped))


@contextmanager
def _source_of(capture: Capture) -> Iterator[psycopg.Connection]:
    """Connect to the source; turn Postgres' errors into `SourceRefuses`."""
    try:
        with connect_source(capture.source()) as source:
            yield source
    except (psycopg.Error, NoStream) as error:
        raise SourceRefuses(
            f"The source of capture {capture.name} does not tell how it is.",
            detail=str(error).strip(),
            hint=f"Run: millrace capture check {capture.name}",
        ) from error
