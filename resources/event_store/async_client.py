"""The event store's client on psycopg's asynchronous connections: `EventStore` with coroutines for methods.

Written by `scripts/write_async_client.py` from `sql_functions`, `rounds`, `waiting` and `client`: change those.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Literal, Self
from uuid import UUID

import psycopg
from msgspec.structs import replace
from psycopg.rows import BaseRowFactory, scalar_row

from millrace.resources.connecting import require_iso
from millrace.resources.errors import Malformed
from millrace.resources.event_store.client import LONGEST_WAIT_S, STREAM_PAGE, listed, moment_of, tokens_of
from millrace.resources.event_store.json_text import events_json, flat, jsonb
from millrace.resources.event_store.lease_rows import (
    ExpiredLease,
    Lease,
    LockedPartition,
    LockedStream,
    MisreadStream,
    StreamFailure,
    ViewLease,
)
from millrace.resources.event_store.refusals import refusals
from millrace.resources.event_store.rounds import by_view
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
    DrainState,
    OldestWriter,
    PartitionInfo,
    PartitionLag,
    Problem,
    SequencerHolder,
    ViewBeyondLog,
    ViewInfo,
    ViewPoll,
    WantingView,
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


class AsyncRounds(AsyncSqlFunctions):
    """The part of `AsyncEventStore` about many views at once."""

    async def poll_views(self, views: Sequence[str] | None = None) -> list[ViewPoll]:
        """Return one row per view with what a poller needs to know; None for all views.

        A name that is not registered gives no row.
        """
        return await self._all(
            ViewPoll, "select * from event_store_platform.poll_views(%s)", (None if views is None else list(views),)
        )

    async def wanting_views(self, known: Sequence[int]) -> list[WantingView]:
        """Return the enabled rows views that want an event beyond the known marks; for none all of them."""
        return await self._all(
            WantingView, "select * from event_store_platform.wanting_views(%s::bigint[])", (list(known),)
        )

    async def claim_views(
        self, views: Sequence[str], owner: str, limit: int = 20_000, lease_s: int | None = None
    ) -> dict[str, list[Lease]]:
        """Lease log partitions with new events of many bulk views, `limit` positions of each; return them by view.

        A view that gets nothing is not in the answer; nor is one that is not registered, or not enabled.
        """
        return by_view(
            await self._all(
                ViewLease,
                "select * from event_store_platform.claim_views(%s, %s, %s, %s)",
                (list(views), owner, limit, lease_s),
            )
        )

    async def owned_leases(self, owner: str) -> dict[str, list[Lease]]:
        """Return the leases in force of an owner, by view."""
        return by_view(await self._all(ViewLease, "select * from event_store_platform.owned_leases(%s)", (owner,)))

    async def locked_streams(self, owner: str) -> list[LockedStream]:
        """Return the streams with a lock in an owner's leased log partitions: who reads the ranges leaves them out."""
        return await self._all(LockedStream, "select * from event_store_platform.locked_streams(%s)", (owner,))

    async def drain_states(self, *drains: str) -> dict[str, DrainState]:
        """Return by name how drains stand: of a view, of a capture, or, with the empty name, of all views."""
        states = await self._all(DrainState, "select * from event_store_platform.drain_states(%s)", (list(drains),))
        return {state.drain: state for state in states}

    async def begin_drain(self, drain: str, owner: str | None = None) -> bool:
        """Ask for a drain, or begin it as its owner; return whether the caller has it, and nobody else."""
        return await self._value(bool, "select event_store_platform.begin_drain(%s, %s)", (drain, owner))

    async def end_drain(self, drain: str, owner: str, error: str | None = None) -> None:
        """Say how a try at a drain ended: well, or with an error, which counts."""
        await self._value(str, "select event_store_platform.end_drain(%s, %s, %s)", (drain, owner, error))

    async def extend_owner(self, owner: str, lease_s: int | None = None) -> int:
        """Let every lease in force of an owner last so many seconds from now; return how many."""
        return await self._value(int, "select event_store_platform.extend_owner(%s, %s)", (owner, lease_s))

    async def release_owner(self, owner: str) -> int:
        """Give back every lease of an owner that is known to be dead; return how many."""
        return await self._value(int, "select event_store_platform.release_owner(%s)", (owner,))


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


class AsyncEventStore(AsyncRounds, AsyncWaiting):
    """The event store behind a connection, or a pool. Every method raises the `MillraceError` of its SQL function."""

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

    async def set_decider_owner(self, decider: str, owner: str | None, reason: str | None = None) -> bool:
        """Give a decider to a role, whose members alone append to it and register its events; None: to every writer.

        Returns whether that changed anything.
        """
        return await self._value(
            bool, "select event_store_platform.set_decider_owner(%s, %s, %s)", (decider, owner, reason)
        )

    async def withdraw_registration(
        self,
        decider: str,
        event: str,
        event_version: int,
        what: Literal["schema", "upcast", "event"],
        reason: str | None = None,
    ) -> bool:
        """Take back a schema, a last upcast, or the registration of what has no event; return whether it was there."""
        return await self._value(
            bool,
            "select event_store_platform.withdraw_registration(%s, %s, %s, %s, %s)",
            (decider, event, event_version, what, reason),
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
        if not 0 <= positions_within_s <= LONGEST_WAIT_S:  # before anything is stored
            raise Malformed(
                "request is malformed",
                detail=f"positions_within_s is {positions_within_s!r}",
                hint=f"It is from 0 to {LONGEST_WAIT_S}.",
            )
        look, ids = "select * from event_store.await_positions(%s::uuid[], %s)", [event.event_id for event in given]
        async with self._committing() as store:
            appended = await store._all(AppendedEvent, append, (events_json(given),))
            placed = await store._all(EventPosition, look, (ids, positions_within_s))
        places = {each.event_id: {"partition": each.partition, "position": each.position} for each in placed}
        found = [replace(each, **places.get(each.event_id, {})) for each in appended]
        return in_their_streams(found, given)

    async def append_json(self, events: str) -> AppendedCount:
        """Do as `append_events` with a batch that is JSON text already, and count only: for those that append much.

        No metadata are passed on: the text is what is stored.
        """
        return await self._one(
            AppendedCount,
            "select count(*) filter (where appended) as appended, count(*) filter (where previous_id is null) as first "
            "from event_store.append_events(%s::jsonb)",
            (events,),
        )

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

    async def sequence_events(self) -> int:
        """Give committed events their positions; return how many, 0 while another session does it."""
        return await self._value(int, "select event_store_platform.sequence_events()")

    async def mark_log(self, reason: str) -> LogMark:
        """Record the present moment of the log for a reason, for ever."""
        return await self._one(LogMark, "select * from event_store_platform.mark_log(%s)", (reason,))

    async def marks_at(self, time: datetime | str) -> LogMark | None:
        """Return the last recorded moment of the log that is not after a time; None where there is none."""
        return await self._first(LogMark, "select * from event_store_platform.marks_at(%s)", (moment_of(time),))

    async def is_attended(self) -> bool:
        """Whether a sequencer is at work, so that nobody else needs to give events their positions."""
        return await self._value(bool, "select event_store_platform.is_attended()")

    async def attend_log(self, attended_s: int, sleeps: bool = False) -> bool:
        """Say that the caller sequences for so many seconds, asleep or not; return whether to look again soon."""
        return await self._value(bool, "select event_store_platform.attend_log(%s, %s)", (attended_s, sleeps))

    async def announce_positions(self, known: Sequence[int]) -> list[int]:
        """Wake those who wait for new positions if there are any beyond the known marks; return the marks of now."""
        return await self._value(list, "select event_store_platform.announce_positions(%s::bigint[])", (list(known),))

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
            mode: 'rows' or 'bulk'; 'rows' at first.
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

    async def enable_view(self, view: str, enabled: bool = True, *, reason: str | None = None) -> View:
        """Deliver events to a view from now on, or stop it."""
        return await self._one(
            View, "select * from event_store_platform.enable_view(%s, %s, %s)", (view, enabled, reason)
        )

    async def unregister_view(self, view: str, reason: str | None = None) -> None:
        """Remove a view with its progress, its locks and its dead letters."""
        await self._value(str, "select event_store_platform.unregister_view(%s, %s)", (view, reason))

    async def has_caught_up(self, view: str, other: str) -> bool:
        """Return whether a view is nowhere behind another one, which then stays there until the transaction ends."""
        return await self._value(bool, "select event_store_platform.has_caught_up(%s, %s)", (view, other))

    async def dispatch_events(self, view: str, window: int = 5000, max_waiting: int = 2000) -> int:
        """Make locks for streams with new events; return how many positions were passed.

        A call passes at most `window` positions of each log partition, and none while `max_waiting` streams wait for a
        consumer already.
        """
        return await self._value(
            int, "select event_store_platform.dispatch_events(%s, %s, %s)", (view, window, max_waiting)
        )

    async def fail_dispatch(self, view: str, error: str) -> None:
        """Note why the new events of a view could not be dispatched, until they are."""
        await self._value(str, "select event_store_platform.fail_dispatch(%s, %s)", (view, error))

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

    async def end_locks(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """End locks that are in force: all of a rows view, of a decider, or of one stream; return how many."""
        return await self._value(
            int, "select event_store_platform.end_locks(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    async def dead_letters(self, view: str | None = None, *, waiting: bool = False) -> list[DeadLetter]:
        """Return the parked streams of a view, None for all views; with `waiting` those that wait for a retry."""
        return await self._all(DeadLetter, "select * from event_store.dead_letters(%s, %s)", (view, waiting))

    async def retry_dead_letters(
        self, view: str, decider: str | None = None, decider_id: str | None = None, *, reason: str | None = None
    ) -> int:
        """Let parked streams be tried again: all of a view, of a decider, or one; return how many."""
        return await self._value(
            int, "select event_store_platform.retry_dead_letters(%s, %s, %s, %s)", (view, decider, decider_id, reason)
        )

    async def discard_dead_letter(
        self, view: str, decider: str, decider_id: str, reason: str, offset: int | None = None
    ) -> Event | None:
        """Give up the event at which a parked stream failed, and return it; None if the view wants it no more."""
        return await self._first(
            Event,
            "select * from event_store_platform.discard_dead_letter(%s, %s, %s, %s, %s)",
            (view, decider, decider_id, reason, offset),
        )

    async def seek_view(
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
        return await self._all(
            Seek,
            "select * from event_store_platform.seek_view(%s, %s, %s, %s, %s, %s, %s)",
            (view, kind, position, moment_of(timestamp), partition, dry_run, reason),
        )

    async def attach_consumer(self, view: str, consumer: str | None = None, seconds: int = 900) -> None:
        """Mark this connection as a live consumer of a view, for some seconds or until it is closed."""
        await self._value(str, "select event_store_platform.attach_consumer(%s, %s, %s)", (view, consumer, seconds))

    async def detach_consumer(self, view: str, consumer: str | None = None) -> None:
        """End what `attach_consumer` said; nothing happens where it is not attached."""
        await self._value(str, "select event_store_platform.detach_consumer(%s, %s)", (view, consumer))

    async def pass_over_unwanted(self, view: str) -> None:
        """Move a bulk view's checkpoints past events that it does not want, where nobody holds them."""
        await self._value(list, "select event_store_platform.pass_over_unwanted(%s)", (view,))

    async def claim_batch(self, view: str, owner: str, limit: int = 100_000, lease_s: int | None = None) -> list[Lease]:
        """Lease log partitions with pending events, `limit` positions in all; none when there is nothing to do."""
        return await self._all(
            Lease, "select * from event_store.claim_batch(%s, %s, %s, %s)", (view, owner, limit, lease_s)
        )

    async def claim_partition(self, view: str, partition: int, owner: str, lease_s: int | None = None) -> Lease:
        """Lease one log partition for a rebuild; the range is all that it holds."""
        return await self._one(
            Lease,
            "select * from event_store_platform.claim_partition(%s, %s, %s, %s)",
            (view, partition, owner, lease_s),
        )

    async def locked_partitions(self, view: str, leases: Sequence[Lease]) -> list[LockedPartition]:
        """Return those leased log partitions where streams have locks; the others deliver their whole range."""
        return await self._all(
            LockedPartition,
            "select * from event_store_platform.locked_partitions(%s, %s, %s)",
            (view, *tokens_of(leases)),
        )

    async def read_batch(self, view: str, lease: Lease) -> list[Event]:
        """Return the events that a lease delivers, each stream's in order."""
        return await self._all(
            Event, "select * from event_store.read_batch(%s, %s, %s)", (view, lease.partition, lease.lease_token)
        )

    async def misread_streams(
        self, view: str, leases: Sequence[Lease], events: Sequence[tuple[int, int]]
    ) -> list[MisreadStream]:
        """Return the streams of events that a build misread under some leases: (log partition, offset) each."""
        return await self._all(
            MisreadStream,
            "select * from event_store_platform.misread_streams(%s, %s::int[], %s::bigint[], %s::int[], %s::bigint[])",
            (
                view,
                [partition for partition, _ in events],
                [offset for _, offset in events],
                [lease.partition for lease in leases],
                [lease.to_position for lease in leases],
            ),
        )

    async def fail_streams(self, view: str, lease: Lease, failures: Sequence[StreamFailure]) -> int:
        """Hand failed streams over to their locks, before `commit_batch` in its transaction; return how many park."""
        return await self._value(
            int,
            "select event_store.fail_streams(%s, %s, %s, %s)",
            (view, lease.partition, lease.lease_token, jsonb([vars(failure) for failure in failures])),
        )

    async def commit_batch(self, view: str, leases: Sequence[Lease]) -> None:
        """Move the checkpoints to the leases' ends and end the leases; all of them or `LeaseLost`."""
        await self._value(
            str,
            "select event_store.commit_batch(%s, %s, %s, %s)",
            (
                view,
                [lease.partition for lease in leases],
                [lease.to_position for lease in leases],
                [lease.lease_token for lease in leases],
            ),
        )

    async def extend_lease(self, view: str, leases: Sequence[Lease], lease_s: int | None = None) -> datetime:
        """Let leases in force last so many seconds from now; return until when."""
        return await self._value(
            datetime, "select event_store.extend_lease(%s, %s, %s, %s)", (view, *tokens_of(leases), lease_s)
        )

    async def standing(self, most: int = 100_000) -> list[Problem]:
        """Return what is wrong in the store now, the worst first; to count lags, so many events are read at most."""
        return await self._all(Problem, "select * from event_store_platform.standing(%s)", (most,))

    async def set_max_lag(self, view: str, max_lag_s: int) -> None:
        """Say how old an event may become before the view is late."""
        await self._value(str, "select event_store.set_max_lag(%s, %s)", (view, max_lag_s))

    async def expired_leases(self) -> list[ExpiredLease]:
        """Return the owners that hold leases of log partitions past their time, in all views."""
        return await self._all(ExpiredLease, "select * from event_store_platform.expired_leases()")

    async def views_beyond_log(self) -> list[ViewBeyondLog]:
        """Return the checkpoints that stand beyond the end of their log partition."""
        return await self._all(ViewBeyondLog, "select * from event_store_platform.views_beyond_log()")

    async def sequencer_holder(self) -> SequencerHolder | None:
        """Return the session whose open transaction holds the sequencer's row, if there is one."""
        return next(
            iter(await self._all(SequencerHolder, "select * from event_store_platform.sequencer_holder()")), None
        )

    async def end_log_holder(self, reason: str | None = None) -> SequencerHolder | None:
        """End the session that holds up the log, if it idles or an operator says why; return it, None for none."""
        found = await self._all(SequencerHolder, "select * from event_store_platform.end_log_holder(%s)", (reason,))
        return next(iter(found), None)

    async def oldest_writer(self) -> OldestWriter | None:
        """Return the transaction that has been open for longest of all that have written, if there is one."""
        return await self._first(OldestWriter, "select * from event_store_platform.oldest_writer()")

    async def last_sequenced(self) -> datetime:
        """Return when somebody last looked for events without a position; the last of all times during a restore."""
        return await self._value(datetime, "select event_store_platform.last_sequenced()")

    async def release_batch(self, view: str, leases: Sequence[Lease]) -> int:
        """Give leases back without moving anything; return how many were still held."""
        return await self._value(int, "select event_store.release_batch(%s, %s, %s)", (view, *tokens_of(leases)))

    async def lease_owners(self, view: str) -> list[str]:
        """Return the owners of a view's leases in force."""
        return await self._values(str, "select * from event_store_platform.lease_owners(%s)", (view,))

    async def available_offset_range(self, partition: int | None = None) -> list[AvailableRange]:
        """Return the positions that a log partition holds, None for all."""
        return await self._all(AvailableRange, "select * from event_store.available_offset_range(%s)", (partition,))

    async def validate_offset_range(self, partition: int, from_position: int, to_position: int) -> None:
        """Refuse positions [from_position, to_position) that the log does not hold whole."""
        await self._value(
            str, "select event_store.validate_offset_range(%s, %s, %s)", (partition, from_position, to_position)
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

    async def latest_events(
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
        return await self._all(
            Event,
            "select * from event_store_platform.latest_events(%s, %s, %s, %s, %s, %s, %s)",
            (limit, decider, decider_id, event, since, correlation_id, before_offset),
        )

    async def stream_views(self, decider: str, decider_id: str, most: int = 100_000) -> list[StreamView]:
        """Return what each view that wants a decider has of one stream, and owes of its newest `most` events."""
        call = "select * from event_store_platform.stream_views(%s, %s, %s)"
        return await self._all(StreamView, call, (decider, decider_id, most))

    async def log_position(self, event_id: UUID) -> LogPosition | None:
        """Return where an event is in the log; None for an event that is not stored, or was purged."""
        return await self._first(LogPosition, "select * from event_store.log_position(%s)", (event_id,))

    async def offset_for_timestamp(self, partition: int, timestamp: datetime | str) -> int:
        """Return the first kept position whose event was appended at or after a time, else the high-water mark."""
        return await self._value(
            int, "select event_store.offset_for_timestamp(%s, %s)", (partition, moment_of(timestamp))
        )

    async def partition_info(self) -> list[PartitionInfo]:
        """Return one row per log partition."""
        return await self._all(PartitionInfo, "select * from event_store.partition_info()")

    async def view_info(self, view: str | None = None, most: int = 100_000) -> list[ViewInfo]:
        """Return one row per view, or one view's; at most so many events are read to count what views have not."""
        return await self._all(ViewInfo, "select * from event_store.view_info(%s, %s)", (view, most))

    async def log_gaps(self, recent: int = 10_000) -> list[int]:
        """Return the log partitions that miss one of their newest positions: none, unless something is broken."""
        return await self._values(int, "select event_store_platform.log_gaps(%s)", (recent,))

    async def view_lag(self, view: str) -> list[PartitionLag]:
        """Return how far a view is behind, per log partition."""
        return await self._all(PartitionLag, "select * from event_store.view_lag(%s)", (view,))

    async def database_identity(self) -> DatabaseIdentity:
        """Return the identity of this database, which no copy of it has."""
        return await self._one(DatabaseIdentity, "select * from event_store_platform.database_identity()")

    async def backup_cut(self) -> BackupCut:
        """Return the identity of this store, which copies share, and the numbers above which a restored one goes on."""
        return await self._one(BackupCut, "select * from event_store_platform.backup_cut()")

    async def audit_log(self, view: str | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the last entries of the table audit_log, the newest first: of one view, or for None all."""
        return await self._all(AuditEntry, "select * from event_store_platform.audit_log(%s, %s)", (view, limit))
