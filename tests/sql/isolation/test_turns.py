"""Batches that lost a race for a stream: one at a time proceeds, and no other session waits for them."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import LiteralString

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, at_once, new_event, rows, start_blocked, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchedEvent, append_events

Batch = Callable[[PlatformStore], list[BatchedEvent]]


def both(store: PlatformStore) -> list[BatchedEvent]:
    return append_events(store, [new_event("o-1"), new_event("o-2")])


def one(store: PlatformStore) -> list[BatchedEvent]:
    return append_events(store, [new_event("o-1")])


@pytest.fixture
def turns(connect: Connect) -> psycopg.Connection:
    """Hold all turns, as a batch over many streams does after it lost."""
    connection = connect(autocommit=False)
    connection.execute("select from event_store.append_turns for update")
    return connection


def lose(
    orders: PlatformStore, loser: PlatformStore, holder: PlatformStore, batch: Batch
) -> Future[list[BatchedEvent]]:
    """Let a batch wait for a writer of its first stream, and let that writer win."""
    append(holder, "o-1")
    losing = start_blocked(orders, loser, lambda: batch(loser))
    holder.connection.commit()
    return losing


def waits_for(observer: psycopg.Connection, waiter: psycopg.Connection, holder: psycopg.Connection) -> bool:
    return bool(
        value(observer, "select %s = any (pg_blocking_pids(%s))", holder.info.backend_pid, waiter.info.backend_pid)
    )


def test_a_batch_that_lost_waits_for_its_turn(
    orders: PlatformStore, connect: Connect, turns: psycopg.Connection
) -> None:
    loser = PlatformStore(connect())
    losing = lose(orders, loser, PlatformStore(connect(autocommit=False)), both)
    wait_until(lambda: waits_for(orders.connection, loser.connection, turns), "the loser waits for its turn")
    assert [event.version for event in both(orders)] == [2, 1]  # the winner
    append(orders, "o-3")
    turns.rollback()
    assert [event.version for event in losing.result(patience())] == [3, 2]
    # no turn is locked once the transaction has ended
    free: LiteralString = "select count(*) from (select from event_store.append_turns for update nowait) t"
    assert value(orders.connection, free) == 1024


@pytest.mark.parametrize(
    ("batch", "written"), [(both, True), (one, False)], ids=["one that wrote before", "one with a single event"]
)
def test_it_waits_for_no_turn(
    orders: PlatformStore, connect: Connect, turns: psycopg.Connection, batch: Batch, written: bool
) -> None:
    """A holder of a stream must not wait for waiters; a single event has won as soon as it is first."""
    assert turns
    loser = PlatformStore(connect(autocommit=False))
    if written:
        append(loser, "o-0")
    losing = lose(orders, loser, PlatformStore(connect(autocommit=False)), batch)
    assert losing.result(patience())[0].version == 2
    loser.connection.commit()
    turns.rollback()


def test_a_turn_is_of_its_streams_only(orders: PlatformStore, connect: Connect) -> None:
    """Another batch that lost over other streams proceeds beside one that keeps its turn."""
    first, second = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    lose(orders, first, PlatformStore(connect(autocommit=False)), both).result(patience())
    holder = PlatformStore(connect(autocommit=False))
    append(holder, "o-3")
    losing = start_blocked(orders, second, lambda: append_events(second, [new_event("o-3"), new_event("o-4")]))
    holder.connection.commit()
    assert [event.version for event in losing.result(patience())] == [2, 1]
    first.connection.rollback()


def test_many_batches_over_the_same_streams_end_without_a_deadlock(orders: PlatformStore, connect: Connect) -> None:
    stores = [PlatformStore(connect()) for _ in range(8)]
    streams = [f"o-{number}" for number in range(12)]

    def write(number: int) -> int:
        random = Random(number)
        batches = ([new_event(random.choice(streams)) for _ in range(20)] for _ in range(15))
        return sum(len(append_events(stores[number], batch)) for batch in batches)

    appended = sum(done.result() for done in at_once(partial(write, number) for number in range(8)))
    assert appended == 8 * 15 * 20
    dense: LiteralString = """
        select count(*), sum(n) from (select count(*), max(version) from event_store.events group by decider_id) s (n, v)
        where n = v
    """
    assert rows(orders.connection, dense) == [(12, appended)]
