"""Appends of many coroutines at once: sent together, answered one by one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from millrace.errors import (
    Conflict,
    DataRefused,
    EventIdReused,
    EventNotRegistered,
    Malformed,
    StreamClosed,
    TransactionOpen,
)
from millrace.event_store import NO_STREAM, Appended, AsyncEventStore, NewEvent, on
from millrace.event_store.gathering import MOST_EVENTS
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, rows, terminate, value
from tests.support.patience import patience

Result = TypeVar("Result")
# the number of transactions that wrote events: calls sent together share one
SENT = "select count(distinct xmin::text) from event_store.events"


@asynccontextmanager
async def opened(dsn: str, *, autocommit: bool = True) -> AsyncIterator[AsyncEventStore]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as connection:
        yield AsyncEventStore(connection)


def run(dsn: str, work: Callable[[AsyncEventStore], Awaitable[Result]], *, autocommit: bool = True) -> Result:
    async def main() -> Result:
        async with asyncio.timeout(patience()), opened(dsn, autocommit=autocommit) as store:
            return await work(store)

    return asyncio.run(main())


async def blocked(store: AsyncEventStore, observer: PlatformStore) -> None:
    """Wait until the sent statement waits for another session's lock."""
    query = "select wait_event_type from pg_stat_activity where pid = %s"
    while value(observer.connection, query, store.connection.info.backend_pid) != "Lock":
        await asyncio.sleep(0.01)


def placed(store: AsyncEventStore, stream: str, version: int | None = None) -> asyncio.Task[Appended]:
    return asyncio.create_task(store.append("order", stream, NewEvent("placed"), expected_version=version))


def test_appends_at_once_leave_together_and_each_is_told_its_own(orders: PlatformStore, dsn: str) -> None:
    async def work(store: AsyncEventStore) -> list[Appended]:
        return await asyncio.gather(*(placed(store, f"o-{n}") for n in range(32)))

    told = run(dsn, work)
    assert [each.decider_id for each in told] == [f"o-{n}" for n in range(32)]
    assert {(each.version, each.appended) for each in told} == {(1, True)}
    stored = dict(rows(orders.connection, "select decider_id, event_id from event_store.events"))
    assert {each.decider_id: each.event_ids[0] for each in told} == stored
    assert value(orders.connection, SENT) == 1


def test_calls_of_one_stream_keep_their_order(orders: PlatformStore, dsn: str) -> None:
    async def work(store: AsyncEventStore) -> list[Appended | BaseException]:
        calls = [placed(store, "o-1", n) for n in range(20)]
        late = placed(store, "o-1", 30)  # refused in its place, not behind the others
        calls += [placed(store, "o-1", n) for n in range(20, 30)]
        return await asyncio.gather(*calls[:20], late, *calls[20:], return_exceptions=True)

    told = run(dsn, work)
    assert isinstance(told.pop(20), Conflict)
    assert [each.version for each in told if isinstance(each, Appended)] == list(range(1, 31))
    assert value(orders.connection, SENT) == 1


def test_a_refusal_is_its_own_callers_alone(orders: PlatformStore, dsn: str) -> None:
    orders.register_event_schema("order", "priced", {"type": "object", "required": ["cents"]})
    orders.append("order", "closed", NewEvent("placed", final=True))
    known = append(orders, "known")
    wrong = {
        Conflict: ("known", NewEvent("paid"), NO_STREAM),
        StreamClosed: ("closed", NewEvent("paid"), None),
        EventIdReused: ("o-2", NewEvent("paid", event_id=known.event_id), None),
        DataRefused: ("o-3", NewEvent("priced"), None),
        EventNotRegistered: ("o-4", NewEvent("unheard_of"), None),
        Malformed: ("", NewEvent("placed"), None),
    }

    async def work(store: AsyncEventStore) -> tuple[list[object], list[object]]:
        refused = [
            asyncio.create_task(store.append("order", stream, event, expected_version=version))
            for stream, event, version in wrong.values()
        ]
        good = [placed(store, f"good-{n}") for n in range(20)]
        both = refused[:3] + good[:10] + refused[3:] + good[10:]
        await asyncio.wait(both)
        alone = [
            await asyncio.gather(store.append("order", stream, event, expected_version=version), return_exceptions=True)
            for stream, event, version in wrong.values()
        ]
        assert [str(task.exception()) for task in refused] == [str(error) for (error,) in alone]
        return [task.exception() for task in refused], [task.result().version for task in good]

    refused, versions = run(dsn, work)
    assert [type(error) for error in refused] == [*wrong]
    assert versions == [1] * 20


def test_a_conflict_with_a_refused_call_is_none(orders: PlatformStore, dsn: str) -> None:
    orders.register_event_schema("order", "priced", {"type": "object", "required": ["cents"]})

    async def work(store: AsyncEventStore) -> tuple[Appended | BaseException, ...]:
        unfit = asyncio.create_task(store.append("order", "o-1", NewEvent("priced"), expected_version=NO_STREAM))
        return await asyncio.gather(
            unfit, placed(store, "o-1", NO_STREAM), placed(store, "o-2"), return_exceptions=True
        )

    unfit, fit, other = run(dsn, work)
    assert isinstance(unfit, DataRefused)
    assert isinstance(fit, Appended)
    assert isinstance(other, Appended)


def test_two_who_send_one_event_are_both_told_that_it_is_stored(orders: PlatformStore, dsn: str) -> None:
    event = NewEvent("placed", event_id=uuid4())

    async def work(store: AsyncEventStore) -> list[Appended]:
        return await asyncio.gather(*(store.append("order", "o-1", event) for _ in range(3)))

    told = run(dsn, work)
    assert sorted(each.appended for each in told) == [False, False, True]
    assert len([*orders.read("order", "o-1")]) == 1


def test_who_is_cancelled_before_the_sending_stores_nothing(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    holder = PlatformStore(connect(autocommit=False))
    append(holder, "held")

    async def work(store: AsyncEventStore) -> list[object]:
        first = placed(store, "held")
        await blocked(store, orders)
        waiting = [placed(store, f"o-{n}") for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        first.cancel()  # it is on its way
        await asyncio.sleep(0)
        holder.connection.commit()
        return await asyncio.gather(*waiting, return_exceptions=True)

    told = run(dsn, work)
    assert [isinstance(each, Appended) for each in told] == [True, False, True]
    assert orders.head("order", "o-1") is None
    head = orders.head("order", "held")
    assert head is not None
    assert head.version == 2


def test_it_never_joins_a_transaction_that_another_coroutine_began(orders: PlatformStore, dsn: str) -> None:
    async def work(store: AsyncEventStore) -> None:
        within, asked = asyncio.Event(), asyncio.Event()

        async def other() -> None:
            async with store.connection.transaction(force_rollback=True):
                await store.append_all([on("order", "rolled back", NewEvent("placed"))])
                await store.append_returning(on("order", "rolled back", NewEvent("paid"), NewEvent("shipped")))
                within.set()
                await asked.wait()

        task = asyncio.create_task(other())
        await within.wait()
        with pytest.raises(TransactionOpen):
            await store.append("order", "o-1", NewEvent("placed"))
        asked.set()
        await task
        # it waits behind the statement that begins a transaction, and sees the transaction
        beginning = asyncio.create_task(store.connection.execute("begin"))
        racing = placed(store, "o-1")
        await beginning
        with pytest.raises(TransactionOpen):
            await racing
        await store.connection.rollback()
        assert (await store.append("order", "o-2", NewEvent("placed"))).version == 1

    run(dsn, work)
    assert [name for (name,) in rows(orders.connection, "select decider_id from event_store.events")] == ["o-2"]


def test_without_autocommit_it_is_part_of_the_callers_transaction(orders: PlatformStore, dsn: str) -> None:
    async def work(store: AsyncEventStore) -> None:
        await asyncio.gather(*(placed(store, f"o-{n}") for n in range(3)))
        assert value(orders.connection, SENT) == 0
        await store.connection.commit()

    run(dsn, work, autocommit=False)
    assert value(orders.connection, SENT) == 1


def test_with_a_pool_a_batch_takes_a_connection(orders: PlatformStore, dsn: str) -> None:
    async def main() -> list[Appended]:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            store = AsyncEventStore(pool)
            return await asyncio.gather(*(placed(store, f"o-{n}") for n in range(10)))

    assert [each.version for each in asyncio.run(main())] == [1] * 10
    assert value(orders.connection, SENT) == 1


def test_callers_repeat_after_a_lost_connection_without_a_twin(
    orders: PlatformStore, dsn: str, connect: Connect
) -> None:
    holder = PlatformStore(connect(autocommit=False))
    append(holder, "held")
    events = [NewEvent("placed", event_id=uuid4()) for _ in range(6)]

    async def work(store: AsyncEventStore) -> list[object]:
        first = placed(store, "held")
        await blocked(store, orders)
        calls = [asyncio.create_task(store.append("order", f"o-{n}", event)) for n, event in enumerate(events)]
        await asyncio.sleep(0)
        terminate(orders.connection, store.connection.info.backend_pid)
        return await asyncio.gather(first, *calls, return_exceptions=True)

    for error in run(dsn, work):
        assert isinstance(error, psycopg.OperationalError)
    holder.connection.rollback()

    async def again(store: AsyncEventStore) -> list[Appended]:
        return await asyncio.gather(*(store.append("order", f"o-{n}", event) for n, event in enumerate(events)))

    for _ in range(2):
        assert [each.version for each in run(dsn, again)] == [1] * 6
    assert value(orders.connection, "select count(*) from event_store.events") == 6


def test_a_pool_takes_any_number_of_batches(orders: PlatformStore, dsn: str) -> None:
    """The client asks, after some calls, what is behind a connection: a pool's is then in a transaction."""

    async def main() -> list[int]:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            store = AsyncEventStore(pool)
            return [(await store.append("order", "o-1", NewEvent("placed"))).version for _ in range(8)]

    assert asyncio.run(main()) == [*range(1, 9)]
    assert value(orders.connection, SENT) == 8


def test_ten_thousand_who_wait_leave_in_bounded_batches(orders: PlatformStore, dsn: str) -> None:
    async def work(store: AsyncEventStore) -> int:
        return len(await asyncio.gather(*(store.append("order", f"o-{n}", NewEvent("placed")) for n in range(10_000))))

    assert run(dsn, work) == 10_000
    sizes = rows(orders.connection, "select count(*) from event_store.events group by xmin::text")
    assert max(size for (size,) in sizes) == MOST_EVENTS
