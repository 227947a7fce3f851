"""Scheduled events beside each other, beside batches, and in sessions that end: each comes once, and in order."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from millrace.event_store import NewEvent, on
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.scheduled_events import firing
from millrace.sequencer import run_sequencer
from tests.support.factories import Connect, append, append_to, at_once, away, rows, set_clock, start, terminate, value
from tests.support.patience import patience, wait_until

FIRING = "select pid from pg_stat_activity where datname = current_database() and query ~ 'fire_scheduled_events' and pid <> pg_backend_pid()"
WAITING = "select count(*) from event_store.scheduled_events where done_at is null"


@contextmanager
def sequencing(dsn: str) -> Iterator[None]:
    stop = threading.Event()
    loop = start(lambda: run_sequencer(dsn, stop))
    try:
        yield
    finally:
        stop.set()
        loop.result(patience())


def due(store: PlatformStore, streams: int, events: int) -> None:
    """Open streams, and schedule `events` numbered events in each; all are due."""
    append_to(store, *(f"s-{stream}" for stream in range(streams)))
    store.connection.execute(
        """
        select count(*) from (
          select (event_store.schedule_event('paid', gen_random_uuid(), 'order', 's-' || s, jsonb_build_object('n', n),
            gen_random_uuid(), clock_timestamp() - interval '1 day' + make_interval(secs => n), 't' || n)).*
          from generate_series(1, %s) n, generate_series(0, %s - 1) s
        ) scheduled
        """,
        (events, streams),
    )


def fire_all(store: PlatformStore) -> None:
    wait_until(lambda: store.fire_scheduled_events().done == 0 and value(store.connection, WAITING) == 0, "none waits")


def position(store: PlatformStore, event_id: object) -> object:
    return value(store.connection, "select position from event_store.log_position(%s)", event_id)


def numbers(store: PlatformStore, stream: str) -> list[int]:
    return [event.data["n"] for event in store.read("order", stream) if event.event == "paid"]


def test_eight_sequencers_append_each_event_once_and_in_order(orders: PlatformStore, connect: Connect) -> None:
    fire_by_eight(orders, connect, streams=20, events=20)


def fire_by_eight(store: PlatformStore, connect: Connect, streams: int, events: int) -> None:
    due(store, streams, events)
    for done in at_once([partial(fire_all, PlatformStore(connect())) for _ in range(8)]):
        done.result(0)
    for stream in range(streams):
        assert numbers(store, f"s-{stream}") == list(range(1, events + 1))


def test_batches_in_the_opposite_order_never_deadlock(orders: PlatformStore, connect: Connect) -> None:
    against_batches(orders, connect, rounds=20)


def against_batches(store: PlatformStore, connect: Connect, rounds: int) -> None:
    writers, firing_ = [PlatformStore(connect()) for _ in range(2)], PlatformStore(connect())
    for number in range(rounds):
        due(store, 10, 1)
        batch = [on("order", f"s-{stream}", NewEvent("placed")) for stream in reversed(range(10))]
        works: list[Callable[[], object]] = [partial(each.append_all, batch) for each in writers]
        for done in at_once([*works, firing_.fire_scheduled_events]):
            done.result(0)
        fire_all(store)
        assert [len(numbers(store, f"s-{stream}")) for stream in range(10)] == [number + 1] * 10


def test_an_open_transaction_delays_its_own_stream_only(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    due(orders, 3, 2)
    with connect(autocommit=False) as other, firing(dsn), sequencing(dsn):
        PlatformStore(other).append("order", "s-1", NewEvent("placed"))
        wait_until(lambda: numbers(orders, "s-0") == numbers(orders, "s-2") == [1, 2], "the other streams have theirs")
        late = append(orders, "new")
        wait_until(lambda: position(orders, late.event_id) is not None, "positions go on")
        assert numbers(orders, "s-1") == []
        other.commit()
        wait_until(lambda: numbers(orders, "s-1") == [1, 2], "it follows after the commit")
    assert [each.event for each in orders.read("order", "s-1")] == ["placed", "placed", "paid", "paid"]


def test_many_due_events_of_a_held_stream_delay_no_other_stream(orders: PlatformStore, connect: Connect) -> None:
    due(orders, 1, 300)
    append(orders, "free")
    now = value(orders.connection, "select event_store_private.clock()")
    set_clock(orders.connection, str(now))
    with connect(autocommit=False) as other:
        PlatformStore(other).append("order", "s-0", NewEvent("placed"))
        assert orders.fire_scheduled_events().done == 0
        orders.schedule("order", "free", NewEvent("paid"), name="pay", at=now)
        assert orders.fire_scheduled_events().done == 1
        other.commit()
    set_clock(orders.connection, str(now + timedelta(seconds=2)))
    fire_all(orders)
    assert numbers(orders, "s-0") == list(range(1, 301))


@pytest.mark.parametrize("how", ["killed", "rolled back"])
def test_a_session_that_ends_before_its_commit_appends_nothing(
    orders: PlatformStore, connect: Connect, how: str
) -> None:
    due(orders, 2, 2)
    other = connect(autocommit=False)
    assert PlatformStore(other).fire_scheduled_events().done
    # it holds all: no other session appends them
    assert orders.fire_scheduled_events().done == 0
    if how == "killed":
        terminate(orders.connection, other.info.backend_pid)
    else:
        other.rollback()
    assert value(orders.connection, WAITING) == 4
    fire_all(orders)
    assert [numbers(orders, "s-0"), numbers(orders, "s-1")] == [[1, 2], [1, 2]]


def test_the_loop_comes_again_after_its_session_and_its_server_ended(
    orders: PlatformStore, dsn: str, postgres: EmbeddedPostgres
) -> None:
    with firing(dsn):
        wait_until(lambda: rows(orders.connection, FIRING) != [], "it looks")
        terminate(orders.connection, value(orders.connection, FIRING))
        due(orders, 1, 1)
        wait_until(lambda: numbers(orders, "s-0") == [1], "it came again")
        with away(postgres, orders.connection.info.dbname):
            pass
        with psycopg.connect(dsn, autocommit=True) as connection:
            store = PlatformStore(connection)
            due(store, 1, 1)
            wait_until(lambda: numbers(store, "s-0") == [1, 1], "it came again")


def test_a_clock_that_goes_back_lets_events_wait_and_loses_none(orders: PlatformStore) -> None:
    append(orders)
    orders.schedule("order", "o-1", NewEvent("paid"), name="pay", after=timedelta(0))
    now = orders.fire_scheduled_events(limit=1).clock
    orders.schedule("order", "o-1", NewEvent("paid"), name="again", at=now + timedelta(seconds=1))
    for days, done in ((-365, 0), (0, 0), (-1, 0), (1 / 48, 1)):
        set_clock(orders.connection, str(now + timedelta(days=days)))
        assert orders.fire_scheduled_events(now).done == done
