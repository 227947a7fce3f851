"""Followers of the log and of its notifications while servers restart and fail over, and behind a pooler."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from millrace.event_store.following import EventFilter, follow
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import Wakeups
from millrace.operations.metrics.store import metrics_of
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.producers import ProducerStore
from millrace.sequencer import run_sequencer
from tests.conftest import in_memory
from tests.event_store.test_following import Screen, following
from tests.event_store.test_wake_ups import announce, listeners
from tests.support.factories import append, append_to, register_orders, start, value
from tests.support.incidents.servers import Copy, crash, either
from tests.support.patience import patience, wait_until
from tests.support.running.own_server import own_server
from tests.support.views.pooler import PROGRAM, pooled


@pytest.fixture
def followed(pytestconfig: pytest.Config) -> Iterator[tuple[EmbeddedPostgres, str]]:
    with own_server("followed", programs=pytestconfig.getoption("postgres"), home=in_memory()) as server:
        yield server, server.dsn("followed")


def append_in_order(dsn: str, decider_id: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = register_orders(PlatformStore(connection))
        append_to(store, decider_id)
        store.sequence_events()


def test_a_follower_outlasts_a_restart_of_the_server_and_says_so_once(followed: tuple[EmbeddedPostgres, str]) -> None:
    server, dsn = followed
    append_in_order(dsn, "a")
    with following(dsn) as screen:
        wait_until(lambda: screen.ids() == ["a"], "the first one")
        server.stop()
        wait_until(lambda: bool(screen.lost), "it noticed")
        server.start()
        append_in_order(dsn, "b")
        wait_until(lambda: screen.ids() == ["a", "b"], "the second one")
    assert len(screen.lost) == 1
    server.stop()
    with pytest.raises(psycopg.OperationalError):
        follow(dsn, EventFilter(), 10, Screen().show, threading.Event(), lost=Screen().lost.append)
    server.start()
    screen, stop = Screen(), threading.Event()
    running = start(lambda: follow(dsn, EventFilter(), 10, screen.show, stop, lost=screen.lost.append, patience_s=0))
    wait_until(lambda: bool(screen.shown), "it began")
    server.stop()
    assert isinstance(running.exception(patience()), psycopg.OperationalError)


def test_a_follower_and_the_sequencer_go_on_at_a_standby_that_is_promoted(pytestconfig: pytest.Config) -> None:
    stop, screen = threading.Event(), Screen()
    with ExitStack() as opened:
        programs = pytestconfig.getoption("postgres")
        first = opened.enter_context(own_server("store", programs=programs))
        second = Copy(Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="wake_"))), programs)
        opened.callback(second.stop)
        second.follow(first, synchronous=True)
        dsn = either("store", first, second)
        loop = start(lambda: run_sequencer(dsn, stop))
        shown = start(lambda: follow(dsn, EventFilter(), 10, screen.show, stop, lost=screen.lost.append))
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                append_to(register_orders(PlatformStore(connection)), "a")
                producers = ProducerStore(connection)
                producers.register_producer("p")
                producers.begin_transaction("p", 0, 1, 0, 600)
            wait_until(lambda: screen.ids() == ["a"], "the first one")
            with psycopg.connect(second.dsn("store"), autocommit=True) as standby:
                wait_until(lambda: ProducerStore(standby).producer_statistics("p")[0].open == 1, "it has what began")
                assert PlatformStore(standby).standing() == []
                assert "millrace_producer_open_messages" in {family.name for family in metrics_of(standby)}
            with Wakeups(second.dsn("store")) as positions:
                assert not positions.listening
            crash(first)
            with psycopg.connect(second.dsn("store"), autocommit=True) as connection:
                connection.execute("select pg_promote()")
                append_to(PlatformStore(connection), "b")
            wait_until(lambda: screen.ids() == ["a", "b"], "the next one")
            with psycopg.connect(dsn, autocommit=True) as connection:
                wait_until(
                    lambda: value(connection, "select mod(last_value, 2) = 1 from event_store.attended_seq"),
                    "the sequencer sleeps again",
                )
                append_to(PlatformStore(connection), "c")
            wait_until(lambda: screen.ids() == ["a", "b", "c"], "the third one")
        finally:
            stop.set()
            loop.result(patience())
            shown.result(patience())
    assert len(screen.lost) == 1


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
@pytest.mark.parametrize("sessions", [1, 3])
def test_behind_a_pool_a_wait_polls_and_leaves_nobody_listening(store: PlatformStore, dsn: str, sessions: int) -> None:
    register_orders(store)
    with tempfile.TemporaryDirectory(prefix="pool-") as folder, pooled(dsn, Path(folder), sessions) as address:
        with Wakeups(address, poll_s=0.05) as positions:
            assert not positions.listening
            append(store)
            announce(store)
            # far sooner than its 600 s
            assert start(lambda: positions.wait(600)).result(patience()) is None
        assert listeners(store.connection) == []
