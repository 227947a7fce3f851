"""Positions of events that were just appended: in the same round trip, or as soon as somebody has sequenced them."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace.resources.errors import Conflict, Malformed, TransactionOpen
from millrace.resources.event_store import AsyncEventStore, EventStore, LogPosition, NewEvent
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import Connect, append, ids_of_one_partition, new_event, refusal, rows, start, value
from tests.support.patience import patience, wait_until

PLACES = 'select event_id, partition, "position" from event_store.await_positions(%s, %s)'


def test_an_append_returns_where_its_events_are_in_the_log(orders: EventStore, dsn: str, connect: Connect) -> None:
    three, seven = (ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (3, 7))
    events = [new_event(three), new_event(seven), new_event(three)]
    placed = orders.append_events(events, positions_within_s=5)
    told = [(each.partition, each.position, each.appended) for each in placed]
    assert told == [(3, 0, True), (7, 0, True), (3, 1, True)]
    again = orders.append_events(events[:1], positions_within_s=0)
    assert [(each.partition, each.position, each.appended) for each in again] == [(3, 0, False)]
    without = orders.append_events([new_event(three)])
    assert [(each.partition, each.position) for each in without] == [(None, None)]
    # a connection that does not commit by itself commits this, and does not by itself afterwards
    connection = connect(autocommit=False)
    (own,) = EventStore(connection).append_events([new_event(three)], positions_within_s=5)
    assert (own.partition, own.position, connection.autocommit) == (3, 3, False)
    with ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        (own,) = EventStore(pool).append_events([new_event(three)], positions_within_s=5)
    assert (own.partition, own.position) == (3, 4)

    async def main() -> LogPosition | None:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            store = AsyncEventStore(pool)
            (own,) = await store.append_events([new_event(three)], positions_within_s=5)
            assert (own.partition, own.position) == (3, 5)
            return await store.log_position(own.event_id)

    assert asyncio.run(main()) == LogPosition(3, 5)


def test_an_append_that_is_refused_leaves_nothing(orders: EventStore) -> None:
    before = append(orders)
    late = NewEvent("order", before.decider_id, "placed", previous_id=uuid4(), data={})
    refusal(Conflict, lambda: orders.append_events([new_event("o-2"), late], positions_within_s=5))
    assert orders.get_events("o-2", "order") == []
    refusal(Malformed, lambda: orders.append_events([new_event("o-2")], positions_within_s=61))
    assert orders.get_events("o-2", "order") == []
    (own,) = orders.append_events([new_event("o-2")], positions_within_s=5)
    assert own.position is not None


def test_within_a_transaction_it_refuses(orders: EventStore, connect: Connect) -> None:
    store = EventStore(connect(autocommit=False))
    append(store, "o-2")
    refusal(TransactionOpen, lambda: store.append_events([new_event()], positions_within_s=5))
    store.connection.rollback()
    ours = append(orders)
    for begin in (
        lambda: append(store, "o-3"),
        lambda: store.connection.execute("set transaction isolation level serializable"),
    ):
        begin()
        with pytest.raises(Malformed, match="Commit first, and call it at READ COMMITTED"), refusals():
            store.connection.execute(PLACES, ([ours.event_id], 5))
        store.connection.rollback()


def test_it_waits_for_the_session_that_sequences(orders: EventStore, connect: Connect) -> None:
    ours, holder, waiter = append(orders), connect(autocommit=False), connect()
    partition = value(orders.connection, "select partition from event_store.log_position(%s)", ours.event_id)
    assert EventStore(holder).sequence_events() == 1
    assert rows(waiter, PLACES, [ours.event_id, uuid4()], 0) == [(ours.event_id, partition, None)]
    waiting = start(lambda: rows(waiter, PLACES, [ours.event_id], 60))
    wait_until(lambda: sleeps(orders, waiter), "it waits")
    holder.commit()
    assert waiting.result(patience()) == [(ours.event_id, partition, 0)]


def test_beside_a_sequencer_it_only_looks(orders: EventStore, connect: Connect) -> None:
    orders.sequence_events()
    ours, writer = append(orders), connect(autocommit=False)
    orders.attend_log(10)
    assert rows(writer, PLACES, [ours.event_id], 0)[0][2] is None
    assert value(writer, "select pg_current_xact_id_if_assigned()") is None
    waiting = start(lambda: rows(writer, PLACES, [ours.event_id], 60))
    wait_until(lambda: sleeps(orders, writer), "it waits")
    orders.sequence_events()
    assert waiting.result(patience())[0][2] == 0


def sleeps(store: EventStore, waiter: psycopg.Connection) -> bool:
    state = "select wait_event from pg_stat_activity where pid = %s"
    return bool(value(store.connection, state, waiter.info.backend_pid) == "PgSleep")
