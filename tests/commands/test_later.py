"""`Later`: events of a decider that come later, scheduled with its events or not at all."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace import AsyncEventStore, Decider, Emit, EventStore, Later, NewEvent, handle, on
from millrace.errors import EventNotRegistered, Malformed
from millrace.event_store.new_events import LaterEvent
from millrace.event_store.platform import PlatformStore
from millrace.testing import given

DAYS = timedelta(days=1)


def place(days: int, version: int) -> list[Emit | Later]:
    overdue = Later(Emit("overdue", {"days": days}), name="pay", after=days * DAYS, unless="paid")
    if days < 0:
        return [overdue]
    return [overdue, Emit("placed", {"days": days}), *[Emit("placed", {"again": version})] * (days > 9)]


ORDER = Decider(name="order", initial=0, decide=place, evolve=lambda version, _: version + 1)


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    for event in ("placed", "paid", "overdue"):
        store.register_decider_event("order", event, "")
    return store


def scheduled(store: PlatformStore) -> list[tuple[str, str, int, str | None]]:
    query = "select name, event, (data ->> 'days')::int, unless_event from event_store.scheduled_events"
    return store.connection.execute(query).fetchall()


@pytest.mark.parametrize("days", [3, 10], ids=["one event", "two events"])
def test_it_is_scheduled_with_the_events(orders: PlatformStore, days: int) -> None:
    done = handle(orders, ORDER, "o-1", days)
    assert {event.event for event in done.events} == {"placed"}
    assert scheduled(orders) == [("pay", "overdue", days, "paid")]
    (waiting,) = orders.scheduled_events("order", "o-1")
    assert waiting.due_at - done.events[0].created_at > days * DAYS - timedelta(minutes=1)
    # what comes first is looked for after the decider's own events
    since = orders.connection.execute("select since_version from event_store.scheduled_events").fetchall()
    assert since == [(done.version,)]


def test_neither_is_stored_where_one_is_refused(store: PlatformStore) -> None:
    store.register_decider_event("order", "placed", "")
    store.register_decider_event("order", "paid", "")
    with pytest.raises(EventNotRegistered, match="overdue"):
        handle(store, ORDER, "o-1", 3)
    assert ([*store.read("order", "o-1")], scheduled(store)) == ([], [])


def test_a_conflict_schedules_nothing(orders: PlatformStore) -> None:
    def beaten(days: int, version: int) -> list[Emit | Later]:
        if not version:
            handle(orders, ORDER, "o-1", 5)
        return place(days, version)

    handle(orders, Decider(name="order", initial=0, decide=beaten, evolve=ORDER.evolve), "o-1", 3)
    assert scheduled(orders) == [("pay", "overdue", 3, "paid")]


def test_a_command_that_comes_again_moves_nothing_back(orders: PlatformStore) -> None:
    command = uuid4()
    handle(orders, ORDER, "o-1", 3, command_id=command)
    handle(orders, ORDER, "o-1", 5)
    assert len(handle(orders, ORDER, "o-1", 3, command_id=command).events) == 1
    assert scheduled(orders) == [("pay", "overdue", 5, "paid")]
    # neither does an event that another call stored first
    event, overdue = NewEvent("placed"), LaterEvent(NewEvent("overdue", {"days": 7}), "pay", DAYS, None, None)
    for _ in range(2):
        orders.append_returning(on("order", "o-2", event), [overdue])
        handle(orders, ORDER, "o-2", 9)
    assert scheduled(orders)[1:] == [("pay", "overdue", 9, "paid")]


def test_one_without_an_event_or_a_time_is_refused(orders: PlatformStore) -> None:
    with pytest.raises(Malformed, match="decides on overdue for later, and on no event for now"):
        handle(orders, ORDER, "o-1", -1)
    for both in ({}, {"after": DAYS, "at": datetime.now(UTC)}):
        with pytest.raises(Malformed, match="Not one of after, at most"):
            Later(Emit("overdue", {}), name="pay", **both)  # type: ignore[arg-type]


def test_over_pools_and_for_coroutines_it_is_one_call(orders: PlatformStore, dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=2) as pool:
        handle(EventStore(pool), ORDER, "o-1", 3)

    async def at_once() -> None:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool:
            await asyncio.gather(*(handle(AsyncEventStore(pool), ORDER, f"p-{n}", n) for n in range(9)))
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            one = AsyncEventStore(connection)
            await asyncio.gather(*(handle(one, ORDER, f"c-{n}", n) for n in range(9)))

    asyncio.run(at_once())
    assert len(scheduled(orders)) == 19


def test_a_test_names_what_comes_later(dsn: str) -> None:
    tried = given(dsn=dsn).when(ORDER, "o-1", 3)
    tried.then(Emit("placed", {"days": 3}), *tried.later)
    for wrong in ((), (Later(Emit("overdue", {"days": 3}), name="pay", after=4 * DAYS, unless="paid"),)):
        with pytest.raises(
            AssertionError, match=r"overdue {'days': 3} later as pay, after 3 days, 0:00:00 unless paid"
        ):
            tried.then(Emit("placed", {"days": 3}), *wrong)
