"""Positions of just appended events, as soon as a sequencer has given them."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace.errors import Malformed, TransactionOpen
from millrace.event_store import AsyncEventStore, EventStore, NewEvent, on
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from millrace.event_store.rows import EventPosition
from tests.support.factories import Connect, append, ids_of_one_partition, refusal, rows, start, value
from tests.support.patience import patience, wait_until

PLACES = 'select event_id, partition, "position" from event_store.await_positions(%s, %s)'


def test_positions_of_what_was_appended_are_told(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    three, seven = (ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (3, 7))
    appended = orders.append_all([on("order", name, NewEvent("placed")) for name in (three, seven, three)])
    placed = orders.positions(appended)
    assert [(each.partition, each.position) for each in placed] == [(3, 0), (7, 0), (3, 1)]
    assert [(each.event_id,) for each in placed] == [each.event_ids for each in appended]
    # a connection without autocommit has no open transaction afterwards
    connection = connect(autocommit=False)
    own = EventStore(connection).append("order", three, NewEvent("placed"))
    connection.commit()
    assert [each.position for each in EventStore(connection).positions(own)] == [2]
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        store = EventStore(pool)
        assert [each.position for each in store.positions(store.append("order", three, NewEvent("placed")))] == [3]

    async def main() -> list[EventPosition]:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            store = AsyncEventStore(pool)
            return await store.positions(await store.append("order", three, NewEvent("placed")))

    assert [each.position for each in asyncio.run(main())] == [4]


def test_positions_are_refused_out_of_range_and_within_a_transaction(orders: PlatformStore, connect: Connect) -> None:
    refusal(Malformed, lambda: orders.positions([], 61))
    store = PlatformStore(connect(autocommit=False))
    own = store.append("order", "o-2", NewEvent("placed"))
    refusal(TransactionOpen, lambda: store.positions(own))
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


def test_it_waits_for_the_session_that_sequences(orders: PlatformStore, connect: Connect) -> None:
    ours, holder, waiter = append(orders), connect(autocommit=False), connect()
    partition = value(orders.connection, "select partition from event_store.log_position(%s)", ours.event_id)
    assert PlatformStore(holder).sequence_events() == 1
    assert rows(waiter, PLACES, [ours.event_id, uuid4()], 0) == [(ours.event_id, partition, None)]
    waiting = start(lambda: rows(waiter, PLACES, [ours.event_id], 60))
    wait_until(lambda: sleeps(orders, waiter), "it waits")
    holder.commit()
    assert waiting.result(patience()) == [(ours.event_id, partition, 0)]


def test_beside_a_sequencer_it_only_looks(orders: PlatformStore, connect: Connect) -> None:
    orders.sequence_events()
    ours, writer = append(orders), connect(autocommit=False)
    orders.attend_log(10)
    assert rows(writer, PLACES, [ours.event_id], 0)[0][2] is None
    assert value(writer, "select pg_current_xact_id_if_assigned()") is None
    waiting = start(lambda: rows(writer, PLACES, [ours.event_id], 60))
    wait_until(lambda: sleeps(orders, writer), "it waits")
    orders.sequence_events()
    assert waiting.result(patience())[0][2] == 0


def sleeps(store: PlatformStore, waiter: psycopg.Connection) -> bool:
    state = "select wait_event from pg_stat_activity where pid = %s"
    return bool(value(store.connection, state, waiter.info.backend_pid) == "PgSleep")
