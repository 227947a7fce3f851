"""A consumer beside a sequencer is called by words: it need not poll for what is new."""

import threading

import psycopg
import pytest

from millrace.resources.consumers import consumer as consuming_of
from millrace.resources.consumers.declaration import subscription
from millrace.resources.event_store import EventStore, LeasedEvent
from millrace.resources.sequencer import run_sequencer
from tests.support.factories import Connect, append, register_orders, rows, start
from tests.support.patience import patience, wait_until
from tests.support.views.consuming import Seen, consuming


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    return register_orders(store)


def listens(connection: psycopg.Connection) -> bool:
    return bool(
        rows(
            connection,
            "select from pg_stat_activity where datname = current_database() and query ~* '^listen.*event_store_positions'",
        )
    )


def is_quiet(connection: psycopg.Connection, other: psycopg.Connection) -> bool:
    """Say whether a consumer, and not the other one, has asked for nothing for a while; these are what it asks last."""
    return bool(
        rows(
            connection,
            "select from pg_stat_activity where datname = current_database() and state = 'idle'"
            " and query ~ 'select event_store.(dispatch_events|is_attended)' and pid <> %s"
            " and state_change < clock_timestamp() - interval '0.3 s'",
            other.info.backend_pid,
        )
    )


def test_a_word_of_the_sequencer_wakes_it(
    orders: EventStore, dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by polling alone nothing would come in time
    for name in ("LONGEST_PAUSE_S", "LONGEST_ATTENDED_S", "GROWTH"):
        monkeypatch.setattr(consuming_of, name, 60_000.0)
    observer, seen, stop = connect(), Seen(), threading.Event()
    sequencing = start(lambda: run_sequencer(dsn, stop))
    try:
        wait_until(orders.is_attended, "a sequencer is at work")
        with consuming(dsn, subscription(view="v", start="-infinity")(seen.add)):
            wait_until(lambda: listens(observer), "the consumer listens")
            for number in range(3):
                wait_until(lambda: is_quiet(observer, orders.connection), "the consumer waits")
                append(orders, f"o-{number}")
                wait_until(lambda n=number: len(seen.events) == n + 1, "the event is handled")  # type: ignore[misc]
    finally:
        stop.set()
        sequencing.result(patience())


def test_while_nobody_sequences_it_does_so_itself(orders: EventStore, dsn: str) -> None:
    handled = threading.Event()

    def handle(_: LeasedEvent) -> None:
        handled.set()

    with consuming(dsn, subscription(view="v", start="-infinity")(handle)):
        assert not orders.is_attended()
        append(orders)
        assert handled.wait(patience())
