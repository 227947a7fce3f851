"""Batches that lost a race for a stream: one at a time goes on, and nobody else waits for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from random import Random

import psycopg
import pytest

from millrace.resources.event_store import AppendedEvent, EventStore
from tests.support.factories import Connect, append, at_once, new_event, rows, start, value, wait_blocked
from tests.support.patience import patience, wait_until

Batch = Callable[[EventStore], list[AppendedEvent]]


def both(store: EventStore) -> list[AppendedEvent]:
    return store.append_events([new_event("o-1"), new_event("o-2")])


def one(store: EventStore) -> list[AppendedEvent]:
    return store.append_events([new_event("o-1")])


@pytest.fixture
def turns(connect: Connect) -> psycopg.Connection:
    """Hold all turns, as a batch over many streams does that lost."""
    connection = connect(autocommit=False)
    connection.execute("select from event_store.append_turns for update")
    return connection


def lose(orders: EventStore, loser: EventStore, holder: EventStore, batch: Batch) -> Future[list[AppendedEvent]]:
    """Let a batch wait for a writer of its first stream, and that writer be first."""
    append(holder, "o-1")
    losing = start(lambda: batch(loser))
    wait_blocked(orders.connection, loser.connection.info.backend_pid)
    holder.connection.commit()
    return losing


def waits_for(observer: psycopg.Connection, waiter: psycopg.Connection, holder: psycopg.Connection) -> bool:
    return bool(
        value(observer, "select %s = any (pg_blocking_pids(%s))", holder.info.backend_pid, waiter.info.backend_pid)
    )


def test_a_batch_that_lost_waits_for_its_turn_and_holds_nobody_up(
    orders: EventStore, connect: Connect, turns: psycopg.Connection
) -> None:
    loser = EventStore(connect())
    losing = lose(orders, loser, EventStore(connect(autocommit=False)), both)
    wait_until(lambda: waits_for(orders.connection, loser.connection, turns), "the loser waits for its turn")
    assert [event.version for event in both(orders)] == [2, 1]  # who did not lose
    append(orders, "o-3")
    turns.rollback()
    assert [event.version for event in losing.result(patience())] == [3, 2]
    # nothing is locked once its transaction is over
    assert value(
        orders.connection, "select count(*) from (select from event_store.append_turns for update nowait) t"
    ) == (1024)


@pytest.mark.parametrize(
    ("batch", "written"), [(both, True), (one, False)], ids=["one that wrote before", "one with a single event"]
)
def test_it_waits_for_no_turn(
    orders: EventStore, connect: Connect, turns: psycopg.Connection, batch: Batch, written: bool
) -> None:
    """Who holds a stream must not wait for who waits for streams; a single event has won as soon as it is first."""
    assert turns
    loser = EventStore(connect(autocommit=False))
    if written:
        append(loser, "o-0")
    losing = lose(orders, loser, EventStore(connect(autocommit=False)), batch)
    assert losing.result(patience())[0].version == 2
    loser.connection.commit()
    turns.rollback()


def test_a_turn_is_of_its_streams_only(orders: EventStore, connect: Connect) -> None:
    """Another batch that lost, over other streams, goes on beside one that keeps its turn."""
    first, second = EventStore(connect(autocommit=False)), EventStore(connect())
    lose(orders, first, EventStore(connect(autocommit=False)), both).result(patience())
    holder = EventStore(connect(autocommit=False))
    append(holder, "o-3")
    losing = start(lambda: second.append_events([new_event("o-3"), new_event("o-4")]))
    wait_blocked(orders.connection, second.connection.info.backend_pid)
    holder.connection.commit()
    assert [event.version for event in losing.result(patience())] == [2, 1]
    first.connection.rollback()


def test_many_batches_over_the_same_streams_end_without_a_deadlock(orders: EventStore, connect: Connect) -> None:
    stores = [EventStore(connect()) for _ in range(8)]
    streams = [f"o-{number}" for number in range(12)]
    lock = threading.Lock()
    appended: list[AppendedEvent] = []

    def write(number: int) -> None:
        random = Random(number)
        for _ in range(15):
            stored = stores[number].append_events([new_event(random.choice(streams)) for _ in range(20)])
            with lock:
                appended.extend(stored)

    for done in at_once([lambda number=number: write(number) for number in range(8)]):  # type: ignore[misc]
        done.result()
    assert len(appended) == 8 * 15 * 20
    assert rows(
        orders.connection,
        "select count(*), sum(n) from (select count(*) as n, max(version) as v from event_store.events group by decider_id) s"
        " where n = v",
    ) == [(12, len(appended))]
