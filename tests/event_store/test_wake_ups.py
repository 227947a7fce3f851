"""Waiting for new positions: a notification ends a wait; if none can come or one is lost, polling ends it.

Not here: behind a pooler (tests/processes/event_store/test_servers.py).
"""

import threading
from pathlib import Path

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import APPENDED, Wakeups
from tests.support.factories import append, append_to, ids_of_one_partition, rows, start, terminate
from tests.support.patience import patience, wait_until


def announce(store: PlatformStore) -> None:
    store.sequence_events()
    store.announce_positions([])


def listeners(connection: psycopg.Connection, word: str = "event_store_positions") -> list[int]:
    query = "select pid from pg_stat_activity where datname = current_database() and query ~* ('^(un)?listen.*' || %s)"
    return [pid for (pid,) in rows(connection, query, word)]


def test_a_word_ends_a_wait_and_names_the_log_partitions(orders: PlatformStore, dsn: str) -> None:
    (first,), (second,) = (ids_of_one_partition(orders.connection, 1, n) for n in (3, 5))
    with Wakeups(dsn, poll_s=0.05) as positions:
        assert positions.listening
        waiting = start(lambda: positions.wait(36_000))
        append_to(orders, first, second)
        announce(orders)
        assert waiting.result(patience()) == frozenset({3, 5})


def test_a_word_that_came_between_two_waits_ends_the_next_one(orders: PlatformStore, dsn: str) -> None:
    with Wakeups(dsn, poll_s=0.05) as positions:
        append(orders)
        announce(orders)
        assert positions.wait(patience())
        assert positions.wait(0) is None


def test_a_word_of_anybody_with_anything_in_it_is_a_word(orders: PlatformStore, dsn: str) -> None:
    with Wakeups(dsn, poll_s=0.05) as positions:
        orders.connection.execute("notify event_store_positions, '1,x,²,-7,,9'")
        assert positions.wait(patience()) == frozenset({1, 9})
        # Python reads no number with this many digits, and no log partition has such a number
        orders.connection.execute("select pg_notify('event_store_positions', '2,' || repeat('9', 5000))")
        assert positions.wait(patience()) == frozenset({2})
        orders.connection.execute("notify event_store_positions")
        assert positions.wait(patience()) == frozenset()


def test_without_a_word_a_wait_ends_in_time_and_a_stop_ends_it_sooner(dsn: str) -> None:
    with Wakeups(dsn, poll_s=0.05) as positions:
        assert positions.wait(0.01) is None
        stop = threading.Event()
        waiting = start(lambda: positions.wait(600, stop))
        stop.set()
        assert waiting.result(patience()) is None


def test_a_lost_connection_is_made_again_and_a_wait_meanwhile_is_short(orders: PlatformStore, dsn: str) -> None:
    with Wakeups(dsn, poll_s=0.05) as positions:
        (pid,) = listeners(orders.connection)
        terminate(orders.connection, pid)
        # returns far sooner than after 600 s
        assert start(lambda: positions.wait(600)).result(patience()) is None
        assert not positions.listening
        wait_until(lambda: positions.wait(600) is None and positions.listening, "it listens again")
        append(orders)
        announce(orders)
        assert positions.wait(patience())


def test_a_server_that_is_away_makes_it_poll(tmp_path: Path) -> None:
    with Wakeups(f"postgresql://postgres@/none?host={tmp_path}", poll_s=0.05) as positions:
        for _ in range(3):
            assert start(lambda: positions.wait(600)).result(patience()) is None
            assert not positions.listening


def test_it_waits_for_appends_as_well(orders: PlatformStore, dsn: str) -> None:
    with Wakeups(dsn, APPENDED) as appends:
        orders.connection.execute("notify event_store_appended")
        assert appends.wait(patience()) == frozenset()
