"""Consumers while their server restarts or stays away, and behind a pooler."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millrace.event_store import Delivery
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.conftest import in_memory
from tests.handlers.test_consume import handled_by
from tests.handlers.test_faults import said
from tests.support.factories import register_orders, rows
from tests.support.patience import patience, wait_until
from tests.support.running.own_server import own_server
from tests.support.views.consuming import Seen, consuming, fill, owed, wait_consumed, wait_waking
from tests.support.views.pooler import PROGRAM, pooled

__all__ = ["said"]


@pytest.fixture(scope="module")
def mortal(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    with own_server(programs=pytestconfig.getoption("postgres"), home=in_memory()) as server:
        yield server


def filled(server: EmbeddedPostgres, name: str, streams: int, events: int) -> str:
    server.start()
    server.create_database(name)
    migrate(server.dsn(name))
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        fill(register_orders(PlatformStore(connection)), streams, events)
        connection.execute("create table mails (event_id uuid)")
    return server.dsn(name)


def test_a_restart_of_the_server_loses_no_event(mortal: EmbeddedPostgres, said: Callable[[str], list[str]]) -> None:
    dsn = filled(mortal, "restarted", 40, 5)
    seen = Seen()
    half = threading.Event()

    def handle(event: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (%s)", (event.event_id,))
        seen.add(event)
        if len(seen.events) > 60:
            half.set()

    with consuming(dsn, handled_by(handle, lock_timeout_s=1, max_attempts=1000)):
        assert half.wait(patience())
        mortal.stop()
        wait_until(lambda: bool(said("server is away")), "it noticed")
        mortal.start()
        with psycopg.connect(dsn, autocommit=True) as connection:
            wait_waking(
                PlatformStore(connection), lambda: owed(PlatformStore(connection), "v") == 0, "all are consumed"
            )
            assert rows(connection, "select count(*), count(distinct event_id) from mails") == [(200, 200)]
    # rolled-back events came again, but never before the events ahead of them
    for versions in seen.by_stream.values():
        assert versions == sorted(versions)
        assert set(versions) == {1, 2, 3, 4, 5}


def test_a_stop_while_the_server_is_away_ends(
    mortal: EmbeddedPostgres, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.handlers.consumer.ASK_S", 0.5)
    dsn = filled(mortal, "away", 3, 1)
    begun, go_on = threading.Barrier(4), threading.Event()

    def handle(_: Delivery) -> None:
        begun.wait(patience())
        assert go_on.wait(patience())

    with consuming(dsn, handled_by(handle, concurrency=3)) as running:
        begun.wait(patience())
        mortal.stop()
        running.stop.set()
        go_on.set()
        wait_until(running.ended.done, "it ends")
    (line,) = said("answers not given")
    assert "events=3" in line
    assert running.counters["v"].handled == 0


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
def test_behind_a_connection_pool_each_event_counts_once(store: PlatformStore, dsn: str) -> None:
    register_orders(store)
    store.connection.execute("create table mails (event_id uuid)")
    fill(store, 40, 5)
    seen = Seen()

    def handle(event: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (%s)", (event.event_id,))
        seen.add(event)

    # not pytest's tmp_path, whose long path does not fit a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(dsn, Path(folder), 3) as address,
        consuming(address, handled_by(handle)) as running,
    ):
        wait_consumed(store, "v")
    seen.assert_each_once_in_order(40, 5)
    assert rows(store.connection, "select count(*), count(distinct event_id) from mails") == [(200, 200)]
    assert (running.counters["v"].failed, running.counters["v"].reconnected) == (0, 0)
