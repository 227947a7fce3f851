"""`wait_for`: a writer waits until a read model shows its event, and learns if that never happens."""

import asyncio

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from millrace.errors import NeverSeen, TransactionOpen
from millrace.event_store import AsyncEventStore
from millrace.event_store.platform import PlatformStore
from millrace.event_store.waiting import FIRST_PAUSE_S, LAST_PAUSE_S
from tests.support.factories import Connect, append, append_to, register_orders, start, value
from tests.support.patience import patience, wait_until


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    register_orders(store)
    store.register_view("v", "-infinity", mode="bulk")
    return store


def consume(store: PlatformStore) -> None:
    store.sequence_events()
    store.commit_batch("v", store.claim_batch("v", "me"))


def asking(connection: psycopg.Connection) -> None:
    """Wait until another session has called has_seen, or has ended the transaction of that call."""
    asked = """
        select count(*) from pg_stat_activity
        where (query like '%%has_seen%%' or query = 'COMMIT') and pid <> pg_backend_pid() and datname = current_database()
    """
    wait_until(lambda: bool(value(connection, asked)), "another session has asked")


def test_it_returns_whether_the_view_committed_the_event(orders: PlatformStore, connect: Connect) -> None:
    event = append(orders)
    assert orders.wait_for("v", event, 0) is False
    assert orders.wait_for("v", event, 0.02) is False
    waited = start(lambda: PlatformStore(connect()).wait_for("v", event, patience()))
    asking(orders.connection)
    assert not waited.done()
    consume(orders)
    assert waited.result(patience()) is True
    assert orders.wait_for("v", event, 0) is True


def test_it_waits_for_each_stream_of_a_batch_as_append_events_returns_it(orders: PlatformStore) -> None:
    first = append_to(orders, "o-1", "o-2")
    consume(orders)
    second = append_to(orders, "o-3")
    assert [one.decider_id for one in [*first, *second]] == ["o-1", "o-2", "o-3"]
    assert orders.wait_for("v", first, 0) is True
    assert orders.wait_for("v", [*second, *first], 0) is False
    assert orders.wait_for("v", [], 0) is True
    consume(orders)
    assert orders.wait_for("v", (one for one in [*second, *first]), 0) is True


def test_it_asks_soon_at_first_and_then_more_seldom(orders: PlatformStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 15:
            consume(orders)

    monkeypatch.setattr("time.sleep", pause)
    assert orders.wait_for("v", append(orders), patience()) is True
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [LAST_PAUSE_S, LAST_PAUSE_S]


def test_a_view_that_never_will_ends_the_wait_at_once(orders: PlatformStore, connect: Connect) -> None:
    event = append(orders)
    waited = start(lambda: PlatformStore(connect()).wait_for("v", event, patience()))
    asking(orders.connection)
    orders.enable_view("v", False)
    with pytest.raises(NeverSeen, match="disabled"):
        waited.result(patience())
    with pytest.raises(NeverSeen) as never:
        orders.wait_for("v", event, patience())
    assert (never.value.reason, never.value.detail) == ("disabled", "view 'v' is disabled")
    assert never.value.hint
    with pytest.raises(NeverSeen) as unknown:
        orders.wait_for("w", event, patience())
    assert unknown.value.reason == "unknown"


def test_within_a_transaction_it_refuses(orders: PlatformStore, connect: Connect) -> None:
    event, later = append(orders), append(orders, "o-2")
    connection = connect(autocommit=False)
    store = PlatformStore(connection)
    for level in psycopg.IsolationLevel:
        connection.isolation_level = level
        assert store.wait_for("v", later, 0) is False  # idle: it opens and ends a transaction for each poll
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        store.is_registered("v")
        with pytest.raises(TransactionOpen, match="Commit first"):
            store.wait_for("v", event, 0)
        connection.commit()
    consume(orders)
    assert store.wait_for("v", event, patience()) is True


def test_between_two_questions_no_transaction_is_open(orders: PlatformStore, connect: Connect) -> None:
    event = append(orders)
    connection = connect(autocommit=False)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    waited = start(lambda: PlatformStore(connection).wait_for("v", event, patience()))
    states = "select state from pg_stat_activity where pid = %s"
    pid = connection.info.backend_pid
    asking(orders.connection)
    wait_until(lambda: value(orders.connection, states, pid) == "idle", "no transaction is open")
    # each poll has its own snapshot, or it would never see this
    consume(orders)
    assert waited.result(patience()) is True


def test_with_a_pool_no_connection_is_kept_in_between(orders: PlatformStore, dsn: str) -> None:
    event = append(orders)
    with ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        store = PlatformStore(pool)
        waits = [start(lambda: store.wait_for("v", event, patience())) for _ in range(5)]
        asking(orders.connection)
        assert store.is_registered("v")
        consume(orders)
        assert [wait.result(patience()) for wait in waits] == [True] * 5


def test_on_a_loop_many_wait_at_once(orders: PlatformStore, dsn: str) -> None:
    event = append(orders)

    async def main() -> list[bool]:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            store = AsyncEventStore(pool)
            waits = [asyncio.create_task(store.wait_for("v", event, patience())) for _ in range(5)]
            while not (await store.has_seen("v", "order", "o-1", event.offset)).seen:
                consume(orders)
            return await asyncio.gather(*waits)

    assert asyncio.run(main()) == [True] * 5
