"""Services behind a proxy that goes silent, and at a server that takes no writes for a while."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millrace.capture.follow import follow
from millrace.drain.leases import owner_keeper
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import Wakeups
from millrace.handlers.consumer import consume
from millrace.operations.alerts.alerter import connected as alerter_connected
from millrace.operations.metrics.store import StoreMetrics
from millrace.postgres import connecting
from millrace.sequencer import run_sequencer
from tests.handlers.test_consume import handled_by
from tests.support.building.relay import Relay
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.capturing.following import arrived
from tests.support.factories import Connect, append, start, value
from tests.support.patience import patience, wait_until
from tests.support.views.consuming import consuming, owed, wait_waking

__all__ = ["captured", "new_source"]

Run = Callable[[str, threading.Event], object]
UNSEQUENCED = (
    'select count(*) from event_store.events where "offset" not in (select "offset" from event_store.event_log)'
)


def through(dsn: str) -> tuple[Relay, str]:
    """Return a relay to a server, and the connection string through it."""
    relay = Relay(f"{conninfo_to_dict(dsn)['host']}/.s.PGSQL.5432")
    plainly = {"sslmode": "disable", "gssencmode": "disable"}
    return relay, make_conninfo(dsn, host="127.0.0.1", port=relay.server_address[1], **plainly)


@pytest.fixture
def relayed(dsn: str) -> Iterator[tuple[Relay, str]]:
    relay, way = through(dsn)
    yield relay, way
    relay.cut()


def handle(_: Delivery) -> None:
    pass


def handle_there(_: Delivery, connection: psycopg.Connection) -> None:
    connection.execute("select")


SERVICES: dict[str, Run] = {
    "sequence": lambda dsn, stop: run_sequencer(dsn, stop, pause_s=0.01),
    "consume": lambda dsn, stop: consume(dsn, [handled_by(handle)], stop=stop),
    "consume over a connection": lambda dsn, stop: consume(
        dsn, [handled_by(handle_there, timeout_s=1, max_attempts=1000)], stop=stop
    ),
}


def moved(store: PlatformStore, service: str) -> bool:
    if service == "sequence":
        return bool(value(store.connection, UNSEQUENCED) == 0)
    store.sequence_events()
    return store.is_registered("v") and owed(store, "v") == 0


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_goes_on_over_new_connections(
    service: str, orders: PlatformStore, relayed: tuple[Relay, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "ANSWER_S", 1)
    relay, dsn = relayed
    stop = threading.Event()
    append(orders, "a")
    running = start(lambda: SERVICES[service](dsn, stop))
    try:
        wait_until(lambda: moved(orders, service), "it works")
        relay.hush()
        append(orders, "b")
        wait_until(lambda: moved(orders, service), "it works again")
    finally:
        stop.set()
    running.result(patience())


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_ends_in_silence_when_told(service: str, orders: PlatformStore, relayed: tuple[Relay, str]) -> None:
    """The answer timeout is far longer than the test's limit."""
    relay, dsn = relayed
    stop = threading.Event()
    append(orders, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "ANSWER_S", 1e6)
        running = start(lambda: SERVICES[service](dsn, stop))
        wait_until(lambda: moved(orders, service), "it works")
        relay.goes_on.clear()
        append(orders, "b")
        stop.set()
        running.result(patience())


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_outlasts_refusals(
    service: str, orders: PlatformStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    append(orders, "a")
    running = start(lambda: SERVICES[service](dsn, stop))
    try:
        wait_until(lambda: moved(orders, service), "it works")
        database = orders.connection.info.dbname
        orders.connection.execute(f'alter database "{database}" set default_transaction_read_only = on'.encode())
        orders.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        wait_until(lambda: "read-only" in caplog.text, "it says what it waits for")
        orders.connection.execute(f'alter database "{database}" reset default_transaction_read_only'.encode())
        append(orders, "b")
        wait_until(lambda: moved(orders, service), "it works again")
    finally:
        stop.set()
    running.result(patience())


def test_an_event_that_met_a_read_only_server_has_not_failed(orders: PlatformStore, dsn: str) -> None:
    append(orders, "a")
    met: list[int] = []

    def handle_late(event: Delivery, connection: psycopg.Connection) -> None:
        met.append(event.attempt)
        if len(met) == 1:
            connection.execute("set local transaction_read_only = on")

    with consuming(dsn, handled_by(handle_late, max_attempts=1)):
        wait_waking(orders, lambda: moved(orders, "consume"), "it is handled")
    assert met == [1, 1]


@pytest.mark.parametrize("silent", ["source", "store"])
def test_a_silent_follower_connects_anew(silent: str, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "ANSWER_S", 1)
    monkeypatch.setattr("millrace.capture.source.connection.ANSWER_S", 1)
    captured.drain()
    relay, way = through(captured.source.dsn if silent == "source" else captured.dsn)
    source, store = (way, captured.dsn) if silent == "source" else (captured.source.dsn, way)
    stop = threading.Event()
    capture = replace(captured.capture, source=lambda: source)
    running = start(lambda: follow(store, capture, stop))
    try:
        for key in (8, 9):
            captured.source.run(f"insert into items values ({key}, 'a')")
            arrived(captured, f"[{key}]")
            relay.hush()
    finally:
        stop.set()
        running.result(patience())
        relay.cut()


def test_who_looks_or_listens_connects_anew(relayed: tuple[Relay, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("operations.metrics.store.ASK_S", "operations.alerts.alerter.WATCH_S", "event_store.wake_ups.ASK_S"):
        monkeypatch.setattr(f"millrace.{limit}", 1)
    monkeypatch.setattr("millrace.event_store.wake_ups.AWAY_S", 0)
    relay, dsn = relayed
    extended: list[object] = []
    metrics = StoreMetrics(dsn)

    def up() -> bool:
        return next(iter(metrics.collect())).samples[0].value == 1

    monkeypatch.setattr(PlatformStore, "extend_owner", lambda store, *_: extended.append(store.is_attended()))
    with closing(metrics), owner_keeper(dsn, "me", 3), Wakeups(dsn) as words:
        alerter = alerter_connected(dsn)
        assert up()
        assert words.listening
        wait_until(lambda: extended, "leases are extended")
        relay.hush()
        assert not up()
        assert up()
        with pytest.raises(connecting.NoAnswer):
            alerter.execute("select")
        words.wait(0.01)
        wait_until(lambda: words.wait(0.01) or words.listening, "it listens again")
        before = len(extended)
        wait_until(lambda: len(extended) > before, "leases are extended")


def test_a_long_call_is_waited_for_while_the_server_works_on_it(relayed: tuple[Relay, str], connect: Connect) -> None:
    relay, dsn = relayed
    holder = connect(autocommit=False)
    holder.execute("lock table event_store.events in access exclusive mode")
    with connecting.connect(dsn, answer_s=0.2) as connection, connecting.unhurried(connection):
        before = len(relay.open)
        called = start(lambda: connection.execute("select count(*) from event_store.events").fetchone())
        wait_until(lambda: len(relay.open) > before, "another connection asks")
        assert not called.done()
        holder.rollback()
        assert called.result(patience()) == (0,)
        relay.hush()
        with pytest.raises(connecting.NoAnswer):
            connection.execute("select 1")


def test_what_a_connection_string_states_counts_more() -> None:
    stated = {"keepalives_idle": "7", "tcp_user_timeout": "8000", "connect_timeout": "9"}
    ours = {name: str(value) for name, value in connecting.LASTING.items()}
    for string, expected in (
        ("postgresql://a@b/c?keepalives_idle=7&tcp_user_timeout=8000&connect_timeout=9", {**ours, **stated}),
        ("host=b", ours),
    ):
        found = conninfo_to_dict(connecting.lasting(string))
        assert {name: str(found[name]) for name in ours} == expected
