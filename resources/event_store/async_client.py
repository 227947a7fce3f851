"""The event store's client on psycopg's asynchronous connections: what a service calls of `EventStore`.

Written by `scripts/write_async_client.py` from `sql_functions`, `waiting` and `client`: change those.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Self
from uuid import UUID

import psycopg
from msgspec.structs import replace
from psycopg.rows import BaseRowFactory, scalar_row

from millrace.resources.connecting import require_iso
from millrace.resources.errors import Malformed
from millrace.resources.event_store.client import STREAM_PAGE, listed, moment_of
from millrace.resources.event_store.json_text import events_json, flat, jsonb
from millrace.resources.event_store.refusals import refusals
from millrace.resources.event_store.rows import (
    NEWEST_SHAPE,
    AppendedEvent,
    DeciderEvent,
    Delivery,
    Event,
    EventBehindState,
    EventPosition,
    EventSchema,
    EventUpcast,
    Json,
    Lock,
    LogPosition,
    NewEvent,
    StreamHead,
    StreamState,
    View,
    in_their_streams,
)
from millrace.resources.event_store.sql_functions import (
    ASKED_AFTER,
    InfinityLoader,
    Loaders,
    Row,
    loaders_of,
    own_sessions,
    shape_of,
)
from millrace.resources.event_store.status_rows import (
    PartitionInfo,
)
from millrace.resources.event_store.tracing import all_passed_on, passed_on
from millrace.resources.event_store.waiting import (
    FIRST_PAUSE_S,
    GROWTH,
    LAST_PAUSE_S,
    InStream,
    Seen,
    _require_idle,
    last_of_each_stream,
    never_seen,
)
from millrace.resources.patience import PATIENCE_S

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool


class AsyncSqlFunctions:
    """Calls over a connection, which stays the caller's: its transactions, its settings, the loaders of its queries.

    With a pool each call takes a connection of it, and is a transaction of its own.

    Attributes:
        loaders: How values of some types are read, by the type's name.
    """

    loaders: ClassVar[Loaders] = {"timestamptz": InfinityLoader}

    def __init__(self, connection: "psycopg.AsyncConnection | AsyncConnectionPool") -> None:
        self._source = connection

    @property
    def connection(self) -> psycopg.AsyncConnection:
        """Where the calls go.

        Raises:
            TypeError: They go to a pool, which gives each call another connection.
        """
        if not isinstance(self._source, psycopg.AsyncConnection):
            raise TypeError("Its calls go to a pool: on_one_connection() gives a store that has one connection.")
        return self._source

    @asynccontextmanager
    async def on_one_connection(self) -> AsyncIterator[Self]:
        """Yield a store whose calls all go to one connection: a session's own, or one that a pool gives for this block.

        A pool commits at the end of the block, or rolls back where it raises, as `AsyncConnectionPool.connection` says.
        """
        async with self._connected() as connection:
            yield type(self)(connection)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Let a refusal in this block leave the transaction going that the connection is in, if it is in one."""
        in_transaction = psycopg.pq.TransactionStatus.INTRANS
        if isinstance(self._source, psycopg.AsyncConnection) and self._source.info.transaction_status == in_transaction:
            async with self._source.transaction():
                yield
        else:
            yield

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        if isinstance(self._source, psycopg.AsyncConnection):
            yield self._source
        else:
            async with self._source.connection() as connection:
                yield connection

    async def _all(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the rows of a call in order, as objects of a row class."""
        return await self._fetched(shape_of(row), query, arguments, loaders_of(row, self.loaders))

    async def _one(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only row of a call, as an object of a row class."""
        (only,) = await self._all(row, query, arguments)
        return only

    async def _first(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row | None:
        """Return the first row of a call, as an object of a row class; None without rows."""
        return next(iter(await self._all(row, query, arguments)), None)

    async def _values(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the values of a call whose rows have one column, in order."""
        values = await self._fetched(scalar_row, query, arguments)
        assert all(isinstance(value, kind) for value in values)
        return values

    async def _value(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only value of a call; that of a function without a result is an empty text."""
        (only,) = await self._values(kind, query, arguments)
        return only

    async def _fetched(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders | None = None
    ) -> list[Row]:
        with refusals():
            return await self._rows(shape, query, arguments, self.loaders if loaders is None else loaders)

    async def _rows(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders
    ) -> list[Row]:
        async with self._connected() as connection, connection.cursor(row_factory=shape) as cursor:
            require_iso(connection)
            for name, loader in loaders.items():
                # of this cursor only: the connection, and so the caller's own queries, stay as they are
                cursor.adapters.register_loader(name, loader)
            # an int without its type fits what the function takes, or is refused as out of range
            given = tuple(str(value) if type(value) is int else value for value in arguments)
            await cursor.execute(
                query.encode(), given, prepare=None if await self._has_own_session(connection) else False
            )
            return await cursor.fetchall()

    async def _has_own_session(self, connection: psycopg.AsyncConnection) -> bool:
        """Say whether a statement may be prepared: behind a pool such as pgbouncer the next session would not know it.

        A server tells its own process when one connects, and a pool cannot. Few calls are not worth the question.
        """
        known = own_sessions.get(connection, 0)
        if isinstance(known, bool):
            return known
        own_sessions[connection] = known + 1
        if known < ASKED_AFTER:
            return False
        async with connection.cursor(row_factory=scalar_row) as cursor:
            await cursor.execute("select pg_backend_pid()", prepare=False)
            own_sessions[connection] = own = await cursor.fetchall() == [connection.info.backend_pid]
        return own


class AsyncWaiting(AsyncSqlFunctions):
    """The part of `AsyncEventStore` for those who read what they wrote."""

    async def has_seen(self, view: str, decider: str, decider_id: str, offset: int) -> Seen:
        """Return whether a view, or the serving version of a read model, has an event of a stream."""
        return await self._one(
            Seen, "select * from event_store.has_seen(%s, %s, %s, %s)", (view, decider, decider_id, offset)
        )

    async def wait_for(self, view: str, appended: InStream | Iterable[InStream], timeout_s: float = 5.0) -> bool:
        """Wait until a view has an event, or several, and return True; False if it has not after `timeout_s` seconds.

        It asks again and again, each time in a transaction of its own: nothing is held in between, and with a pool no
        connection either.

        Args:
            view: A view, or a read model, whose serving version counts.
            appended: An event that is committed, or several, as `append_events` returns them.
            timeout_s: How long to wait; 0 to ask once.

        Raises:
            NeverSeen: The view will not have it by itself; `reason` says why.
            TransactionOpen: The connection is in a transaction, in which one may not wait for others.
        """
        until = time.monotonic() + timeout_s
        pause = FIRST_PAUSE_S
        waiting = last_of_each_stream(appended)
        while waiting:
            found = await self._asked(view, waiting[-1])
            if found.seen:
                waiting.pop()
                continue
            if found.never is not None:
                raise never_seen(view, found)
            left = until - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(pause, left))
            pause = min(pause * GROWTH, LAST_PAUSE_S)
        return True

    async def _asked(self, view: str, event: InStream) -> Seen:
        """Ask once, in a transaction that is over afterwards."""
        async with self._connected() as connection:
            # its snapshot may be older than what is waited for, and while it is open the server cannot clean up
            _require_idle(connection, f"The event is {event.decider} {event.decider_id!r}, offset {event.offset}.")
            async with connection.transaction():
                return await type(self)(connection).has_seen(view, event.decider, event.decider_id, event.offset)

    @asynccontextmanager
    async def _committing(self) -> AsyncIterator[Self]:
        """Yield a store with one connection, each of whose calls is a transaction that is committed at once."""
        async with self._connected() as connection:
            _require_idle(connection, "Positions are decided after the commit.")
            before = connection.autocommit
            await connection.set_autocommit(True)
            try:
                yield type(self)(connection)
            finally:
                if not connection.closed:
                    await connection.set_autocommit(before)


class AsyncEventStore(AsyncWaiting):
    """What a service calls of the event store, on a connection or a pool, as coroutines.

    It registers, appends and reads, by stream and by the log, registers views and consumes them event by event
    (`rows`), and waits for a view. The synchronous client has the rest: views of mode `bulk`, and what operators and
    Millrace's own processes call. Every method raises the `MillraceError` of its SQL function.
    """

    async def register_decider_event(
        self, decider: str, event: str, description: str, event_version: int = 1, owner: str | None = None
    ) -> DeciderEvent:
        """Register an event that a decider may append; a second time changes nothing.

        The first registration of a decider may name the role whose members alone append to it.
        """
        return await self._one(
            DeciderEvent,
            "select * from event_store.register_decider_event(%s, %s, %s, %s, %s)",
            (decider, event, description, event_version, owner),
        )

    async def register_decider_events(
        self, events: Iterable[DeciderEvent], owner: str | None = None
    ) -> list[DeciderEvent]:
        """Register many events, all or none, and return them as registered."""
        return await self._all(
            DeciderEvent,
            "select * from event_store.register_decider_events(%s, %s)",
            (jsonb([asdict(event) for event in events]), owner),
        )

    async def register_event_schema(
        self, decider: str, event: str, schema: Json, event_version: int = 1
    ) -> EventSchema:
        """Set the JSON Schema that data of an event must fit from now on; the same a second time changes nothing.

        An event that is not registered yet is, with the schema's description.
        """
        return await self._one(
            EventSchema,
            "select * from event_store.register_event_schema(%s, %s, %s, %s)",
            (decider, event, jsonb(schema), event_version),
        )

    async def register_event_upcast(
        self, decider: str, event: str, to_version: int, moves: Iterable[Json]
    ) -> EventUpcast:
        """Say by which moves data of the version before become data of `to_version`; the same again changes nothing.

        Moves are those of `millrace.events`, or lists of them. A version that is not registered is.
        """
        return await self._one(
            EventUpcast,
            "select * from event_store.register_event_upcast(%s, %s, %s, %s)",
            (decider, event, to_version, jsonb(flat(moves))),
        )

    async def append_event(
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
        return await self._one(
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

    async def append_events(
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
            return in_their_streams(await self._all(AppendedEvent, append, (events_json(given),)), given)
        if not 0 <= positions_within_s <= PATIENCE_S:  # before anything is stored
            raise Malformed(
                "request is malformed",
                detail=f"positions_within_s is {positions_within_s!r}",
                hint=f"It is from 0 to {PATIENCE_S}.",
            )
        look, ids = "select * from event_store.await_positions(%s::uuid[], %s)", [event.event_id for event in given]
        async with self._committing() as store:
            appended = await store._all(AppendedEvent, append, (events_json(given),))
            placed = await store._all(EventPosition, look, (ids, positions_within_s))
        places = {each.event_id: {"partition": each.partition, "position": each.position} for each in placed}
        found = [replace(each, **places.get(each.event_id, {})) for each in appended]
        return in_their_streams(found, given)

    async def get_events(self, decider_id: str | UUID, decider: str, *, upcast: bool = False) -> list[Event]:
        """Return the events of one stream in order; with `upcast` their data in the newest shape."""
        query = "select {} from event_store.get_events(%s, %s)"
        return await self._all(Event, query.format(NEWEST_SHAPE if upcast else "*"), (decider_id, decider))

    async def read_stream(
        self,
        decider: str,
        decider_id: str | UUID,
        from_version: int | None = None,
        limit: int | None = None,
        *,
        backwards: bool = False,
        upcast: bool = False,
    ) -> AsyncIterator[Event]:
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
            page = await self._all(
                Event,
                query,
                (decider, decider_id, from_version, size, backwards),
            )
            for each in page:
                yield each
            limit = None if limit is None else limit - size
            if len(page) < size or limit == 0:
                return
            last = page[-1].version
            assert last is not None
            if backwards and last == 1:
                return
            from_version = last + (-1 if backwards else 1)

    async def events_of_correlation(self, correlation_id: str, after_offset: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events whose metadata have a correlation_id, over all streams, in the order of offsets."""
        return await self._all(
            Event,
            "select * from event_store.events_of_correlation(%s, %s, %s)",
            (correlation_id, after_offset, limit),
        )

    async def get_last_event(self, decider_id: str | UUID, decider: str) -> Event | None:
        """Return the last event of one stream, None for an unknown stream, or if that event was purged."""
        return await self._first(Event, "select * from event_store.get_last_event(%s, %s)", (decider_id, decider))

    async def stream_head(self, decider_id: str | UUID, decider: str) -> StreamHead | None:
        """Return where one stream stands, also after its events were purged; None for a stream without events."""
        return await self._first(StreamHead, "select * from event_store.stream_head(%s, %s)", (decider_id, decider))

    async def stream_state(self, model: str, fingerprint: str, decider: str, decider_id: str) -> StreamState | None:
        """Return what a fold read model has of one stream, for a login that may read; None where it is no snapshot."""
        call = "select * from event_store.stream_state(%s, %s, %s, %s)"
        return await self._first(StreamState, call, (model, fingerprint, decider, decider_id))

    async def stream_behind_state(
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
        rows = await self._all(
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

    async def register_view(
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
        return await self._one(
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

    async def is_registered(self, view: str) -> bool:
        """Return whether a view of this name is registered."""
        return await self._value(bool, "select event_store.is_registered(%s)", (view,))

    async def stream_events(self, view_name: str, limit: int = 1, seconds: int | None = None) -> list[Event]:
        """Lock free streams of a rows view and return the next event of each."""
        return await self._all(
            Event, "select * from event_store.stream_events(%s, %s, %s)", (view_name, limit, seconds)
        )

    async def lease_events(
        self, view: str, limit: int = 1, seconds: int | None = None, *, ahead: bool = False, upcast: bool = False
    ) -> list[Delivery]:
        """Do as `stream_events`, and return with each event the token that fences its lock.

        With `ahead` a lock that ends without an answer is no attempt, unless `extend_lock` was called for it; with
        `upcast` data come in the newest shape of their event.
        """
        query = "select {} from event_store.lease_events(%s, %s, %s, %s)"
        columns = f"{NEWEST_SHAPE}, version, metadata, lease_token, attempt, suspect" if upcast else "*"
        return await self._all(Delivery, query.format(columns), (view, limit, seconds, ahead))

    async def ack_event(
        self, view: str, decider_id: str | UUID, offset: int, lease_token: int | None = None
    ) -> list[Lock]:
        """Acknowledge the event in flight and free its stream."""
        return await self._all(
            Lock, "select * from event_store.ack_event(%s, %s, %s, %s)", (view, decider_id, offset, lease_token)
        )

    async def ack_events(
        self, view: str, offsets: Sequence[int], lease_tokens: Sequence[int] | None = None
    ) -> set[int]:
        """Acknowledge many events; return the offsets that count, all others are delivered again."""
        acknowledged = await self._values(
            int,
            "select * from event_store.ack_events(%s, %s::bigint[], %s::bigint[])",
            (view, list(offsets), list(lease_tokens) if lease_tokens is not None else None),
        )
        return set(acknowledged)

    async def nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Give back the event in flight; it is delivered again at once. `error` says why, for operators."""
        return await self._all(
            Lock,
            "select * from event_store.nack_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, lease_token, error),
        )

    async def schedule_nack_event(
        self,
        view: str,
        decider_id: str | UUID,
        milliseconds: int,
        offset: int | None = None,
        lease_token: int | None = None,
        error: str | None = None,
    ) -> list[Lock]:
        """Give back the event in flight; it is delivered again after so many milliseconds. `error` says why."""
        return await self._all(
            Lock,
            "select * from event_store.schedule_nack_event(%s, %s, %s, %s, %s, %s)",
            (view, decider_id, milliseconds, offset, lease_token, error),
        )

    async def fail_event(
        self, view: str, decider_id: str | UUID, offset: int, error: str, lease_token: int | None = None
    ) -> list[Lock]:
        """Report that the event in flight failed: its stream is retried, later each time, and then parked."""
        return await self._all(
            Lock,
            "select * from event_store.fail_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, error, lease_token),
        )

    async def extend_lock(
        self, view: str, decider_id: str | UUID, offset: int, seconds: int | None = None, lease_token: int | None = None
    ) -> list[Lock]:
        """Let the lock of the event in flight last so many seconds from now, and say that it is being handled."""
        return await self._all(
            Lock,
            "select * from event_store.extend_lock(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, seconds, lease_token),
        )

    async def read_log(
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
        return await self._all(
            Event,
            "select * from event_store.read_log(%s, %s, %s, %s, %s)",
            (partition, from_position, limit, listed(deciders), listed(events)),
        )

    async def log_position(self, event_id: UUID) -> LogPosition | None:
        """Return where an event is in the log; None for an event that is not stored, or was purged."""
        return await self._first(LogPosition, "select * from event_store.log_position(%s)", (event_id,))

    async def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return await self._all(PartitionInfo, "select * from event_store.partition_info()")
