"""The store's functions for change capture: one method per SQL function, same name, same argument order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import ClassVar

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.json import Jsonb

from millrace.capture.backfilled_rows import BackfilledRows
from millrace.capture.copy_text import COPIED_COLUMNS, changes_json, copied_lines
from millrace.capture.declaration import table_name
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.quarantined_change import QuarantinedChange
from millrace.errors import UnknownCapture
from millrace.event_store.refusals import refusals
from millrace.event_store.sealing import TextSealing
from millrace.event_store.sql_functions import SqlFunctions
from millrace.personal.marked_text import MARK


@dataclass(frozen=True)
class TableRegistration:
    """A table of a capture as it is registered; another fingerprint is another declaration.

    `key_columns` identify a row: empty if no columns do, None while that is unknown. `stopped` says why it cannot be
    captured now; None if it can.
    """

    schema: str
    table: str
    decider: str
    key_columns: Sequence[str] | None
    fingerprint: str
    stopped: str | None = None


@dataclass(frozen=True)
class CaptureLease:
    """A lease of a capture, and the capture's progress; generation and positions are None while it has no slot.

    While `gap` is true, changes are lost: a new slot and `begin_generation` are due.
    """

    capture: str
    lease_token: int
    leased_until: datetime
    source_generation: int | None
    system_identifier: str | None
    database: str | None
    slot: str
    publication: str
    stored_lsn: Lsn | None
    stored_at: datetime | None
    emitted_lsn: Lsn | None
    emitted_idx: int | None
    gap: bool
    timelines: str | None


@dataclass(frozen=True)
class RegisteredTable:
    """A table of a capture, and how far its backfill is: done when `backfill_generation` is not None.

    No two backfills have the same `backfill_offset`: the event ids of a backfill's rows are made with it. While
    `published_xid` is None, no row may be read; when `rows_read` is true, only `finish_backfill` is left. `leaves` are
    the ids of its partitions at the last look, None before it. `stopped_reason` says since `stopped_at` why it is not
    captured, None while it is. `unread_reason` says why its rows could not be read at `unread_at`, None if they can.
    """

    schema_name: str
    table_name: str
    decider: str
    key_columns: list[str] | None
    fingerprint: str
    published_xid: int | None
    backfill_offset: int
    backfill_key: str | None
    backfilled_rows: int
    rows_read: bool
    backfill_generation: int | None
    backfilled_at: datetime | None
    leaves: list[int] | None
    stopped_reason: str | None
    stopped_at: datetime | None
    unread_reason: str | None
    unread_at: datetime | None

    @property
    def name(self) -> str:
        """The table as `declaration.table_name` writes it."""
        return table_name(self.schema_name, self.table_name)


@dataclass(frozen=True)
class Emitted:
    """How many stored changes became events (`emitted`), could not (`quarantined`), or wait behind those (`held`).

    If `behind` is true, more changes are stored: call again.
    """

    emitted: int
    quarantined: int
    held: int
    behind: bool


@dataclass(frozen=True)
class EmittedRows:
    """The outcome of a chunk.

    `status` is 'stored', 'behind' (nothing was stored: emit changes first, then try again) or 'unpublished' (nothing
    was stored: the chunk is older than the table's publication, read it again). `unchanged` rows match their streams.
    """

    status: str
    appended: int
    left_out: int
    held: int
    unchanged: int = 0


@dataclass(frozen=True)
class Requeued:
    """How many quarantined changes became events, and how many still wait."""

    requeued: int
    waiting: int


@dataclass(frozen=True)
class CaptureGap:
    """A gap: changes of the source are lost. `resolved_by_generation` is None until a slot begins with a backfill."""

    gap_id: int
    capture: str
    source_generation: int | None
    from_lsn: Lsn | None
    to_lsn: Lsn | None
    reason: str
    detected_at: datetime
    resolved_by_generation: int | None


@dataclass(frozen=True)
class CaptureInfo:
    """A capture as operators see it; `unemitted` counts up to ten thousand at most."""

    capture: str
    source_generation: int | None
    slot: str
    publication: str
    stored_lsn: Lsn | None
    stored_at: datetime | None
    emitted_lsn: Lsn | None
    unemitted: int
    quarantined: int
    held: int
    open_gaps: int
    gaps: int
    tables: int
    tables_stopped: int
    tables_to_backfill: int
    backfilled_rows: int
    lease_owner: str | None
    leased_until: datetime | None
    leased: bool
    timelines: str | None


@dataclass(frozen=True)
class VerifiedRows:
    """How a chunk compares with its streams.

    `status` is 'stored', 'behind' (emit changes first, then compare again) or 'unpublished' (read the chunk again). Of
    the rows that differ, `missing` have no live stream; `examples` are up to twenty of their keys. `held` rows wait in
    the quarantine, or cannot be events; `left_out` have newer changes.
    """

    status: str
    differing: int | None
    missing: int | None
    unchanged: int | None
    held: int | None
    left_out: int | None
    examples: list[str] | None


@dataclass(frozen=True)
class EndedVerification:
    """How many streams belong to rows that are gone, and up to twenty of their keys; call again until `done`.

    At the end, `quarantined` changes of the table wait in the quarantine.
    """

    done: bool
    gone: int
    quarantined: int | None
    examples: list[str] | None


class _LsnLoader(Loader):
    def load(self, data: Buffer) -> Lsn:
        return Lsn.parse(bytes(data).decode())


class CaptureStore(TextSealing):
    """The functions for change capture. Every method raises the `MillraceError` of its SQL function."""

    loaders: ClassVar[Mapping[str, type[Loader]]] = {**SqlFunctions.loaders, "pg_lsn": _LsnLoader}

    def register_capture(self, capture: str, slot: str, publication: str, tables: Iterable[TableRegistration]) -> bool:
        """Register a capture with its tables, or change it; return whether anything changed."""
        return self._value(
            bool,
            "select event_store_platform.register_capture(%s, %s, %s, %s)",
            (capture, slot, publication, Jsonb([vars(table) for table in tables])),
        )

    def claim_capture(self, capture: str, owner: str, lease_s: int = 30) -> CaptureLease:
        """Lease a capture and return where it stands; the same owner gets a new token."""
        return self._one(
            CaptureLease, "select * from event_store_platform.claim_capture(%s, %s, %s)", (capture, owner, lease_s)
        )

    def extend_capture(self, capture: str, lease_token: int, lease_s: int = 30) -> datetime:
        """Extend the lease; return until when it lasts."""
        return self._value(
            datetime, "select event_store_platform.extend_capture(%s, %s, %s)", (capture, lease_token, lease_s)
        )

    def release_capture(self, capture: str, lease_token: int) -> bool:
        """Release the lease; return whether it was still held."""
        return self._value(bool, "select event_store_platform.release_capture(%s, %s)", (capture, lease_token))

    def join_capture(self, capture: str, lease_token: int) -> None:
        """Register this session as one of the lease's owner: the next owner of the capture ends it."""
        self._value(str, "select event_store_platform.join_capture(%s, %s)", (capture, lease_token))

    def end_capture_sessions(self, capture: str, lease_token: int) -> int:
        """End the sessions of former owners; return how many."""
        return self._value(int, "select event_store_platform.end_capture_sessions(%s, %s)", (capture, lease_token))

    def begin_generation(
        self,
        capture: str,
        lease_token: int,
        system_identifier: str,
        database: str,
        start_lsn: Lsn,
        published_xid: int,
        timelines: str,
    ) -> int:
        """Begin to read a fresh slot, with a backfill of every table; return the generation."""
        arguments = (capture, lease_token, system_identifier, database, str(start_lsn), str(published_xid), timelines)
        query = "select event_store_platform.begin_generation(%s, %s, %s, %s, %s::pg_lsn, %s::xid8, %s)"
        return self._value(int, query, arguments)

    def follow_timelines(self, capture: str, lease_token: int, timelines: str, common_lsn: Lsn | None) -> Lsn | None:
        """Record the timelines that the source's log came through; return up to where it is stored.

        None, and no change, if stored changes came after `common_lsn`: the source does not have them.
        """
        arguments = (capture, lease_token, timelines, None if common_lsn is None else str(common_lsn))
        query = (
            "select lsn from event_store_platform.follow_timelines(%s, %s, %s, %s::pg_lsn) lsn where lsn is not null"
        )
        return next(iter(self._values(Lsn, query, arguments)), None)

    def publish_tables(self, capture: str, lease_token: int, published_xid: int) -> int:
        """Record since which transaction the registered tables are published; return how many may be backfilled now."""
        arguments = (capture, lease_token, str(published_xid))
        return self._value(int, "select event_store_platform.publish_tables(%s, %s, %s::xid8)", arguments)

    def seal_changes(self, changes: Iterable[Change]) -> None:
        """Seal the personal values of changes; raises as `seal_texts`."""
        by_decider = defaultdict[str, list[Change]](list)
        for change in changes:
            if change.data and MARK in change.data:
                by_decider[change.decider].append(change)
        for decider, marked in by_decider.items():
            sealed = self._sealed_rows(decider, [each.decider_id for each in marked], [each.data for each in marked])
            for change, data in zip(marked, sealed, strict=True):
                change.data = data

    def _sealed_rows(
        self, decider: str, decider_ids: Iterable[str | None], data: Sequence[str | None]
    ) -> list[str | None]:
        places = [f"{decider}|{decider_id}|".encode() for decider_id in decider_ids]
        return self.seal_texts(decider, data, places)

    def _read_rows(self, rows: BackfilledRows) -> tuple[object, ...]:
        """Return rows as the arguments of the functions that compare rows with their streams.

        The arrays are sent in binary: as text, psycopg would check each character.
        """
        data = self._sealed_rows(rows.decider, rows.decider_ids, rows.data)
        return list(rows.decider_ids), list(rows.event_ids), rows.command_id, data, list(rows.faults)

    def copy_changes(self, source_generation: int, changes: Iterable[Change]) -> int:
        """Copy changes into `wal_events`, in a transaction that ends with `store_changes`; return how many."""
        number = 0
        lines = copied_lines(source_generation, changes)
        with (
            refusals(),
            self.connection.cursor() as cursor,
            cursor.copy(f"copy event_store.wal_events ({COPIED_COLUMNS}) from stdin".encode()) as copy,
        ):
            # the rest of a write waits for the next one: with few lines in each, the server works while we decode
            while batch := list(islice(lines, 50)):
                copy.write("".join(batch))
                number += len(batch)
        return number

    def store_changes(self, capture: str, lease_token: int, to_lsn: Lsn, stored_at: datetime) -> int:
        """Record that everything below a position is stored; return how many changes are new.

        It is the last statement of the transaction that copied them.
        """
        return self._value(
            int,
            "select event_store_platform.store_changes(%s, %s, %s::pg_lsn, %s)",
            (capture, lease_token, str(to_lsn), stored_at),
        )

    def compare_changes(self, capture: str, changes: Iterable[Change]) -> int:
        """Compare replayed changes with what is stored; return how many were compared."""
        return self._value(
            int,
            "select event_store_platform.compare_changes(%s, %s::jsonb)",
            (capture, changes_json(changes)),
        )

    def emit_changes(self, capture: str, lease_token: int, limit: int = 10_000) -> Emitted:
        """Append about `limit` of the next stored changes as events, in order."""
        return self._one(
            Emitted, "select * from event_store_platform.emit_changes(%s, %s, %s)", (capture, lease_token, limit)
        )

    def emit_backfill(
        self,
        capture: str,
        lease_token: int,
        schema: str,
        table: str,
        snapshot: str,
        high_lsn: Lsn,
        rows: BackfilledRows,
        last_key: str | None,
        *,
        done: bool,
    ) -> EmittedRows:
        """Append a chunk of a backfill as events, and store the progress of the backfill."""
        return self._one(
            EmittedRows,
            "select * from event_store_platform.emit_backfill(%s, %s, %s, %s, %s::pg_snapshot, %s::pg_lsn,"
            " %b::text[], %b::text[]::uuid[], %s::uuid, %b::text[], %b::text[], %s, %s)",
            (capture, lease_token, schema, table, snapshot, str(high_lsn), *self._read_rows(rows), last_key, done),
        )

    def finish_backfill(self, capture: str, lease_token: int, schema: str, table: str, limit: int = 10_000) -> bool:
        """End a backfill that has read every row: delete the streams of rows that are gone; return whether it is done.

        One call checks up to `limit` streams.
        """
        return self._value(
            bool,
            "select event_store_platform.finish_backfill(%s, %s, %s, %s, %s)",
            (capture, lease_token, schema, table, limit),
        )

    def begin_verification(
        self, capture: str, schema: str, table: str, published_xid: int, reason: str | None, *, repairs: bool
    ) -> int:
        """Begin to compare a table with its streams; return the verification's number."""
        return self._value(
            int,
            "select event_store_platform.begin_verification(%s, %s, %s, %s::xid8, %s, %s)",
            (capture, schema, table, str(published_xid), repairs, reason),
        )

    def verify_rows(self, reading: int, snapshot: str, high_lsn: Lsn, rows: BackfilledRows) -> VerifiedRows:
        """Compare rows with their streams; a repair appends those that differ."""
        return self._one(
            VerifiedRows,
            "select * from event_store_platform.verify_rows(%s, %s::pg_snapshot, %s::pg_lsn,"
            " %b::text[], %b::text[]::uuid[], %s::uuid, %b::text[], %b::text[])",
            (reading, snapshot, str(high_lsn), *self._read_rows(rows)),
        )

    def end_verification(self, reading: int, *, whole: bool, limit: int = 5_000) -> EndedVerification:
        """End a verification, `limit` streams a call; a repair ends the streams of rows that are gone."""
        return self._one(
            EndedVerification,
            "select * from event_store_platform.end_verification(%s, %s, %s)",
            (reading, whole, limit),
        )

    def hold_backfill(self, capture: str, lease_token: int, schema: str, table: str, reason: str | None) -> bool:
        """Record why the rows of a table cannot be read now, None if they can; return whether that is new."""
        return self._value(
            bool,
            "select event_store_platform.hold_backfill(%s, %s, %s, %s, %s)",
            (capture, lease_token, schema, table, reason),
        )

    def requeue_changes(
        self, capture: str, decider: str | None = None, decider_id: str | None = None, reason: str | None = None
    ) -> Requeued:
        """Turn quarantined changes into events, each stream up to its first fault."""
        return self._one(
            Requeued,
            "select * from event_store_platform.requeue_changes(%s, %s, %s, %s)",
            (capture, decider, decider_id, reason),
        )

    def repair_change(self, quarantine_id: int, decider_id: str, data: str) -> None:
        """Give a quarantined change its key and its data, both JSON text; it becomes an event when it is requeued."""
        self._value(
            str, "select event_store_platform.repair_change(%s, %s, %s::jsonb)", (quarantine_id, decider_id, data)
        )

    def discard_change(self, quarantine_id: int, reason: str) -> None:
        """Discard a quarantined change."""
        self._value(str, "select event_store_platform.discard_change(%s, %s)", (quarantine_id, reason))

    def record_gap(self, capture: str, from_lsn: Lsn | None, to_lsn: Lsn | None, reason: str) -> int:
        """Record that changes are lost, once; return the open gap."""
        return self._value(
            int,
            "select event_store_platform.record_gap(%s, %s::pg_lsn, %s::pg_lsn, %s)",
            (capture, from_lsn and str(from_lsn), to_lsn and str(to_lsn), reason),
        )

    def restart_capture(self, capture: str, reason: str) -> int:
        """Request a new slot and a backfill of all tables; return the gap that this opens."""
        return self._value(int, "select event_store_platform.restart_capture(%s, %s)", (capture, reason))

    def capture_info(self, capture: str | None = None) -> list[CaptureInfo]:
        """Return one row per capture: its progress, what waits, and the owner of its lease."""
        return self._all(CaptureInfo, "select * from event_store_platform.capture_info(%s)", (capture,))

    def purge_wal_events(self, capture: str, before: datetime, limit: int = 10_000) -> int:
        """Remove stored changes that are emitted and older; return how many."""
        return self._value(int, "select event_store_platform.purge_wal_events(%s, %s, %s)", (capture, before, limit))

    def unregister_capture(self, capture: str, reason: str | None = None) -> None:
        """Remove a capture and everything of it except its events."""
        self._value(str, "select event_store_platform.unregister_capture(%s, %s)", (capture, reason))

    def captured_tables(self, capture: str) -> list[RegisteredTable]:
        """Return the tables of a capture as they are registered, and how far their backfills are."""
        return self._all(
            RegisteredTable,
            """
            select
              schema_name, table_name, decider, key_columns, fingerprint, published_xid::text::bigint as published_xid,
              backfill_offset, backfill_key, backfilled_rows, rows_read, backfill_generation, backfilled_at, leaves,
              stopped_reason, stopped_at, unread_reason, unread_at
            from event_store_platform.captured_tables(%s)
            """,
            (capture,),
        )

    def quarantined_changes(self, capture: str, after: int = 0, limit: int = 100) -> list[QuarantinedChange]:
        """Return quarantined changes after a `quarantine_id`, in order."""
        return self._all(
            QuarantinedChange,
            """
            select
              quarantine_id, capture, source_generation, commit_lsn, commit_idx, xid::text::bigint as xid, committed_at, decider,
              decider_id, action, event_id, command_id, data, fault, raw, relation, quarantined_at
            from event_store_platform.quarantined_changes(%s, %s, %s)
            """,
            (capture, after, limit),
        )

    def capture_gaps(self, capture: str) -> list[CaptureGap]:
        """Return the gaps of a capture, the newest first."""
        return self._all(CaptureGap, "select * from event_store_platform.capture_gaps(%s)", (capture,))


def find_capture(store: CaptureStore, capture: str) -> CaptureInfo | None:
    """Return the store's information on a capture; None if it is not registered yet."""
    try:
        (info,) = store.capture_info(capture)
    except UnknownCapture:
        return None
    return info
