"""The event store's client: a service's calls to append events, to read them, and to wait for views.

Belongs here: events, their registrations and the log. Not here: consuming a view (`views`), waiting for one
(`waiting`), calls of Millrace's own processes and of operators (`platform`); calls of producers, captures, archive and
backup, each in a `store` of its own; behaviour, which is in `sql/functions`, for clients in any language.

An `EventStore` works on the caller's connection, and the caller owns its transactions. With `autocommit` each call is
one transaction; without, the calls join the caller's transaction. On a pool each call is one transaction.

`scripts/write_async_client.py` writes `async_client` from this file; a test fails when the script must run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from millrace.errors import KeyGone
from millrace.event_store.json_text import flat, jsonb
from millrace.event_store.new_events import (
    LaterEvent,
    NewEvent,
    StreamEvents,
    all_passed_on,
    batch_json,
    on,
    stream_json,
)
from millrace.event_store.rows import (
    NEWEST_SHAPE,
    RECORDED,
    STORED,
    Appended,
    AppendedEvent,
    AvailableRange,
    DeciderEvent,
    Event,
    EventBehindState,
    EventSchema,
    EventUpcast,
    Json,
    LogPosition,
    StreamHead,
    StreamState,
)
from millrace.event_store.scheduling import Scheduling
from millrace.event_store.status_rows import PartitionInfo
from millrace.event_store.views import listed, moment_of
from millrace.event_store.waiting import Waiting

if TYPE_CHECKING:
    from pydantic import BaseModel

# events of a stream that one query reads
STREAM_PAGE = 500
# the events that are scheduled come after the appended ones, whose version they take
APPEND_AND_SCHEDULE = """
    with appended as materialized (
      select event_id, "offset", version, appended from event_store.append_events(%s::jsonb)
    ), scheduled as materialized (
      select s.scheduled
      from (select max(version) from appended where appended having max(version) > 0) head(version)
      cross join rows from (
        jsonb_to_recordset(%s::jsonb) as (
          decider text, decider_id text, event text, event_id uuid, data jsonb, command_id uuid, event_version bigint,
          final boolean, metadata jsonb
        ),
        unnest(%s::text[]), unnest(%s::interval[]), unnest(%s::timestamptz[]), unnest(%s::text[])
      ) as e(
        decider, decider_id, event, event_id, data, command_id, event_version, final, metadata, name, after, at, unless
      )
      cross join lateral event_store.schedule_event(
        e.event, e.event_id, e.decider, e.decider_id, e.data, e.command_id, coalesce(e.at, clock_timestamp() + e.after),
        e.name, coalesce(e.event_version, 1), coalesce(e.final, false), e.metadata,
        case when e.unless is not null then jsonb_build_object('event', e.unless) end, head.version
      ) s
    )
    select appended.* from appended where (select count(*) from scheduled) >= 0
"""
APPEND_ONE = "select {} from event_store.append_event(%s, %s, %s, %s, %s, %s, null, %s, %s, %s, %s)"


class EventStore(Waiting, Scheduling):
    """The event store behind a connection, or a pool. Every method raises the `MillraceError` of its SQL function."""

    def append(
        self,
        decider: str,
        decider_id: str | UUID,
        *events: "NewEvent | BaseModel",
        expected_version: int | None = None,
        metadata: Json = None,
        caused_by: Event | None = None,
    ) -> Appended:
        """Append events to a stream, all or nothing, at its end.

        Events get new ids. To retry safely after a lost answer, state the ids, as in `NewEvent("paid", event_id=id)`,
        or `expected_version`. Without either a retry stores the events twice.

        Args:
            decider: The kind of entity.
            decider_id: The entity.
            events: Each a `NewEvent`, or an object of an event that `@event(decider=…)` declares.
            expected_version: The number of events in the stream; `NO_STREAM` for none yet, None for any number.
            metadata: An object that says what led to the events; the events' own keys win.
            caused_by: The event that led to them, as for all events within `causing`; keys of metadata win.

        Raises:
            Conflict: The stream has another version.
            StreamClosed: The stream has its final event.
            EventIdReused: Another event has the id.
            EventNotRegistered: The decider has no such event.
            DataRefused: The data do not fit the event's schema.
            Malformed: The store does not take an argument.
        """
        chained = all_passed_on(
            [on(decider, decider_id, *events, expected_version=expected_version, metadata=metadata)], caused_by
        )
        try:
            return self._sent(*self._sealed(chained))
        except KeyGone:
            return self._sent(*self._sealed_anew(chained))

    def _sent(self, stream: StreamEvents) -> Appended:
        return self._appended(stream)

    def _appended(self, stream: StreamEvents) -> Appended:
        if len(stream.events) == 1:
            call, parameters = APPEND_ONE.format('event_id, "offset", version, appended'), _arguments(stream)
        else:
            call = (
                'select event_id, "offset", version, appended from event_store.append_to_stream(%s, %s, %s::jsonb, %s)'
            )
            parameters = (stream.decider, stream.decider_id, stream_json(stream), stream.expected_version)
        return appended_of(stream, self._all(AppendedEvent, call, parameters))

    def append_all(self, streams: Iterable[StreamEvents], *, caused_by: Event | None = None) -> list[Appended]:
        """Append events to several streams, all or nothing, in this order.

        As in `append_all([on("cart", "cart-1", added), on("order", "order-7", placed)])`. The results have the
        order of the streams. Raises the errors of `append`.
        """
        chained = all_passed_on(streams, caused_by)
        try:
            return self._appended_all(self._sealed(chained))
        except KeyGone:
            return self._appended_all(self._sealed_anew(chained))

    def _appended_all(self, streams: Sequence[StreamEvents], text: str | None = None) -> list[Appended]:
        call = 'select event_id, "offset", version, appended from event_store.append_events(%s::jsonb)'
        rows = iter(self._all(AppendedEvent, call, (text or batch_json(streams),)))
        return [appended_of(stream, [next(rows) for _ in stream.events]) for stream in streams]

    def append_returning(
        self, stream: StreamEvents, later: Sequence[LaterEvent] = (), *, caused_by: Event | None = None
    ) -> list[Event]:
        """Append events of one stream as `append` does, schedule others with them, and return the appended ones."""
        streams = [stream]
        if later:
            streams += [replace(stream, events=tuple(each.event for each in later), expected_version=None)]
        chained = all_passed_on(streams, caused_by)
        try:
            return self._returned(later, *self._sealed(chained))
        except KeyGone:
            return self._returned(later, *self._sealed_anew(chained))

    def _returned(self, later: Sequence[LaterEvent], stream: StreamEvents, *others: StreamEvents) -> list[Event]:
        if len(stream.events) == 1 and not later:
            return self._opened(self._all(Event, APPEND_ONE.format(f"{RECORDED}, version"), _arguments(stream)))
        if later:
            names, after, at, unless = map(list, zip(*(each[1:] for each in later), strict=True))
            arguments = (batch_json([stream]), batch_json(others), names, after, at, unless)
            appended = appended_of(stream, self._all(AppendedEvent, APPEND_AND_SCHEDULE, arguments))
        else:
            appended = self._appended(stream)
        number = len(stream.events)
        stored = list[Event]()
        for event in self.read(stream.decider, stream.decider_id, appended.version - number + 1, number):
            stored += [event]
        return stored

    def read(
        self,
        decider: str,
        decider_id: str | UUID,
        from_version: int | None = None,
        limit: int | None = None,
        *,
        backwards: bool = False,
        upcast: bool = False,
    ) -> Iterator[Event]:
        """Read the events of one stream lazily, a page at a time.

        Args:
            decider: The kind of entity.
            decider_id: The entity.
            from_version: The first version to read; None for the stream's first, or, backwards, its last.
            limit: The greatest number of events to read; None for all.
            backwards: Whether the latest comes first.
            upcast: Whether data come in the newest shape of their event; `event_version` stays the stored one.
        """
        query = "select {} from event_store.read_stream(%s, %s, %s, %s, %s)"
        query = query.format(NEWEST_SHAPE if upcast else STORED)
        while True:
            size = STREAM_PAGE if limit is None else min(limit, STREAM_PAGE)
            page = self._opened(self._all(Event, query, (decider, decider_id, from_version, size, backwards)))
            yield from page
            limit = None if limit is None else limit - size
            if len(page) < size or limit == 0:
                return
            last = page[-1].version
            assert last is not None
            if backwards and last == 1:
                return
            from_version = last + (-1 if backwards else 1)

    def head(self, decider: str, decider_id: str | UUID) -> StreamHead | None:
        """Return the head of a stream, also after its events were purged; None for a stream without events."""
        return self._first(StreamHead, "select * from event_store.stream_head(%s, %s)", (decider_id, decider))

    def register_decider_event(
        self, decider: str, event: str, description: str, event_version: int = 1, owner: str | None = None
    ) -> DeciderEvent:
        """Register an event that a decider may append; repeating the call changes nothing.

        The first registration of a decider may name its owner: only members of that role append to it.
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
        """Set the JSON Schema that data of an event must fit from now on; repeating the call changes nothing.

        Registers the event if it is not registered yet, with the schema's description.
        """
        return self._one(
            EventSchema,
            "select * from event_store.register_event_schema(%s, %s, %s, %s)",
            (decider, event, jsonb(schema), event_version),
        )

    def register_event_upcast(self, decider: str, event: str, to_version: int, moves: Iterable[Json]) -> EventUpcast:
        """Set the moves from the previous version's data to those of `to_version`; repeating the call changes nothing.

        Moves are those of `millrace.event_schemas`, or lists of them. A version that is new is registered, too.
        """
        return self._one(
            EventUpcast,
            "select * from event_store.register_event_upcast(%s, %s, %s, %s)",
            (decider, event, to_version, jsonb(flat(moves))),
        )

    def events_of_correlation(self, correlation_id: str, after_offset: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of all streams with this correlation_id in their metadata, in the order of offsets."""
        query = "select {} from event_store.events_of_correlation(%s, %s, %s)"
        return self._all(Event, query.format(STORED), (correlation_id, after_offset, limit))

    def stream_state(self, model: str, fingerprint: str, decider: str, decider_id: str) -> StreamState | None:
        """Return a fold read model's state of one stream, for a login that may read; None where it is no snapshot."""
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
        """Return the result of `stream_state`, the upcast events behind it, and whether an event is stored.

        All three come from one query, as of one moment.
        """
        query = """
            select e.*, case when e.number > 1 then null else s.state end as state,
              s.version as state_version, s."offset" as state_offset,
              %s and exists (select from event_store.log_position(%s)) as is_stored
            from (select) one
            left join event_store.stream_state(%s, %s, %s, %s) s on true
            left join lateral (
              select {}, row_number() over () as number
              from event_store.read_stream(%s, %s, coalesce(s.version, 0) + 1, %s)
            ) e on true
        """
        rows = self._all(
            EventBehindState,
            query.format(NEWEST_SHAPE),
            (event_id is not None, event_id, model, fingerprint, decider, decider_id, decider, decider_id, limit),
        )
        first = rows[0]
        if first.state_version is None or first.state_offset is None:
            state = None
        else:
            state = StreamState(first.state, first.state_version, first.state_offset)
        return state, [row for row in rows if row.number is not None], first.is_stored

    def read_log(
        self,
        partition: int,
        from_position: int,
        limit: int = 1000,
        deciders: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
    ) -> list[Event]:
        """Read up to `limit` events of a log partition from a position on; none at the high-water mark.

        With deciders or events it returns only those, and reads on until it has `limit` of them.
        """
        query = "select {}, position from event_store.read_log(%s, %s, %s, %s, %s)"
        return self._all(
            Event, query.format(STORED), (partition, from_position, limit, listed(deciders), listed(events))
        )

    def log_position(self, event_id: UUID) -> LogPosition | None:
        """Return where an event is in the log; None for an event that is not stored, or was purged."""
        return self._first(LogPosition, "select * from event_store.log_position(%s)", (event_id,))

    def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return self._all(PartitionInfo, "select * from event_store.partition_info()")

    def available_offset_range(self, partition: int | None = None) -> list[AvailableRange]:
        """Return the range of positions that a log partition holds; None asks for all log partitions."""
        return self._all(AvailableRange, "select * from event_store.available_offset_range(%s)", (partition,))

    def validate_offset_range(self, partition: int, from_position: int, to_position: int) -> None:
        """Refuse a range [from_position, to_position) if the log does not hold all of it."""
        self._value(
            str, "select event_store.validate_offset_range(%s, %s, %s)", (partition, from_position, to_position)
        )

    def offset_for_timestamp(self, partition: int, timestamp: datetime | str) -> int:
        """Return the first kept position of an event appended at or after a time, else the high-water mark."""
        return self._value(int, "select event_store.offset_for_timestamp(%s, %s)", (partition, moment_of(timestamp)))


def _arguments(stream: StreamEvents) -> tuple[object, ...]:
    """Return the arguments of `append_event`; -1 stands for any version."""
    (event,) = stream.events
    return (
        event.event,
        event.event_id,
        stream.decider,
        stream.decider_id,
        jsonb(event.data),
        event.command_id,
        event.event_version,
        event.final,
        -1 if stream.expected_version is None else stream.expected_version,
        None if event.metadata is None else jsonb(event.metadata),
    )


def appended_of(stream: StreamEvents, rows: Sequence[AppendedEvent]) -> Appended:
    """Return one `Appended` for the rows of a stream's events."""
    last, ids = rows[-1], tuple(row.event_id for row in rows)
    return Appended(
        stream.decider, stream.decider_id, ids, last.version, last.offset, any(row.appended for row in rows)
    )
