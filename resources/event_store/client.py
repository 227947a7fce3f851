"""The event store's client: one method per SQL function, same name, same argument order.

Belongs here: calls about events, the log and views. Not here: the shapes that they return (`rows`); calls about many
views at once (`rounds`) and the wait for a view (`waiting`), which `EventStore` inherits; those of producers, captures,
archive and backup, each in a `store` of its own; behaviour, which is in `sql/functions`, for clients in any language.

An `EventStore` works on a connection of the caller's, who owns its transactions: with `autocommit` each call is one
transaction, otherwise the calls join the caller's. On a pool of the caller's each call is one transaction.

`async_client` is written from this file by `scripts/write_async_client.py`; a test says when that has to run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec.structs import replace

from millrace.resources.errors import Malformed
from millrace.resources.event_store.json_text import events_json, flat, jsonb
from millrace.resources.event_store.lease_rows import (
    ExpiredLease,
    Lease,
    LockedPartition,
    StreamFailure,
)
from millrace.resources.event_store.rounds import Rounds
from millrace.resources.event_store.rows import (
    NEWEST_SHAPE,
    AppendedCount,
    AppendedEvent,
    AuditEntry,
    AvailableRange,
    BackupCut,
    DatabaseIdentity,
    DeadLetter,
    DeciderEvent,
    Delivery,
    Event,
    EventBehindState,
    EventPosition,
    EventSchema,
    EventUpcast,
    Json,
    Lock,
    LogMark,
    LogPosition,
    NewEvent,
    Seek,
    StreamHead,
    StreamState,
    StreamView,
    View,
    in_their_streams,
)
from millrace.resources.event_store.status_rows import (
    OldestWriter,
    PartitionInfo,
    PartitionLag,
    Problem,
    SequencerHolder,
    ViewBeyondLog,
    ViewInfo,
)
from millrace.resources.event_store.tracing import all_passed_on, passed_on
from millrace.resources.event_store.waiting import Waiting
from millrace.resources.patience import PATIENCE_S
from millrace.resources.times import SAID, bound

# events of a stream that are read at once
STREAM_PAGE = 500


class EventStore(Rounds, Waiting):
    """The event store behind a connection, or a pool. Every method raises the `MillraceError` of its SQL function."""

    def register_decider_event(
        self, decider: str, event: str, description: str, event_version: int = 1, owner: str | None = None
    ) -> DeciderEvent:
        """Register an event that a decider may append; a second time changes nothing.

        The first registration of a decider may name the role whose members alone append to it.
        """
        return self._one(
            DeciderEvent,
            "select * from event_store.register_decider_event(%s, %s, %s, %s, %s)",
            (decider, event, description, event_version, owner),
        )

    def register_decider_events(self, events: Iterable[DeciderEvent], owner: str | None = None) -> list[DeciderEvent]:
        """Register many events, all or none, and return them as registered."""
        return self._all(
            DeciderEvent,
            "select * from event_store.register_decider_events(%s, %s)",
            (jsonb([asdict(event) for event in events]), owner),
        )

    def register_event_schema(self, decider: str, event: str, schema: Json, event_version: int = 1) -> EventSchema:
        """Set the JSON Schema that data of an event must fit from now on; the same a second time changes nothing.

        An event that is not registered yet is, with the schema's description.
        """
        return self._one(
            EventSchema,
            "select * from event_store.register_event_schema(%s, %s, %s, %s)",
            (decider, event, jsonb(schema), event_version),
        )

    def register_event_upcast(self, decider: str, event: str, to_version: int, moves: Iterable[Json]) -> EventUpcast:
        """Say by which moves data of the version before become data of `to_version`; the same again changes nothing.

        Moves are those of `millrace.events`, or lists of them. A version that is not registered is.
        """
        return self._one(
            EventUpcast,
            "select * from event_store.register_event_upcast(%s, %s, %s, %s)",
            (decider, event, to_version, jsonb(flat(moves))),
        )

    def set_decider_owner(self, decider: str, owner: str | None, reason: str | None = None) -> bool:
        """Give a decider to a role, whose members alone append to it and register its events; None: to every writer.

        Returns whether that changed anything.
        """
        return self._value(bool, "select event_store_platform.set_decider_owner(%s, %s, %s)", (decider, owner, reason))

    def withdraw_registration(
        self,
        decider: str,
        event: str,
        event_version: int,
        what: Literal["schema", "upcast", "event"],
        reason: str | None = None,
    ) -> bool:
        """Take back a schema, a last upcast, or the registration of what has no event; return whether it was there."""
        return self._value(
            bool,
            "select event_store_platform.withdraw_registration(%s, %s, %s, %s, %s)",
            (decider, event, event_version, what, reason),
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
        expected_version: int | None = None,
        metadata: Json = None,
        caused_by: Event | None = None,
    ) -> Event:
        """Append one event after `previous_id` and return it; a retry returns the stored one.

        With `expected_version`, how many events the stream has, 0 for a new one, `previous_id` may be None. `metadata`
        is an object that says what led to the event: correlation_id, causation_id, traceparent, user, or other keys.
        `caused_by` is the event that led to it, as for all events within `causing`; keys of `metadata` win.
        """
        known = passed_on(metadata, caused_by)
        return self._one(
            Event,
            "select * from event_store.append_event(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                event,
                event_id,
                decider,
                decider_id,
                jsonb(data),
                command_id,
                previous_id,
                event_version,
                final,
                expected_version,
                None if known is None else jsonb(known),
            ),
        )

    def append_events(
        self,
        events: Iterable[NewEvent],
        *,
        caused_by: Event | None = None,
        positions_within_s: int | None = None,
    ) -> list[AppendedEvent]:
        """Append a batch over any streams, all or nothing, and return one row per event in order.

        `caused_by` is the event that led to them, as for all events within `causing`; keys of their metadata win.
        With `positions_within_s`, from 0 to 60, it commits, and waits so many seconds at most for their positions in
        the log. A `position` is None where that was too short.

        Raises:
            Malformed: `positions_within_s` is out of range.
            TransactionOpen: Positions are asked for, and the connection is in a transaction, before whose end there are
                none.
        """
        append, given = "select * from event_store.append_events(%s::jsonb)", list(all_passed_on(events, caused_by))
        if positions_within_s is None:
            return in_their_streams(self._all(AppendedEvent, append, (events_json(given),)), given)
        if not 0 <= positions_within_s <= PATIENCE_S:  # before anything is stored
            raise Malformed(
                "request is malformed",
                detail=f"positions_within_s is {positions_within_s!r}",
                hint=f"It is from 0 to {PATIENCE_S}.",
            )
        look, ids = "select * from event_store.await_positions(%s::uuid[], %s)", [event.event_id for event in given]
        with self._committing() as store:
            appended = store._all(AppendedEvent, append, (events_json(given),))
            placed = store._all(EventPosition, look, (ids, positions_within_s))
        places = {each.event_id: {"partition": each.partition, "position": each.position} for each in placed}
        found = [replace(each, **places.get(each.event_id, {})) for each in appended]
        return in_their_streams(found, given)

    def append_json(self, events: str) -> AppendedCount:
        """Do as `append_events` with a batch that is JSON text already, and count only: for those that append much.

        No metadata are passed on: the text is what is stored.
        """
        return self._one(
            AppendedCount,
            "select count(*) filter (where appended) as appended, count(*) filter (where previous_id is null) as first "
            "from event_store.append_events(%s::jsonb)",
            (events,),
        )

    def get_events(self, decider_id: str | UUID, decider: str, *, upcast: bool = False) -> list[Event]:
        """Return the events of one stream in order; with `upcast` their data in the newest shape."""
        query = "select {} from event_store.get_events(%s, %s)"
        return self._all(Event, query.format(NEWEST_SHAPE if upcast else "*"), (decider_id, decider))

    def read_stream(
        self,
        decider: str,
        decider_id: str | UUID,
        from_version: int | None = None,
        limit: int | None = None,
        *,
        backwards: bool = False,
        upcast: bool = False,
    ) -> Iterator[Event]:
        """Read the events of one stream as they are asked for, a page at a time.

        Args:
            decider: The kind of entity.
            decider_id: The entity.
            from_version: The first version to read; None for the first of all, backwards for the last of all.
            limit: How many at most; None for all.
            backwards: Whether the latest comes first.
            upcast: Whether data come in the newest shape of their event; `event_version` is the stored one.
        """
        query = "select {} from event_store.read_stream(%s, %s, %s, %s, %s)"
        query = query.format(f"{NEWEST_SHAPE}, version, metadata" if upcast else "*")
        while True:
            size = STREAM_PAGE if limit is None else min(limit, STREAM_PAGE)
            page = self._all(
                Event,
                query,
                (decider, decider_id, from_version, size, backwards),
            )
            yield from page
            limit = None if limit is None else limit - size
            if len(page) < size or limit == 0:
                return
            last = page[-1].version
            assert last is not None
            if backwards and last == 1:
                return
            from_version = last + (-1 if backwards else 1)

    def events_of_correlation(self, correlation_id: str, after_offset: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events whose metadata have a correlation_id, over all streams, in the order of offsets."""
        return self._all(
            Event,
            "select * from event_store.events_of_correlation(%s, %s, %s)",
            (correlation_id, after_offset, limit),
        )

    def get_last_event(self, decider_id: str | UUID, decider: str) -> Event | None:
        """Return the last event of one stream, None for an unknown stream, or if that event was purged."""
        return self._first(Event, "select * from event_store.get_last_event(%s, %s)", (decider_id, decider))

    def stream_head(self, decider_id: str | UUID, decider: str) -> StreamHead | None:
        """Return where one stream stands, also after its events were purged; None for a stream without events."""
        return self._first(StreamHead, "select * from event_store.stream_head(%s, %s)", (decider_id, decider))

    def stream_state(self, model: str, fingerprint: str, decider: str, decider_id: str) -> StreamState | None:
        """Return what a fold read model has of one stream, for a login that may read; None where it is no snapshot."""
        call = "select * from event_store.stream_state(%s, %s, %s, %s)"
        return self._first(StreamState, call, (model, fingerprint, decider, decider_id))

    def stream_behind_state(
        self,
        model: str,
        fingerprint: str,
        decider: str,
        decider_id: str,
        limit: int = STREAM_PAGE,
        event_id: UUID | None = None,
    ) -> tuple[StreamState | None, list[Event], bool]:
        """Return what `stream_state` does, what `read_stream` upcasts behind it, and whether an event is stored.

        It is one question, as of one moment.
        """
        query = """
            select e.*, case when e.number > 1 then null else s.state end as state, s.version as state_version,
              s."offset" as state_offset, exists (select from event_store.log_position(%s)) as is_stored
            from (select) one
            left join event_store.stream_state(%s, %s, %s, %s) s on true
            left join lateral (
              select {}, version, metadata, row_number() over () as number
              from event_store.read_stream(%s, %s, coalesce(s.version, 0) + 1, %s)
            ) e on true
        """
        rows = self._all(
            EventBehindState,
            query.format(NEWEST_SHAPE),
            (event_id, model, fingerprint, decider, decider_id, decider, decider_id, limit),
        )
        first = rows[0]
        if first.state_version is None or first.state_offset is None:
            state = None
        else:
            state = StreamState(first.state, first.state_version, first.state_offset)
        return state, [row for row in rows if row.number is not None], first.is_stored

    def sequence_events(self) -> int:
        """Give committed events their positions; return how many, 0 while another session does it."""
        return self._value(int, "select event_store_platform.sequence_events()")

    def mark_log(self, reason: str) -> LogMark:
        """Record the present moment of the log for a reason, for ever."""
        return self._one(LogMark, "select * from event_store_platform.mark_log(%s)", (reason,))

    def marks_at(self, time: datetime | str) -> LogMark | None:
        """Return the last recorded moment of the log that is not after a time; None where there is none."""
        return self._first(LogMark, "select * from event_store_platform.marks_at(%s)", (moment_of(time),))

    def is_attended(self) -> bool:
        """Whether a sequencer is at work, so that nobody else needs to give events their positions."""
        return self._value(bool, "select event_store_platform.is_attended()")

    def attend_log(self, attended_s: int, sleeps: bool = False) -> bool:
        """Say that the caller sequences for so many seconds, asleep or not; return whether to look again soon."""
        return self._value(bool, "select event_store_platform.attend_log(%s, %s)", (attended_s, sleeps))

    def announce_positions(self, known: Sequence[int]) -> list[int]:
        """Wake those who wait for new positions if there are any beyond the known marks; return the marks of now."""
        return self._value(list, "select event_store_platform.announce_positions(%s::bigint[])", (list(known),))

    def register_view(
        self,
        view: str,
        start_at: datetime | str | None = None,
        lock_timeout_s: int | None = None,
        pooling_delay_s: int | None = None,
        edge_function_url: str | None = None,
        *,
        mode: str | None = None,
        deciders: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
        max_attempts: int | None = None,
        owner: str | None = None,
        version: int | None = None,
        push_format: str | None = None,
        push_upcast: bool | None = None,
    ) -> View:
        """Register a view, or change the settings that are named, never its progress; None leaves one as it is.

        Args:
            view: Its name.
            start_at: From when on it wants events; '-infinity' for all, None for now. The first registration counts.
            lock_timeout_s: How long a lock or a lease lasts unless a call says otherwise, in seconds; 300 at first.
            pooling_delay_s: The wait between two polls that found nothing, in seconds.
            edge_function_url: The URL that events are pushed to; '' clears it.
            mode: 'rows' or 'bulk', in which the view stays; 'rows' at first.
            deciders: The deciders it wants; [] for all, as at first.
            events: The events it wants; [] for all, as at first.
            max_attempts: After how many failed attempts a stream is parked; 5 at first.
            owner: The role whose members may change and consume it. At first the login; event_store_consumer where that
                is a member of event_store_owner.
            version: Of the program that registers; settings of a lower one than the view has change nothing.
            push_format: As what events are pushed: 'json', or 'cloudevents'; 'json' at first.
            push_upcast: Whether data are pushed in the newest shape of their event; not at first.
        """
        return self._one(
            View,
            "select * from event_store.register_view(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                view,
                moment_of(start_at),
                lock_timeout_s,
                pooling_delay_s,
                edge_function_url,
                mode,
                listed(deciders),
                listed(events),
                max_attempts,
                owner,
                version,
                push_format,
                push_upcast,
            ),
        )

    def is_registered(self, view: str) -> bool:
        """Return whether a view of this name is registered."""
        return self._value(bool, "select event_store.is_registered(%s)", (view,))

    def enable_view(self, view: str, enabled: bool = True, *, reason: str | None = None) -> View:
        """Deliver events to a view from now on, or stop it."""
        return self._one(View, "select * from event_store_platform.enable_view(%s, %s, %s)", (view, enabled, reason))

    def unregister_view(self, view: str, reason: str | None = None) -> None:
        """Remove a view with its progress, its locks and its dead letters."""
        self._value(str, "select event_store_platform.unregister_view(%s, %s)", (view, reason))

    def has_caught_up(self, view: str, other: str) -> bool:
        """Return whether a view is nowhere behind another one, which then stays there until the transaction ends."""
        return self._value(bool, "select event_store_platform.has_caught_up(%s, %s)", (view, other))

    def dispatch_events(self, view: str, window: int = 5000, max_waiting: int = 2000) -> int:
        """Make locks for streams with new events; return how many positions were passed.

        A call passes at most `window` positions of each log partition, and none while `max_waiting` streams wait for a
        consumer already.
        """
        return self._value(int, "select event_store_platform.dispatch_events(%s, %s, %s)", (view, window, max_waiting))

    def fail_dispatch(self, view: str, error: str) -> None:
        """Note why the new events of a view could not be dispatched, until they are."""
        self._value(str, "select event_store_platform.fail_dispatch(%s, %s)", (view, error))

    def stream_events(self, view_name: str, limit: int = 1, seconds: int | None = None) -> list[Event]:
        """Lock free streams of a rows view and return the next event of each."""
        return self._all(Event, "select * from event_store.stream_events(%s, %s, %s)", (view_name, limit, seconds))

    def lease_events(
        self, view: str, limit: int = 1, seconds: int | None = None, *, ahead: bool = False, upcast: bool = False
    ) -> list[Delivery]:
        """Do as `stream_events`, and return with each event the token that fences its lock.

        With `ahead` a lock that ends without an answer is no attempt, unless `extend_lock` was called for it; with
        `upcast` data come in the newest shape of their event.
        """
        query = "select {} from event_store.lease_events(%s, %s, %s, %s)"
        columns = f"{NEWEST_SHAPE}, version, metadata, lease_token, attempt, suspect" if upcast else "*"
        return self._all(Delivery, query.format(columns), (view, limit, seconds, ahead))

    def ack_event(self, view: str, decider_id: str | UUID, offset: int, lease_token: int | None = None) -> list[Lock]:
        """Acknowledge the event in flight and free its stream."""
        return self._all(
            Lock, "select * from event_store.ack_event(%s, %s, %s, %s)", (view, decider_id, offset, lease_token)
        )

    def ack_events(self, view: str, offsets: Sequence[int], lease_tokens: Sequence[int] | None = None) -> set[int]:
        """Acknowledge many events; return the offsets that count, all others are delivered again."""
        acknowledged = self._values(
            int,
            "select * from event_store.ack_events(%s, %s::bigint[], %s::bigint[])",
            (view, list(offsets), list(lease_tokens) if lease_tokens is not None else None),
        )
        return set(acknowledged)

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
        """Report that the event in flight failed: its stream is retried, later each time, and then parked."""
        return self._all(
            Lock,
            "select * from event_store.fail_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, error, lease_token),
        )

    def extend_lock(
        self, view: str, decider_id: str | UUID, offset: int, seconds: int | None = None, lease_token: int | None = None
    ) -> list[Lock]:
        """Let the lock of the event in flight last so many seconds from now, and say that it is being handled."""
        return self._all(
            Lock,
            "select * from event_store.extend_lock(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, seconds, lease_token),
        )

    def end_locks(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """End locks that are in force: all of a rows view, of a decider, or of one stream; return how many."""
        return self._value(
            int, "select event_store_platform.end_locks(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    def dead_letters(self, view: str | None = None, *, waiting: bool = False) -> list[DeadLetter]:
        """Return the parked streams of a view, None for all views; with `waiting` those that wait for a retry."""
        return self._all(DeadLetter, "select * from event_store.dead_letters(%s, %s)", (view, waiting))

    def retry_dead_letters(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """Let parked streams be tried again: all of a view, of a decider, or one; return how many."""
        return self._value(
            int, "select event_store_platform.retry_dead_letters(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    def discard_dead_letter(
        self, view: str, decider: str, decider_id: str, reason: str, offset: int | None = None
    ) -> Event | None:
        """Give up the event at which a parked stream failed, and return it; None if the view wants it no more."""
        return self._first(
            Event,
            "select * from event_store_platform.discard_dead_letter(%s, %s, %s, %s, %s)",
            (view, decider, decider_id, reason, offset),
        )

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
        """Move a view to another position, in one log partition or in all; `seek_view.sql` names the kinds."""
        return self._all(
            Seek,
            "select * from event_store_platform.seek_view(%s, %s, %s, %s, %s, %s, %s)",
            (view, kind, position, moment_of(timestamp), partition, dry_run, reason),
        )

    def attach_consumer(self, view: str, consumer: str | None = None, seconds: int = 900) -> None:
        """Mark this connection as a live consumer of a view, for some seconds or until it is closed."""
        self._value(str, "select event_store_platform.attach_consumer(%s, %s, %s)", (view, consumer, seconds))

    def detach_consumer(self, view: str, consumer: str | None = None) -> None:
        """End what `attach_consumer` said; nothing happens where it is not attached."""
        self._value(str, "select event_store_platform.detach_consumer(%s, %s)", (view, consumer))

    def pass_over_unwanted(self, view: str) -> None:
        """Move a bulk view's checkpoints past events that it does not want, where nobody holds them."""
        self._value(list, "select event_store_platform.pass_over_unwanted(%s)", (view,))

    def claim_batch(self, view: str, owner: str, limit: int = 100_000, lease_s: int | None = None) -> list[Lease]:
        """Lease log partitions with pending events, `limit` positions in all; none when there is nothing to do."""
        return self._all(Lease, "select * from event_store.claim_batch(%s, %s, %s, %s)", (view, owner, limit, lease_s))

    def claim_partition(self, view: str, partition: int, owner: str, lease_s: int | None = None) -> Lease:
        """Lease one log partition for a rebuild; the range is all that it holds."""
        return self._one(
            Lease,
            "select * from event_store_platform.claim_partition(%s, %s, %s, %s)",
            (view, partition, owner, lease_s),
        )

    def locked_partitions(self, view: str, leases: Sequence[Lease]) -> list[LockedPartition]:
        """Return those leased log partitions where streams have locks; the others deliver their whole range."""
        return self._all(
            LockedPartition,
            "select * from event_store_platform.locked_partitions(%s, %s, %s)",
            (view, *tokens_of(leases)),
        )

    def read_batch(self, view: str, lease: Lease) -> list[Event]:
        """Return the events that a lease delivers, each stream's in order."""
        return self._all(
            Event, "select * from event_store.read_batch(%s, %s, %s)", (view, lease.partition, lease.lease_token)
        )

    def fail_streams(self, view: str, lease: Lease, failures: Sequence[StreamFailure]) -> int:
        """Hand failed streams over to their locks, before `commit_batch` in its transaction; return how many park."""
        return self._value(
            int,
            "select event_store.fail_streams(%s, %s, %s, %s)",
            (view, lease.partition, lease.lease_token, jsonb([vars(failure) for failure in failures])),
        )

    def commit_batch(self, view: str, leases: Sequence[Lease]) -> None:
        """Move the checkpoints to the leases' ends and end the leases; all of them or `LeaseLost`."""
        self._value(
            str,
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
            datetime, "select event_store.extend_lease(%s, %s, %s, %s)", (view, *tokens_of(leases), lease_s)
        )

    def standing(self, most: int = 100_000) -> list[Problem]:
        """Return what is wrong in the store now, the worst first; to count lags, so many events are read at most."""
        return self._all(Problem, "select * from event_store_platform.standing(%s)", (most,))

    def set_max_lag(self, view: str, max_lag_s: int) -> None:
        """Say how old an event may become before the view is late."""
        self._value(str, "select event_store.set_max_lag(%s, %s)", (view, max_lag_s))

    def expired_leases(self) -> list[ExpiredLease]:
        """Return the owners that hold leases of log partitions past their time, in all views."""
        return self._all(ExpiredLease, "select * from event_store_platform.expired_leases()")

    def views_beyond_log(self) -> list[ViewBeyondLog]:
        """Return the checkpoints that stand beyond the end of their log partition."""
        return self._all(ViewBeyondLog, "select * from event_store_platform.views_beyond_log()")

    def sequencer_holder(self) -> SequencerHolder | None:
        """Return the session whose open transaction holds the sequencer's row, if there is one."""
        return next(iter(self._all(SequencerHolder, "select * from event_store_platform.sequencer_holder()")), None)

    def end_log_holder(self, reason: str | None = None) -> SequencerHolder | None:
        """End the session that holds up the log, if it idles or an operator says why; return it, None for none."""
        found = self._all(SequencerHolder, "select * from event_store_platform.end_log_holder(%s)", (reason,))
        return next(iter(found), None)

    def oldest_writer(self) -> OldestWriter | None:
        """Return the transaction that has been open for longest of all that have written, if there is one."""
        return self._first(OldestWriter, "select * from event_store_platform.oldest_writer()")

    def last_sequenced(self) -> datetime:
        """Return when somebody last looked for events without a position; the last of all times during a restore."""
        return self._value(datetime, "select event_store_platform.last_sequenced()")

    def release_batch(self, view: str, leases: Sequence[Lease]) -> int:
        """Give leases back without moving anything; return how many were still held."""
        return self._value(int, "select event_store.release_batch(%s, %s, %s)", (view, *tokens_of(leases)))

    def lease_owners(self, view: str) -> list[str]:
        """Return the owners of a view's leases in force."""
        return self._values(str, "select * from event_store_platform.lease_owners(%s)", (view,))

    def available_offset_range(self, partition: int | None = None) -> list[AvailableRange]:
        """Return the positions that a log partition holds, None for all."""
        return self._all(AvailableRange, "select * from event_store.available_offset_range(%s)", (partition,))

    def validate_offset_range(self, partition: int, from_position: int, to_position: int) -> None:
        """Refuse positions [from_position, to_position) that the log does not hold whole."""
        self._value(
            str, "select event_store.validate_offset_range(%s, %s, %s)", (partition, from_position, to_position)
        )

    def read_log(
        self,
        partition: int,
        from_position: int,
        limit: int = 1000,
        deciders: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
    ) -> list[Event]:
        """Read up to `limit` events of a log partition from a position on; none at the high-water mark.

        With deciders or events only those, as far as it must read to find so many.
        """
        return self._all(
            Event,
            "select * from event_store.read_log(%s, %s, %s, %s, %s)",
            (partition, from_position, limit, listed(deciders), listed(events)),
        )

    def latest_events(
        self,
        limit: int = 20,
        decider: str | None = None,
        decider_id: str | None = None,
        event: str | None = None,
        since: datetime | None = None,
        correlation_id: str | None = None,
        before_offset: int | None = None,
    ) -> list[Event]:
        """Return the newest events that fit all filters, the newest first; None does not filter."""
        return self._all(
            Event,
            "select * from event_store_platform.latest_events(%s, %s, %s, %s, %s, %s, %s)",
            (limit, decider, decider_id, event, since, correlation_id, before_offset),
        )

    def stream_views(self, decider: str, decider_id: str, most: int = 100_000) -> list[StreamView]:
        """Return what each view that wants a decider has of one stream, and owes of its newest `most` events."""
        call = "select * from event_store_platform.stream_views(%s, %s, %s)"
        return self._all(StreamView, call, (decider, decider_id, most))

    def log_position(self, event_id: UUID) -> LogPosition | None:
        """Return where an event is in the log; None for an event that is not stored, or was purged."""
        return self._first(LogPosition, "select * from event_store.log_position(%s)", (event_id,))

    def offset_for_timestamp(self, partition: int, timestamp: datetime | str) -> int:
        """Return the first kept position whose event was appended at or after a time, else the high-water mark."""
        return self._value(int, "select event_store.offset_for_timestamp(%s, %s)", (partition, moment_of(timestamp)))

    def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return self._all(PartitionInfo, "select * from event_store.partition_info()")

    def view_info(self, view: str | None = None, most: int = 100_000) -> list[ViewInfo]:
        """Return one row per view, or one view's; at most so many events are read to count what views have not."""
        return self._all(ViewInfo, "select * from event_store.view_info(%s, %s)", (view, most))

    def log_gaps(self, recent: int = 10_000) -> list[int]:
        """Return the log partitions that miss one of their newest positions: none, unless something is broken."""
        return self._values(int, "select event_store_platform.log_gaps(%s)", (recent,))

    def view_lag(self, view: str) -> list[PartitionLag]:
        """Return how far a view is behind, per log partition."""
        return self._all(PartitionLag, "select * from event_store.view_lag(%s)", (view,))

    def database_identity(self) -> DatabaseIdentity:
        """Return the identity of this database, which no copy of it has."""
        return self._one(DatabaseIdentity, "select * from event_store_platform.database_identity()")

    def backup_cut(self) -> BackupCut:
        """Return the identity of this store, which copies share, and the numbers above which a restored one goes on."""
        return self._one(BackupCut, "select * from event_store_platform.backup_cut()")

    def audit_log(self, view: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the last entries of the table audit_log, the newest first: of one view, or for None all."""
        return self._all(AuditEntry, "select * from event_store_platform.audit_log(%s, %s)", (view, limit))


def tokens_of(leases: Sequence[Lease]) -> tuple[list[int], list[int]]:
    """Return the log partitions of leases, and their tokens."""
    return [lease.partition for lease in leases], [lease.lease_token for lease in leases]


def moment_of(time: datetime | str | None) -> datetime | str | None:
    """Return a time as psycopg sends it. Postgres reads no text: its own forms and zone depend on the session.

    Raises:
        Malformed: A text has none of the forms of `millrace.resources.times`.
    """
    if not isinstance(time, str):
        return time
    found = bound(time)
    if found is None:
        raise Malformed(
            "A text is not a time of a known form.",
            detail=f"The text is {time[:100]!r}.",
            hint=f"Write it as {SAID}; or -infinity, infinity.",
        )
    return found


def listed(names: Sequence[str] | None) -> list[str] | None:
    """Return names as psycopg sends an array; None stays None."""
    return None if names is None else list(names)
