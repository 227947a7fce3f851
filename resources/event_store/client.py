"""The event store's client: one method per SQL function, same name, same argument order.

Belongs here: calls and the shapes they return. Not here: behaviour; that is in `sql/functions`, for clients in any language.

An `EventStore` wraps a connection of the caller's, who owns its transactions: with `autocommit` each call is one
transaction, otherwise the calls join the caller's.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.abc import Buffer
from psycopg.rows import class_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import Jsonb

from millrace.resources.event_store.refusals import refusals

Json = Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None
Row = TypeVar("Row")


@dataclass(frozen=True)
class RecordedEvent:
    """An event as it is stored."""

    event: str
    event_id: UUID
    event_version: int
    decider: str
    decider_id: str
    data: Any
    command_id: UUID
    previous_id: UUID | None
    final: bool
    created_at: datetime
    offset: int


@dataclass(frozen=True)
class StreamHead:
    """Where a stream stands: its last event, how many events it had, and whether that closed it."""

    last_event_id: UUID
    last_offset: int
    version: int
    final: bool


@dataclass(frozen=True)
class LeasedEvent(RecordedEvent):
    """An event that a rows view delivered, the token that fences its lease, and which delivery it is, from 1."""

    lease_token: int
    attempt: int


@dataclass(frozen=True)
class LogEvent(RecordedEvent):
    """An event at its position in a log partition."""

    position: int


@dataclass(frozen=True)
class NewEvent:
    """An event to append at the end of its stream, whatever that is."""

    decider: str
    decider_id: str
    event: str
    event_id: UUID
    data: Json
    command_id: UUID
    event_version: int = 1
    final: bool = False


@dataclass(frozen=True)
class ChainedEvent(NewEvent):
    """An event to append after exactly `previous_id`, None for the first of its stream: optimistic locking."""

    previous_id: UUID | None = None


@dataclass(frozen=True)
class AppendedEvent:
    """Where an event of a batch is stored; `appended` is false if it was stored before."""

    event_id: UUID
    previous_id: UUID | None
    offset: int
    appended: bool


@dataclass(frozen=True)
class DeciderEvent:
    """An event that a decider may append."""

    decider: str
    event: str
    event_version: int
    description: str


@dataclass(frozen=True)
class View:
    """A named consumer of the log and its settings."""

    view: str
    start_at: datetime
    lock_timeout_s: int
    pooling_delay_s: int | None
    edge_function_url: str | None
    created_at: datetime
    updated_at: datetime
    mode: str
    deciders: list[str] | None
    events: list[str] | None
    enabled: bool
    max_attempts: int


@dataclass(frozen=True)
class Lock:
    """A stream of a rows view that has something to deliver; `offset` is the stream's head."""

    view: str
    decider_id: str
    offset: int
    last_offset: int
    locked_until: datetime
    offset_final: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class Lease:
    """A claimed range [from_position, to_position) of one log partition and the token that fences it."""

    partition: int
    from_position: int
    to_position: int
    lease_token: int


@dataclass(frozen=True)
class StreamFailure:
    """A stream of a batch that failed, and why; if `offset` is that of the event that failed, what came before it did not."""

    decider: str
    decider_id: str
    error: str
    offset: int | None = None


@dataclass(frozen=True)
class LockedPartition:
    """A leased log partition where streams have locks, and how many of these the lease tries again."""

    partition: int
    retries: int


@dataclass(frozen=True)
class DeadLetter:
    """A parked stream: the event that failed and its offset, why, and how many events of the stream wait, that one included."""

    view: str
    decider: str
    decider_id: str
    partition: int
    event: str | None
    offset: int | None
    attempts: int
    last_error: str
    parked_at: datetime
    waiting: int


@dataclass(frozen=True)
class Seek:
    """Where a view stood in one log partition, where it stands now, and what that removed."""

    partition: int
    from_position: int
    to_position: int
    earliest_position: int
    high_water_mark: int
    locks_removed: int
    dead_letters_removed: int
    note: str | None


@dataclass(frozen=True)
class AvailableRange:
    """The positions [earliest_position, high_water_mark) that a log partition holds."""

    partition: int
    earliest_position: int
    high_water_mark: int
    events: int


@dataclass(frozen=True)
class PartitionInfo:
    """A log partition: its marks, its size, when something last happened, who consumes it."""

    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    events: int
    bytes: int
    last_activity: datetime | None
    active_views: int


@dataclass(frozen=True)
class ViewInfo:
    """A view: how far it is behind in positions, what its streams do, who consumes it."""

    view: str
    mode: str
    enabled: bool
    lag: int
    in_flight: int
    waiting: int
    dead_letters: int
    leased_partitions: int
    consumers: int


@dataclass(frozen=True)
class PartitionLag:
    """How far a view is behind in one log partition; ages in seconds."""

    partition: int
    position: int
    high_water_mark: int
    lag: int
    pending: int
    pending_age_s: float | None


@dataclass(frozen=True)
class ViewPoll:
    """What a poller knows of a view; `due` is how much it would be given now: positions, and streams with a lock."""

    view: str
    mode: str
    enabled: bool
    pooling_delay_s: int | None
    edge_function_url: str | None
    due: int
    consumers: int


@dataclass(frozen=True)
class AuditEntry:
    """What an operator did, who and why; `detail` is what exactly was changed, and from what."""

    audit_id: int
    done_at: datetime
    done_by: str
    operation: str
    view: str | None
    reason: str | None
    detail: Any


@dataclass(frozen=True)
class ArchiveState:
    """A listed file of the archive, or a log partition without one (`path` is None), beside the marks of the log."""

    archive_id: UUID
    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    from_position: int | None
    to_position: int | None
    path: str | None
    bytes: int | None
    checksum: str | None


@dataclass(frozen=True)
class BackupCut:
    """Whose a backup is, and the last offset and lease token that were given out."""

    archive_id: UUID
    last_offset: int
    lease_token: int


class EventStore:
    """The event store behind one connection. Every method raises the `MillraceError` of its SQL function."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        connection.adapters.register_loader("timestamptz", _InfinityLoader)

    def register_decider_event(
        self, decider: str, event: str, description: str, event_version: int = 1
    ) -> DeciderEvent:
        """Register an event that a decider may append; again: no-op."""
        return self._one(
            DeciderEvent,
            "select * from event_store.register_decider_event(%s, %s, %s, %s)",
            (decider, event, description, event_version),
        )

    def append_event(
        self,
        event: str,
        event_id: UUID,
        decider: str,
        decider_id: str | UUID,
        data: Json,
        command_id: UUID,
        previous_id: UUID | None,
        event_version: int = 1,
        *,
        final: bool = False,
    ) -> RecordedEvent:
        """Append one event after `previous_id` and return it; a retry returns the stored one."""
        return self._one(
            RecordedEvent,
            "select * from event_store.append_event(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (event, event_id, decider, decider_id, Jsonb(data), command_id, previous_id, event_version, final),
        )

    def append_events(self, events: Iterable[NewEvent]) -> list[AppendedEvent]:
        """Append a batch over any streams, all or nothing, and return one row per event in order."""
        return self._all(
            AppendedEvent,
            "select * from event_store.append_events(%s::jsonb)",
            (events_json(events),),
        )

    def get_events(self, decider_id: str | UUID, decider: str) -> list[RecordedEvent]:
        """Return the events of one stream in order."""
        return self._all(RecordedEvent, "select * from event_store.get_events(%s, %s)", (decider_id, decider))

    def get_last_event(self, decider_id: str | UUID, decider: str) -> RecordedEvent | None:
        """Return the last event of one stream, None for an unknown stream, or if that event was purged."""
        rows = self._all(RecordedEvent, "select * from event_store.get_last_event(%s, %s)", (decider_id, decider))
        return rows[0] if rows else None

    def stream_head(self, decider_id: str | UUID, decider: str) -> StreamHead | None:
        """Return where one stream stands, also after its events were purged; None for a stream without events."""
        rows = self._all(StreamHead, "select * from event_store.stream_head(%s, %s)", (decider_id, decider))
        return rows[0] if rows else None

    def sequence_events(self) -> int:
        """Give committed events their positions; return how many, 0 if another session is at it."""
        return self._value(int, "select event_store.sequence_events()")

    def register_view(
        self,
        view: str,
        start_at: datetime | str | None = None,
        lock_timeout_s: int = 300,
        pooling_delay_s: int | None = None,
        edge_function_url: str | None = None,
        *,
        mode: str | None = None,
        deciders: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
        max_attempts: int = 5,
    ) -> View:
        """Register a view or change its settings, all of them, never its progress.

        Args:
            view: Its name.
            start_at: From when on it wants events; '-infinity' for all, None for now. Counts once.
            lock_timeout_s: How long a lease lasts unless a call says otherwise, in seconds.
            pooling_delay_s: The wait between two polls that found nothing, in seconds.
            edge_function_url: Where events are pushed to.
            mode: 'rows' or 'bulk'; None for 'rows', or what it is.
            deciders: The deciders it wants, None for all.
            events: The events it wants, None for all.
            max_attempts: After how many failed attempts a stream is parked.
        """
        return self._one(
            View,
            "select * from event_store.register_view(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                view,
                start_at,
                lock_timeout_s,
                pooling_delay_s,
                edge_function_url,
                mode,
                list(deciders) if deciders is not None else None,
                list(events) if events is not None else None,
                max_attempts,
            ),
        )

    def enable_view(self, view: str, enabled: bool = True, *, reason: str | None = None) -> View:
        """Let a view be given events, or no more."""
        return self._one(View, "select * from event_store.enable_view(%s, %s, %s)", (view, enabled, reason))

    def unregister_view(self, view: str, reason: str | None = None) -> None:
        """Remove a view with its progress, its locks and its dead letters."""
        self._value(str, "select event_store.unregister_view(%s, %s)", (view, reason))

    def has_caught_up(self, view: str, other: str) -> bool:
        """Whether a view stands nowhere behind another one, which stays where it is until the transaction ends."""
        return self._value(bool, "select event_store.has_caught_up(%s, %s)", (view, other))

    def dispatch_events(self, view: str, window: int = 5000, max_waiting: int = 2000) -> int:
        """Make locks for streams with new events, up to so many positions of each log partition; return how many it passed.

        None while `max_waiting` streams wait for a consumer already.
        """
        return self._value(int, "select event_store.dispatch_events(%s, %s, %s)", (view, window, max_waiting))

    def stream_events(self, view_name: str, limit: int = 1, seconds: int | None = None) -> list[RecordedEvent]:
        """Lease free streams of a rows view and return the next event of each."""
        return self._all(
            RecordedEvent,
            "select * from event_store.stream_events(%s, %s, %s)",
            (view_name, limit, seconds),
        )

    def lease_events(self, view: str, limit: int = 1, seconds: int | None = None) -> list[LeasedEvent]:
        """Do as `stream_events`, and return with each event the token that fences its lease."""
        return self._all(LeasedEvent, "select * from event_store.lease_events(%s, %s, %s)", (view, limit, seconds))

    def ack_event(self, view: str, decider_id: str | UUID, offset: int, lease_token: int | None = None) -> list[Lock]:
        """Acknowledge the event in flight and free its stream."""
        return self._all(
            Lock, "select * from event_store.ack_event(%s, %s, %s, %s)", (view, decider_id, offset, lease_token)
        )

    def ack_events(self, view: str, offsets: Sequence[int], lease_tokens: Sequence[int] | None = None) -> set[int]:
        """Acknowledge many events; return the offsets that were acknowledged, the others are delivered again."""
        with refusals():
            rows = self.connection.execute(
                "select * from event_store.ack_events(%s, %s, %s)",
                (view, list(offsets), list(lease_tokens) if lease_tokens is not None else None),
            ).fetchall()
        return {offset for (offset,) in rows}

    def nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Give back the event in flight; it is delivered again at once. `error` says why, for operators."""
        return self._all(
            Lock,
            "select * from event_store.nack_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, lease_token, error),
        )

    def schedule_nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        milliseconds: int,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Give back the event in flight; it is delivered again after so many milliseconds. `error` says why."""
        return self._all(
            Lock,
            "select * from event_store.schedule_nack_event(%s, %s, %s, %s, %s, %s)",
            (view, decider_id, milliseconds, offset, lease_token, error),
        )

    def fail_event(
        self, view: str, decider_id: str | UUID, offset: int, error: str, lease_token: int | None = None
    ) -> list[Lock]:
        """Say that the event in flight failed: its stream is retried, later each time, and then parked."""
        return self._all(
            Lock,
            "select * from event_store.fail_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, error, lease_token),
        )

    def extend_lock(
        self,
        view: str,
        decider_id: str | UUID,
        offset: int,
        seconds: int | None = None,
        lease_token: int | None = None,
    ) -> list[Lock]:
        """Let the lock of the event in flight last so many seconds from now."""
        return self._all(
            Lock,
            "select * from event_store.extend_lock(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, seconds, lease_token),
        )

    def dead_letters(self, view: str | None = None) -> list[DeadLetter]:
        """Return the parked streams of a view, None for all views."""
        return self._all(DeadLetter, "select * from event_store.dead_letters(%s)", (view,))

    def retry_dead_letters(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """Let parked streams be tried again: all of a view, of a decider, or one; return how many."""
        return self._value(
            int, "select event_store.retry_dead_letters(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    def discard_dead_letter(
        self, view: str, decider: str, decider_id: str, reason: str, offset: int | None = None
    ) -> RecordedEvent | None:
        """Give up the event that a parked stream failed at and return it, None if the view wants none any more."""
        rows = self._all(
            RecordedEvent,
            "select * from event_store.discard_dead_letter(%s, %s, %s, %s, %s)",
            (view, decider, decider_id, reason, offset),
        )
        return rows[0] if rows else None

    def seek_view(
        self,
        view: str,
        kind: str,
        position: int | None = None,
        timestamp: datetime | str | None = None,
        partition: int | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> list[Seek]:
        """Move a view to another position, in one log partition or in all; the kinds are in `sql/functions/seek_view.sql`."""
        return self._all(
            Seek,
            "select * from event_store.seek_view(%s, %s, %s, %s, %s, %s, %s)",
            (view, kind, position, timestamp, partition, dry_run, reason),
        )

    def attach_consumer(self, view: str) -> None:
        """Mark this connection as a live consumer of a view until it is closed, however that happens."""
        self._value(str, "select event_store.attach_consumer(%s)", (view,))

    def pass_over_unwanted(self, view: str) -> None:
        """Move a bulk view's checkpoints past events that it does not want, where nobody holds them."""
        self._value(list, "select event_store.pass_over_unwanted(%s)", (view,))

    def claim_batch(self, view: str, owner: str, limit: int = 100_000, lease_s: int | None = None) -> list[Lease]:
        """Lease log partitions with pending events, `limit` events in all; none when there is nothing to do."""
        return self._all(Lease, "select * from event_store.claim_batch(%s, %s, %s, %s)", (view, owner, limit, lease_s))

    def claim_partition(self, view: str, partition: int, owner: str, lease_s: int | None = None) -> Lease:
        """Lease one log partition for a rebuild; the range is all that it holds."""
        return self._one(
            Lease,
            "select * from event_store.claim_partition(%s, %s, %s, %s)",
            (view, partition, owner, lease_s),
        )

    def locked_partitions(self, view: str, leases: Sequence[Lease]) -> list[LockedPartition]:
        """Return the leased log partitions where streams have locks; in all others a range of the log is the batch."""
        return self._all(
            LockedPartition, "select * from event_store.locked_partitions(%s, %s, %s)", (view, *_tokens(leases))
        )

    def read_batch(self, view: str, lease: Lease) -> list[LogEvent]:
        """Return the events that a lease delivers, each stream's in order."""
        return self._all(
            LogEvent, "select * from event_store.read_batch(%s, %s, %s)", (view, lease.partition, lease.lease_token)
        )

    def fail_streams(self, view: str, lease: Lease, failures: Sequence[StreamFailure]) -> int:
        """Hand failed streams over to their locks, before `commit_batch` in its transaction; return how many are parked."""
        return self._value(
            int,
            "select event_store.fail_streams(%s, %s, %s, %s)",
            (view, lease.partition, lease.lease_token, Jsonb([vars(failure) for failure in failures])),
        )

    def commit_batch(self, view: str, leases: Sequence[Lease]) -> None:
        """Move the checkpoints to the leases' ends and end the leases; all of them or `LeaseLost`."""
        self._value(
            str,  # void comes as an empty text
            "select event_store.commit_batch(%s, %s, %s, %s)",
            (
                view,
                [lease.partition for lease in leases],
                [lease.to_position for lease in leases],
                [lease.lease_token for lease in leases],
            ),
        )

    def extend_lease(self, view: str, leases: Sequence[Lease], lease_s: int | None = None) -> datetime:
        """Let leases in force last so many seconds from now; return until when."""
        return self._value(
            datetime, "select event_store.extend_lease(%s, %s, %s, %s)", (view, *_tokens(leases), lease_s)
        )

    def release_batch(self, view: str, leases: Sequence[Lease]) -> int:
        """Give leases back without moving anything; return how many were still held."""
        return self._value(int, "select event_store.release_batch(%s, %s, %s)", (view, *_tokens(leases)))

    def release_owner(self, owner: str) -> int:
        """Give back every lease of an owner that is known to be dead; return how many."""
        return self._value(int, "select event_store.release_owner(%s)", (owner,))

    def lease_owners(self, view: str) -> list[str]:
        """Return who holds leases of a view's log partitions now."""
        with refusals():
            rows = self.connection.execute("select * from event_store.lease_owners(%s)", (view,)).fetchall()
        return [owner for (owner,) in rows]

    def available_offset_range(self, partition: int | None = None) -> list[AvailableRange]:
        """Return the positions that a log partition holds, None for all."""
        return self._all(AvailableRange, "select * from event_store.available_offset_range(%s)", (partition,))

    def validate_offset_range(self, partition: int, from_position: int, to_position: int) -> None:
        """Refuse positions [from_position, to_position) that the log does not hold whole."""
        self._value(
            str, "select event_store.validate_offset_range(%s, %s, %s)", (partition, from_position, to_position)
        )

    def read_log(self, partition: int, from_position: int, limit: int = 1000) -> list[LogEvent]:
        """Read up to `limit` events of a log partition from a position on; none at the high-water mark."""
        return self._all(LogEvent, "select * from event_store.read_log(%s, %s, %s)", (partition, from_position, limit))

    def offset_for_timestamp(self, partition: int, timestamp: datetime | str) -> int:
        """Return the first kept position whose event was appended at or after a time, else the high-water mark."""
        return self._value(int, "select event_store.offset_for_timestamp(%s, %s)", (partition, timestamp))

    def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return self._all(PartitionInfo, "select * from event_store.partition_info()", ())

    def view_info(self, view: str | None = None) -> list[ViewInfo]:
        """Return one row per view, or one view's."""
        return self._all(ViewInfo, "select * from event_store.view_info(%s)", (view,))

    def mark_archived(self, partition: int, to_position: int) -> int:
        """Say that a log partition is kept outside, too, below a position; return up to where."""
        return self._value(int, "select event_store.mark_archived(%s, %s)", (partition, to_position))

    def raise_low_water_mark(self, partition: int, position: int, reason: str | None = None) -> int:
        """Give up the archived history of a log partition below a position; return where it begins now."""
        return self._value(int, "select event_store.raise_low_water_mark(%s, %s, %s)", (partition, position, reason))

    def purge_events(self, partition: int, limit: int = 100_000) -> int:
        """Delete up to `limit` events below the low-water mark of a log partition; return how many."""
        return self._value(int, "select event_store.purge_events(%s, %s)", (partition, limit))

    def view_lag(self, view: str) -> list[PartitionLag]:
        """Return how far a view is behind, per log partition."""
        return self._all(PartitionLag, "select * from event_store.view_lag(%s)", (view,))

    def poll_views(self) -> list[ViewPoll]:
        """Return one row per view with what a poller needs to know."""
        return self._all(ViewPoll, "select * from event_store.poll_views()", ())

    def audit_log(self, view: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the last entries of the table audit_log, the newest first; None for all views, and what was done to none."""
        return self._all(
            AuditEntry,
            """
            select audit_id, done_at, done_by, operation, view, reason, detail
            from event_store.audit_log
            where %s::text is null or view = %s
            order by audit_id desc
            limit %s
            """,
            (view, view, limit),
        )

    def archive_state(self, partition: int | None = None) -> list[ArchiveState]:
        """Return the files of the archive beside the marks of the log, in one snapshot; None for all log partitions."""
        return self._all(ArchiveState, "select * from event_store.archive_state(%s)", (partition,))

    def list_archive_file(
        self, partition: int, from_position: int, to_position: int, path: str, bytes_: int, checksum: str
    ) -> int:
        """List a checked file of the archive; return up to where the log partition is archived."""
        return self._value(
            int,
            "select event_store.list_archive_file(%s, %s, %s, %s, %s, %s)",
            (partition, from_position, to_position, path, bytes_, checksum),
        )

    def lock_archive(self, partition: int) -> bool:
        """Become the writer of a log partition's archive until the session ends; false where another one is."""
        return self._value(bool, "select event_store.lock_archive(%s)", (partition,))

    def backup_cut(self) -> BackupCut:
        """Return what a backup must know beside the tables."""
        return self._one(BackupCut, "select * from event_store.backup_cut()", ())

    def begin_restore(self) -> None:
        """Let this transaction load a backup into an empty store, until `finish_restore`."""
        self._value(str, "select event_store.begin_restore()")

    def finish_restore(
        self,
        partition: Sequence[int],
        earliest_position: Sequence[int],
        high_water_mark: Sequence[int],
        last_offset: int,
        lease_token: int,
        detail: Json,
    ) -> int:
        """Check what a restore loaded and open the store; return how many events it has."""
        return self._value(
            int,
            "select event_store.finish_restore(%s::int[], %s::bigint[], %s::bigint[], %s, %s, %s)",
            (list(partition), list(earliest_position), list(high_water_mark), last_offset, lease_token, Jsonb(detail)),
        )

    def _all(self, row: type[Row], query: str, arguments: tuple[object, ...]) -> list[Row]:
        with refusals(), self.connection.cursor(row_factory=class_row(row)) as cursor:
            return cursor.execute(query.encode(), arguments).fetchall()

    def _one(self, row: type[Row], query: str, arguments: tuple[object, ...]) -> Row:
        (only,) = self._all(row, query, arguments)
        return only

    def _value(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        with refusals():
            row = self.connection.execute(query.encode(), arguments).fetchone()
        assert row is not None
        assert isinstance(row[0], kind)
        return row[0]


class _InfinityLoader(TimestamptzLoader):
    """Reads Postgres' infinite timestamps as the ends of Python's range."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data)
        if text == b"-infinity":
            return datetime.min.replace(tzinfo=UTC)
        if text == b"infinity":
            return datetime.max.replace(tzinfo=UTC)
        return super().load(data)


def events_json(events: Iterable[NewEvent]) -> str:
    """Write a batch as the store's functions take it."""
    return json.dumps([vars(event) for event in events], default=_uuid_text)


def _uuid_text(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _tokens(leases: Sequence[Lease]) -> tuple[list[int], list[int]]:
    return [lease.partition for lease in leases], [lease.lease_token for lease in leases]
