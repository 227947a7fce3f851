"""The event store's client on psycopg's asynchronous connections.

Written by `scripts/write_async_client.py` from `sql_functions`, `waiting`, `sealing`, `scheduling`, `client` and
`views`: change those.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from uuid import UUID

import psycopg
from psycopg.rows import BaseRowFactory, scalar_row

from millrace.errors import KeyGone, Malformed
from millrace.event_store.client import APPEND_ONE, STREAM_PAGE, _arguments, appended_of
from millrace.event_store.json_text import flat, jsonb
from millrace.event_store.new_events import NewEvent, StreamEvents, all_passed_on, batch_json, on, stream_json
from millrace.event_store.refusals import refusals
from millrace.event_store.rows import (
    NEWEST_SHAPE,
    RECORDED,
    STORED,
    Appended,
    AppendedEvent,
    AvailableRange,
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
    Scheduled,
    ScheduledEvent,
    StreamHead,
    StreamState,
    View,
)
from millrace.event_store.scheduling import LONGEST, SCHEDULE
from millrace.event_store.sealing import MAY_OPEN, Read, readable, with_sealed
from millrace.event_store.sql_functions import (
    CHECK_AFTER_CALLS,
    MOST_KEPT_ROWS,
    InfinityLoader,
    Loaders,
    Row,
    can_prepare,
    encoded,
    loaders_of,
    shape_of,
)
from millrace.event_store.status_rows import PartitionInfo
from millrace.event_store.views import listed, moment_of
from millrace.event_store.waiting import (
    FIRST_PAUSE_S,
    GROWTH,
    LAST_PAUSE_S,
    InStream,
    Seen,
    last_of_each_stream,
    never_seen,
    require_idle,
)
from millrace.personal.values import SEALED, Key, StoredKey
from millrace.postgres.connecting import require_iso

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

    from millrace.personal.sealer import Sealer
if TYPE_CHECKING:
    from pydantic import BaseModel
if TYPE_CHECKING:
    from pydantic import BaseModel


class AsyncSqlFunctions:
    """Calls over the caller's connection, without changing its transactions, its settings or its queries' loaders.

    With a pool each call takes a connection from it, and is a transaction of its own.

    Attributes:
        sealer: Seals personal values of appended events, and opens them in those that are read.
        loaders: The loaders for values of some types, by the type's name.
    """

    loaders: ClassVar[Loaders] = {"timestamptz": InfinityLoader}

    def __init__(
        self, connection: "psycopg.AsyncConnection | AsyncConnectionPool", *, sealer: "Sealer | None" = None
    ) -> None:
        self._source, self.sealer = connection, sealer
        # idle cursors of the connection: making one and registering its loaders takes as long as a call
        self._cursors = defaultdict[tuple[BaseRowFactory[Any], str], list[psycopg.AsyncCursor[Any]]](list)

    @property
    def connection(self) -> psycopg.AsyncConnection:
        """The connection that all calls use.

        Raises:
            TypeError: The calls go to a pool, which gives each call another connection.
        """
        if not isinstance(self._source, psycopg.AsyncConnection):
            raise TypeError("Its calls go to a pool: on_one_connection() gives a store that has one connection.")
        return self._source

    @asynccontextmanager
    async def on_one_connection(self) -> AsyncIterator[Self]:
        """Yield a store with all calls on one connection: this store's, or one that the pool lends for this block.

        A pool commits at the end of the block, or rolls back if it raises, as `AsyncConnectionPool.connection` says.
        """
        async with self._connected() as connection:
            yield self if connection is self._source else type(self)(connection, sealer=self.sealer)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Keep an open transaction of the connection usable after a refusal in this block."""
        if self._status == psycopg.pq.TransactionStatus.INTRANS:
            async with self.connection.transaction():
                yield
        else:
            yield

    @property
    def _status(self) -> psycopg.pq.TransactionStatus | None:
        return self._source.info.transaction_status if isinstance(self._source, psycopg.AsyncConnection) else None

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
        """Return the values of a call with a single column, in order."""
        values = await self._fetched(scalar_row, query, arguments, self.loaders)
        assert all(isinstance(value, kind) for value in values)
        return values

    async def _value(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only value of a call; a function without a result gives an empty text."""
        (only,) = await self._values(kind, query, arguments)
        return only

    async def _fetched(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders | None
    ) -> list[Row]:
        with refusals():
            return await self._rows(shape, query, arguments, loaders)

    async def _rows(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders | None
    ) -> list[Row]:
        async with self._connected() as connection:
            require_iso(connection)
            cursors = self._cursors[shape, connection.info.encoding] if connection is self._source else []
            # threads and tasks may call concurrently: each takes its own cursor
            cursor = cursors.pop() if cursors else await self._cursor(connection, shape, loaders)
            # an int sent as text gets the parameter's type, or is refused as out of range
            parameters = tuple([str(value) if type(value) is int else value for value in arguments])
            await self._execute(
                cursor, encoded(query), parameters, None if await self._can_prepare(connection) else False
            )
            rows = await cursor.fetchall()
            if len(rows) <= MOST_KEPT_ROWS:
                cursors += [cursor]
            return rows

    async def _execute(
        self, cursor: psycopg.AsyncCursor[Any], query: bytes, parameters: Sequence[object], prepare: bool | None
    ) -> None:
        await cursor.execute(query, parameters, prepare=prepare)

    async def _cursor(
        self, connection: psycopg.AsyncConnection, shape: BaseRowFactory[Row], loaders: Loaders | None
    ) -> psycopg.AsyncCursor[Row]:
        cursor = connection.cursor(row_factory=shape, binary=loaders is None)
        for name, loader in (loaders or {}).items():
            # for this cursor only: the connection, and so the caller's own queries, stay as they are
            cursor.adapters.register_loader(name, loader)
        return cursor

    async def _can_prepare(self, connection: psycopg.AsyncConnection) -> bool:
        """Say whether statements may be prepared: behind a pool such as pgbouncer the next session would not know them.

        A server tells a new connection its process id; a pool cannot. Few calls are not worth the question.
        """
        cached = can_prepare.get(connection, 0)
        if isinstance(cached, bool):
            return cached
        can_prepare[connection] = cached + 1
        if cached < CHECK_AFTER_CALLS:
            return False
        async with connection.cursor(row_factory=scalar_row) as cursor:
            await cursor.execute("select pg_backend_pid()", prepare=False)
            can_prepare[connection] = allowed = await cursor.fetchall() == [connection.info.backend_pid]
        return allowed


class AsyncWaiting(AsyncSqlFunctions):
    """The part of `PlatformStore` for callers that read their own writes."""

    async def has_seen(self, view: str, decider: str, decider_id: str, offset: int) -> Seen:
        """Return whether a view, or the serving version of a read model, has an event of a stream."""
        return await self._one(
            Seen, "select * from event_store.has_seen(%s, %s, %s, %s)", (view, decider, decider_id, offset)
        )

    async def wait_for(self, view: str, appended: InStream | Iterable[InStream], timeout_s: float = 5.0) -> bool:
        """Wait until a view has an event, or several; return False if it does not have them after `timeout_s` seconds.

        It asks repeatedly, each time in a transaction of its own. In between it holds no lock, and of a pool no
        connection.

        Args:
            view: A view, or a read model: then its serving version counts.
            appended: An event that is committed, or several, as `append_all` returns them.
            timeout_s: How long to wait, in seconds; 0 to ask once.

        Raises:
            NeverSeen: The view will not have the event by itself; `reason` says why.
            TransactionOpen: The connection is in a transaction, which cannot wait for commits of others.
        """
        until = time.monotonic() + timeout_s
        pause = FIRST_PAUSE_S
        waiting = last_of_each_stream(appended)
        while waiting:
            event = waiting[-1]
            async with self._connected() as connection:
                # an open transaction may have an older snapshot than the event, and it stops the server's cleaning up
                require_idle(connection, f"The event is {event.decider} {event.decider_id!r}, offset {event.offset}.")
                async with connection.transaction():
                    found = await type(self)(connection).has_seen(view, event.decider, event.decider_id, event.offset)
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

    async def positions(self, appended: Appended | Iterable[Appended], within_s: int = 5) -> list[EventPosition]:
        """Return the log positions of committed events; waits for them at most `within_s` seconds, from 0 to 60.

        A `position` is None if the event was not sequenced in time.

        Raises:
            TransactionOpen: The connection is in a transaction; until it ends its own events have no positions.
        """
        several = [appended] if isinstance(appended, Appended) else appended
        ids = [event_id for each in several for event_id in each.event_ids]
        async with self._connected() as connection:
            require_idle(connection, "Positions are decided after the commit.")
            async with connection.transaction():
                call = "select * from event_store.await_positions(%s::uuid[], %s)"
                return await type(self)(connection)._all(EventPosition, call, (ids, within_s))


class AsyncSealing(AsyncSqlFunctions):
    """The part of `UngatheredEventStore` that seals and opens personal values, where it has a sealer."""

    async def open_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows, such as those of a read model, with their sealed values opened.

        A value that is forgotten is `Forgotten`, and one that this sealer cannot open `Sealed`. Values that are text of
        JSON stay as they are.
        """
        given = [dict(row) for row in rows]
        if self.sealer is None:
            return given
        keys = await self._opening_keys(given)
        return [self.sealer.opened(row, keys) for row in given]

    async def _opened(self, events: list[Read]) -> list[Read]:
        """Let the data of events have the values themselves; their JSON texts stay as they are stored."""
        if self.sealer is not None:
            sealed = readable(event for event in events if f'"{SEALED}"' in event.data_json)
            keys = await self._opening_keys([event.data for event in sealed])
            for event in sealed:
                event.__dict__["data"] = self.sealer.opened(event.data, keys)
        return events

    async def _opening_keys(self, data: Sequence[Any]) -> Mapping[str, Key]:
        """Return the keys that open data, by their names; without the right, those that are kept."""
        assert self.sealer is not None
        keys = self.sealer.kept_by_name()
        names = [name for name in self.sealer.key_names_in(data) if name not in keys]
        if not names or not await self._value(bool, MAY_OPEN):
            return keys
        # a transaction that only reads must not write: it would hold up the log
        reads = isinstance(self._source, psycopg.AsyncConnection) and not self._source.autocommit
        if not reads and self._status in {None, psycopg.pq.TransactionStatus.IDLE}:
            await self._note_holder()
        for _ in range(2):  # a rotation may have destroyed a file since
            if self.sealer.learn(keys, await self._all(StoredKey, "select * from event_store.open_keys(%s)", (names,))):
                break
        return keys

    async def _note_holder(self) -> None:
        if self.sealer and (holder := self.sealer.to_note()):
            await self._value(str, "select event_store.note_holder(%s, %s, %s)", holder)

    async def _sealed(self, streams: Sequence[StreamEvents]) -> list[StreamEvents]:
        """Return events with their personal values sealed; a person without a key gets one."""
        if self.sealer is None:
            return [*streams]
        keys = dict[str, Key]()
        for decider in dict.fromkeys(stream.decider for stream in streams):
            data = [event.data for stream in streams if stream.decider == decider for event in stream.events]
            people = self.sealer.people_in(data)
            keys |= self.sealer.kept(people)
            if asked := [each for each in people if each not in keys]:
                keys |= await self._asked_keys(decider, asked)
        return with_sealed(streams, partial(self.sealer.sealed, keys=keys)) if keys else [*streams]

    async def _asked_keys(self, decider: str, people: Sequence[str]) -> dict[str, Key]:
        assert self.sealer is not None
        call = "select * from event_store.subject_keys(%s, %s, %s, %b::bytea[], %b::text[], %b::bytea[])"
        proposed = self.sealer.proposed(people)
        await self._note_holder()
        try:
            rows = await self._all(StoredKey, call, (decider, *proposed))
        except KeyGone as error:
            raise self.sealer.refused(proposed[0], error) from error
        return self.sealer.learnt(people, rows)

    async def _sealed_anew(self, streams: Sequence[StreamEvents]) -> list[StreamEvents]:
        """Within the handling of `KeyGone`: seal again with keys as they are now; raise it again in a transaction."""
        if self.sealer is not None:
            self.sealer.drop_keys()
        if self.sealer is None or self._status == psycopg.pq.TransactionStatus.INERROR:
            raise  # noqa: PLE0704 - the error that is handled
        return await self._sealed(streams)


class AsyncScheduling(AsyncSealing):
    """The part of `UngatheredEventStore` that schedules events."""

    async def schedule(
        self,
        decider: str,
        decider_id: str | UUID,
        event: "NewEvent | BaseModel",
        *,
        name: str,
        after: timedelta | None = None,
        at: datetime | None = None,
        unless: str | int | None = None,
        since_version: int | None = None,
        opens: bool = False,
        caused_by: Event | None = None,
    ) -> Scheduled:
        """Let an event be appended to the end of a stream later: not before, usually within a second.

        It commits with the caller's transaction. Scheduled again under the same name, it moves; with the same
        event_id, nothing changes.

        Args:
            decider: The kind of entity.
            decider_id: The entity.
            event: A `NewEvent`, or an object of a declared event.
            name: Its name in the stream, such as `pay`; 200 bytes at most.
            after: How long from now, by the server's clock; or state `at`.
            at: When; with a time zone.
            unless: The name of an event: it is not appended if that came first. Or a number: if the stream has more
                events.
            since_version: After which version `unless` counts; by default the stream's version now.
            opens: Whether it may be the first event of its stream.
            caused_by: The event that led to it, as for `append`.

        Raises:
            Malformed: Not one of `after` and `at` is stated, or the store does not take an argument.
            EventNotRegistered: The decider has no such event.
            DataRefused: The data do not fit the event's schema.
        """
        if (at is None) == (after is None) or (
            at.utcoffset() is None if at is not None else not isinstance(after, timedelta) or abs(after) > LONGEST
        ):
            raise Malformed(
                f"Not one of after, at most {LONGEST.days} days, and at, with a time zone, is stated.",
                detail=f"after is {after!r}, at is {at!r}",
                hint="Pass after=timedelta(days=3), or at=datetime(…, tzinfo=UTC).",
            )
        awaited: Json = {"event": unless} if isinstance(unless, str) else {"version_above": unless}
        rest = (None if unless is None else jsonb(awaited), since_version, opens)
        streams = all_passed_on([on(decider, decider_id, event)], caused_by)
        try:
            (sealed,) = await self._sealed(streams)
            return await self._scheduled(sealed, (at, after, name), rest)
        except KeyGone:
            (sealed,) = await self._sealed_anew(streams)
            return await self._scheduled(sealed, (at, after, name), rest)

    async def cancel_scheduled(self, decider: str, decider_id: str | UUID, name: str) -> bool:
        """Take back a scheduled event that waits or was refused; return whether there was one."""
        call = "select event_store.cancel_scheduled_event(%s, %s, %s)"
        return await self._value(bool, call, (decider, str(decider_id), name))

    async def scheduled_events(
        self, decider: str | None = None, decider_id: str | UUID | None = None, limit: int = 100
    ) -> list[ScheduledEvent]:
        """Return scheduled events that wait or were refused, and of a stream also those that are done."""
        call = (
            "select decider, decider_id, name, event_id, event, due_at, made_by, tries, last_error, done_at, outcome"
            " from event_store.scheduled_events_of(%s, %s, %s)"
        )
        return await self._all(ScheduledEvent, call, (decider, None if decider_id is None else str(decider_id), limit))

    async def _scheduled(
        self, stream: StreamEvents, when: tuple[datetime | None, timedelta | None, str], rest: Sequence[object]
    ) -> Scheduled:
        (event,) = stream.events
        metadata = None if event.metadata is None else jsonb(event.metadata)
        arguments = (
            event.event,
            event.event_id,
            stream.decider,
            stream.decider_id,
            jsonb(event.data),
            event.command_id,
        )
        return await self._one(
            Scheduled, SCHEDULE, (*arguments, *when, event.event_version, event.final, metadata, *rest)
        )


class UngatheredEventStore(AsyncWaiting, AsyncScheduling):
    """The event store behind a connection, or a pool. Every method raises the `MillraceError` of its SQL function."""

    async def append(
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
            return await self._sent(*await self._sealed(chained))
        except KeyGone:
            return await self._sent(*await self._sealed_anew(chained))

    async def _sent(self, stream: StreamEvents) -> Appended:
        return await self._appended(stream)

    async def _appended(self, stream: StreamEvents) -> Appended:
        if len(stream.events) == 1:
            call, parameters = APPEND_ONE.format('event_id, "offset", version, appended'), _arguments(stream)
        else:
            call = (
                'select event_id, "offset", version, appended from event_store.append_to_stream(%s, %s, %s::jsonb, %s)'
            )
            parameters = (stream.decider, stream.decider_id, stream_json(stream), stream.expected_version)
        return appended_of(stream, await self._all(AppendedEvent, call, parameters))

    async def append_all(self, streams: Iterable[StreamEvents], *, caused_by: Event | None = None) -> list[Appended]:
        """Append events to several streams, all or nothing, in this order.

        As in `append_all([on("cart", "cart-1", added), on("order", "order-7", placed)])`. The results have the
        order of the streams. Raises the errors of `append`.
        """
        chained = all_passed_on(streams, caused_by)
        try:
            return await self._appended_all(await self._sealed(chained))
        except KeyGone:
            return await self._appended_all(await self._sealed_anew(chained))

    async def _appended_all(self, streams: Sequence[StreamEvents], text: str | None = None) -> list[Appended]:
        call = 'select event_id, "offset", version, appended from event_store.append_events(%s::jsonb)'
        rows = iter(await self._all(AppendedEvent, call, (text or batch_json(streams),)))
        return [appended_of(stream, [next(rows) for _ in stream.events]) for stream in streams]

    async def append_returning(self, stream: StreamEvents, *, caused_by: Event | None = None) -> list[Event]:
        """Append events of one stream as `append` does, and return them as `read` does."""
        chained = all_passed_on([stream], caused_by)
        try:
            return await self._returned(*await self._sealed(chained))
        except KeyGone:
            return await self._returned(*await self._sealed_anew(chained))

    async def _returned(self, stream: StreamEvents) -> list[Event]:
        if len(stream.events) == 1:
            return await self._opened(
                await self._all(Event, APPEND_ONE.format(f"{RECORDED}, version"), _arguments(stream))
            )
        appended, number = await self._appended(stream), len(stream.events)
        stored = list[Event]()
        async for event in self.read(stream.decider, stream.decider_id, appended.version - number + 1, number):
            stored += [event]
        return stored

    async def read(
        self,
        decider: str,
        decider_id: str | UUID,
        from_version: int | None = None,
        limit: int | None = None,
        *,
        backwards: bool = False,
        upcast: bool = False,
    ) -> AsyncIterator[Event]:
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
            page = await self._opened(
                await self._all(Event, query, (decider, decider_id, from_version, size, backwards))
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

    async def head(self, decider: str, decider_id: str | UUID) -> StreamHead | None:
        """Return the head of a stream, also after its events were purged; None for a stream without events."""
        return await self._first(StreamHead, "select * from event_store.stream_head(%s, %s)", (decider_id, decider))

    async def register_decider_event(
        self, decider: str, event: str, description: str, event_version: int = 1, owner: str | None = None
    ) -> DeciderEvent:
        """Register an event that a decider may append; repeating the call changes nothing.

        The first registration of a decider may name its owner: only members of that role append to it.
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
        """Set the JSON Schema that data of an event must fit from now on; repeating the call changes nothing.

        Registers the event if it is not registered yet, with the schema's description.
        """
        return await self._one(
            EventSchema,
            "select * from event_store.register_event_schema(%s, %s, %s, %s)",
            (decider, event, jsonb(schema), event_version),
        )

    async def register_event_upcast(
        self, decider: str, event: str, to_version: int, moves: Iterable[Json]
    ) -> EventUpcast:
        """Set the moves from the previous version's data to those of `to_version`; repeating the call changes nothing.

        Moves are those of `millrace.event_schemas`, or lists of them. A version that is new is registered, too.
        """
        return await self._one(
            EventUpcast,
            "select * from event_store.register_event_upcast(%s, %s, %s, %s)",
            (decider, event, to_version, jsonb(flat(moves))),
        )

    async def events_of_correlation(self, correlation_id: str, after_offset: int = 0, limit: int = 1000) -> list[Event]:
        """Return the events of all streams with this correlation_id in their metadata, in the order of offsets."""
        query = "select {} from event_store.events_of_correlation(%s, %s, %s)"
        return await self._all(Event, query.format(STORED), (correlation_id, after_offset, limit))

    async def stream_state(self, model: str, fingerprint: str, decider: str, decider_id: str) -> StreamState | None:
        """Return a fold read model's state of one stream, for a login that may read; None where it is no snapshot."""
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
        rows = await self._all(
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

    async def read_log(
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
        return await self._all(
            Event, query.format(STORED), (partition, from_position, limit, listed(deciders), listed(events))
        )

    async def log_position(self, event_id: UUID) -> LogPosition | None:
        """Return where an event is in the log; None for an event that is not stored, or was purged."""
        return await self._first(LogPosition, "select * from event_store.log_position(%s)", (event_id,))

    async def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return await self._all(PartitionInfo, "select * from event_store.partition_info()")

    async def available_offset_range(self, partition: int | None = None) -> list[AvailableRange]:
        """Return the range of positions that a log partition holds; None asks for all log partitions."""
        return await self._all(AvailableRange, "select * from event_store.available_offset_range(%s)", (partition,))

    async def validate_offset_range(self, partition: int, from_position: int, to_position: int) -> None:
        """Refuse a range [from_position, to_position) if the log does not hold all of it."""
        await self._value(
            str, "select event_store.validate_offset_range(%s, %s, %s)", (partition, from_position, to_position)
        )

    async def offset_for_timestamp(self, partition: int, timestamp: datetime | str) -> int:
        """Return the first kept position of an event appended at or after a time, else the high-water mark."""
        return await self._value(
            int, "select event_store.offset_for_timestamp(%s, %s)", (partition, moment_of(timestamp))
        )


class AsyncViews(AsyncSealing):
    """The calls of a consumer of `rows` views, which get events one at a time; also as coroutines."""

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
        push_unseal: bool | None = None,
    ) -> View:
        """Register a view, or change the settings that are not None; its progress never changes.

        Args:
            view: Its name.
            start_at: The time from which it wants events; '-infinity' for all, None for now. The first call sets it.
            lock_timeout_s: How long a lock or a lease lasts by default, in seconds; at first 300.
            pooling_delay_s: The wait between two polls that found nothing, in seconds.
            edge_function_url: The URL that events are pushed to; '' clears it.
            mode: 'rows' or 'bulk', which never changes; at first 'rows'.
            deciders: The deciders it wants; [] for all, as at first.
            events: The events it wants; [] for all, as at first.
            max_attempts: The number of failed attempts after which a stream is parked; at first 5.
            owner: The role that owns it: only its members may change and consume it. At first the login, or
                event_store_consumer if the login is a member of event_store_owner.
            version: The version of the registering program; a lower version than the view's changes no settings.
            push_format: The format of pushed events, 'json' or 'cloudevents'; at first 'json'.
            push_upcast: Whether data are pushed in the newest shape of their event; at first not.
            push_unseal: Whether personal values are pushed opened; at first not. Only members of event_store_personal
                change such a view.
        """
        return await self._one(
            View,
            "select * from event_store.register_view(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
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
                push_unseal,
            ),
        )

    async def is_registered(self, view: str) -> bool:
        """Return whether a view of this name is registered."""
        return await self._value(bool, "select event_store.is_registered(%s)", (view,))

    async def stream_events(self, view_name: str, limit: int = 1, seconds: int | None = None) -> list[Event]:
        """Lock free streams of a rows view and return the next event of each."""
        query = "select {} from event_store.stream_events(%s, %s, %s)"
        return await self._opened(await self._all(Event, query.format(RECORDED), (view_name, limit, seconds)))

    async def lease_events(
        self, view: str, limit: int = 1, seconds: int | None = None, *, ahead: bool = False, upcast: bool = False
    ) -> list[Delivery]:
        """Lock and return events like `stream_events`, each with the token that fences its lock.

        With `ahead` a lock that ends without an answer counts as an attempt only if `extend_lock` was called for it.
        With `upcast` data come in the newest shape of their event.
        """
        query = "select {} from event_store.lease_events(%s, %s, %s, %s)"
        columns = f"{NEWEST_SHAPE if upcast else STORED}, lease_token, attempt, suspect"
        return await self._opened(await self._all(Delivery, query.format(columns), (view, limit, seconds, ahead)))

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
        """Acknowledge many events; return the acknowledged offsets. All others are delivered again."""
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
        """Release the event in flight; it is delivered again at once. `error` tells operators why."""
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
        """Release the event in flight; it is delivered again after `milliseconds`. `error` tells operators why."""
        return await self._all(
            Lock,
            "select * from event_store.schedule_nack_event(%s, %s, %s, %s, %s, %s)",
            (view, decider_id, milliseconds, offset, lease_token, error),
        )

    async def fail_event(
        self, view: str, decider_id: str | UUID, offset: int, error: str, lease_token: int | None = None
    ) -> list[Lock]:
        """Report that the event in flight failed: its stream is retried with growing backoff, and then parked."""
        return await self._all(
            Lock,
            "select * from event_store.fail_event(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, error, lease_token),
        )

    async def extend_lock(
        self, view: str, decider_id: str | UUID, offset: int, seconds: int | None = None, lease_token: int | None = None
    ) -> list[Lock]:
        """Extend the lock of the event in flight to `seconds` from now, and record that it is being handled."""
        return await self._all(
            Lock,
            "select * from event_store.extend_lock(%s, %s, %s, %s, %s)",
            (view, decider_id, offset, seconds, lease_token),
        )
