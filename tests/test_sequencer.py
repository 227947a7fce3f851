"""The loop that keeps the log in order: it sequences, dispatches, takes turns, and outlasts what breaks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from millrace.resources.sequencer import run_sequencer
from tests.support.factories import (
    PATIENCE_S,
    Connect,
    append,
    assert_log_holds_every_event_once,
    new_event,
    register_orders,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_until,
)


@contextmanager
def sequencer(dsn: str) -> Iterator[Future[None]]:
    stop = threading.Event()
    running = start(lambda: run_sequencer(dsn, stop, pause_s=0.01))
    try:
        yield running
    finally:
        stop.set()
        assert running.result(PATIENCE_S) is None


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    return register_orders(store)


@pytest.fixture
def observer(connect: Connect) -> psycopg.Connection:
    return connect()


def sequenced(observer: psycopg.Connection) -> int:
    return int(value(observer, "select count(*) from event_store.event_log"))


def sessions(observer: psycopg.Connection) -> list[int]:
    """Return the loop's sessions."""
    found = rows(
        observer,
        "select pid from pg_stat_activity where datname = current_database() and query ~ 'sequence_events|poll_views|dispatch_events|attend_log|announce_positions'"
        " and pid <> pg_backend_pid()",
    )
    return [pid for (pid,) in found]


def test_appended_events_get_their_offsets_without_a_consumer(
    orders: EventStore, dsn: str, observer: psycopg.Connection
) -> None:
    with sequencer(dsn):
        for n in range(5):
            append(orders, f"o-{n}")
        wait_until(lambda: sequenced(observer) == 5, "five events are in the log")
    assert_log_holds_every_event_once(observer)


def test_rows_views_get_their_locks_and_disabled_and_bulk_views_do_not(
    orders: EventStore, dsn: str, observer: psycopg.Connection
) -> None:
    for view, mode in (("wanted", "rows"), ("disabled", "rows"), ("bulk", "bulk")):
        orders.register_view(view, "-infinity", mode=mode)
    orders.connection.execute("update event_store.views set enabled = false where view = 'disabled'")
    append(orders)
    with sequencer(dsn):
        wait_until(
            lambda: rows(observer, "select distinct view from event_store.stream_locks") == [("wanted",)],
            "the enabled rows view has its lock",
        )


def test_several_loops_take_turns_and_give_every_event_one_offset(
    orders: EventStore, dsn: str, observer: psycopg.Connection
) -> None:
    with sequencer(dsn), sequencer(dsn), sequencer(dsn):
        for n in range(30):
            orders.append_events([new_event(f"o-{n}"), new_event(f"o-{n + 1}")])
        wait_until(lambda: sequenced(observer) == 60, "sixty events are in the log")
    assert_log_holds_every_event_once(observer)


def test_the_loop_connects_again_when_its_session_is_ended(
    orders: EventStore, dsn: str, observer: psycopg.Connection
) -> None:
    with sequencer(dsn):
        wait_until(lambda: len(sessions(observer)) == 1, "the loop is connected")
        (first,) = sessions(observer)
        terminate(observer, first)
        append(orders)
        wait_until(lambda: sequenced(observer) == 1, "the event is in the log")
        assert first not in sessions(observer)


def test_a_loop_that_is_told_to_stop_while_postgres_is_away_ends_in_peace(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    nowhere = tmp_path_factory.mktemp("none")
    stop, failing = threading.Event(), threading.Event()
    connect = psycopg.connect

    def noticed(*arguments: object, **options: object) -> object:
        failing.set()
        return connect(*arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg, "connect", noticed)
        running = start(lambda: run_sequencer(f"postgresql://postgres@/none?host={nowhere}", stop))
        assert failing.wait(PATIENCE_S)
        stop.set()
        assert running.result(PATIENCE_S) is None


def test_a_view_that_is_deleted_between_two_looks_does_not_end_the_loop(
    orders: EventStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.register_view("fleeting", "-infinity")
    orders.register_view("staying", "-infinity")
    dispatch: Callable[[EventStore, str], int] = EventStore.dispatch_events

    def deleted_first(self: EventStore, view: str) -> int:
        self.connection.execute("delete from event_store.views where view = 'fleeting'")
        return dispatch(self, view)

    monkeypatch.setattr(EventStore, "dispatch_events", deleted_first)
    append(orders)
    with sequencer(dsn):
        wait_until(
            lambda: rows(observer, "select view from event_store.stream_locks") == [("staying",)],
            "the view that is left has its lock",
        )


def test_a_database_without_the_store_ends_the_loop_with_its_reason(dsn: str, observer: psycopg.Connection) -> None:
    observer.execute("drop schema event_store cascade")
    with pytest.raises(psycopg.errors.InvalidSchemaName):
        run_sequencer(dsn, threading.Event())


def test_it_ends_transactions_of_producers_after_their_deadline(
    dsn: str, orders: EventStore, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ProducerStore(orders.connection)
    store.register_producer("p")
    set_clock(orders.connection, "2020-01-01 00:00:00+00")  # the loop is at today
    store.begin_transaction("p", 0, 1, 0)
    with sequencer(dsn):
        wait_until(lambda: store.producer_statistics("p")[0].expired == 1, "the transaction has expired")
        # and again after a while
        assert store.begin_transaction("p", 0, 1, 0).status == "opened"
        assert value(observer, "select count(*) from event_store.transactions where state = 'open'") == 1
    monkeypatch.setattr("millrace.resources.sequencer.EXPIRE_EVERY_S", 0.05)
    with sequencer(dsn):
        wait_until(lambda: store.producer_statistics("p")[0].expired == 2, "the transaction has expired")
        store.begin_transaction("p", 0, 1, 0)
        wait_until(lambda: store.producer_statistics("p")[0].expired == 3, "the transaction has expired, too")
