"""Any process ends in the middle of a round: the drain continues, or ends and releases its leases."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from millrace.drain import round as one_round
from millrace.drain.connection import connect_patiently
from millrace.drain.loop import Drain
from millrace.errors import Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.declared.declaration import ReadModel
from millrace.spark import spark_session
from tests.support.building.drains import assert_equals_a_clean_run, fill, held, wait_blocked_in
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.building.relay import Relay
from tests.support.building.shared_drains import ALL_WELL, FEW, locking_events, share, why_away
from tests.support.building.waiting import Waiting, let_go, met, stop_at
from tests.support.factories import Connect, start, terminate
from tests.support.patience import patience
from tests.support.running.own_server import own_server
from tests.support.sql_calls import BatchEvent, append_events

WITH_WAITING = [*FEW, Waiting]
READING = "event_store.event_log s where"


@pytest.fixture
def own_dsn() -> Iterator[tuple[EmbeddedPostgres, str]]:
    """Yield a separate server, to be restarted, and an event store there."""
    with own_server("own") as server:
        with store_at(server.dsn("own")) as store:
            for event in EVENTS:
                store.register_decider_event(DECIDER, event, f"a thing was {event}")
        yield server, server.dsn("own")


@contextmanager
def store_at(dsn: str) -> Iterator[PlatformStore]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield PlatformStore(connection)


def fill_anew(dsn: str, number: int, *more: BatchEvent) -> None:
    with store_at(dsn) as store:
        fill(store, number, seed=number)
        if more:
            append_events(store, more)


def test_a_killed_worker_costs_no_place(things: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    share(dsn, spark, WITH_WAITING)
    fill(things, 60)
    told = tmp_path / "told"
    append_events(things, [stop_at(told)])
    running = start(lambda: share(dsn, spark, WITH_WAITING))
    os.kill(met(told), signal.SIGKILL)
    let_go(told)
    assert running.result(patience()) == {**ALL_WELL, "waiting": None}
    assert_equals_a_clean_run(things, *WITH_WAITING)


def test_a_drain_whose_backend_is_killed_in_a_commit_goes_on(
    things: PlatformStore,
    dsn: str,
    spark: SparkSession,
    connect: Connect,
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(one_round, "POLL_S", 60)
    share(dsn, spark, FEW)
    fill(things, 60)
    with held(connect(), "lock table read_models.crossing_state in share mode"):
        running = start(lambda: share(dsn, spark, FEW))
        # the merge statement begins like this
        terminate(observer, wait_blocked_in(observer, "with fresh as"))
    assert running.result(patience()) == ALL_WELL
    assert_equals_a_clean_run(things, *FEW)


def test_postgres_may_restart(own_dsn: tuple[EmbeddedPostgres, str], spark: SparkSession, tmp_path: Path) -> None:
    server, dsn = own_dsn
    fill_anew(dsn, 40)
    with Drain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        restart(server)
        fill_anew(dsn, 41)
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == ALL_WELL
    assert_whole(dsn, FEW)

    fill_anew(dsn, 42)
    with (
        closing(psycopg.connect(dsn)) as holder,
        closing(psycopg.connect(dsn, autocommit=True)) as watcher,
        Drain(dsn, FEW, locking_events(spark, holder), "rounds") as shared,
    ):
        running = start(lambda: shared.run(budget_s=patience(), idle_s=0))
        wait_blocked_in(watcher, READING)
        restart(server)
        running.result(patience())
        assert why_away(shared) == ALL_WELL
    assert_whole(dsn, FEW)

    told = tmp_path / "told"
    fill_anew(dsn, 43, stop_at(told))
    running_folds = start(lambda: share(dsn, spark, WITH_WAITING))
    met(told)
    restart(server)
    let_go(told)
    assert running_folds.result(patience()) == {**ALL_WELL, "waiting": None}
    assert_whole(dsn, WITH_WAITING)


def restart(server: EmbeddedPostgres) -> None:
    server.stop()
    server.start()


def test_a_changed_password_ends_the_drain(own_dsn: tuple[EmbeddedPostgres, str], spark: SparkSession) -> None:
    _, admin = own_dsn
    with store_at(admin) as store:
        rules = Path(str(store.connection.execute("show hba_file").fetchone()[0]))  # type: ignore[index]
        store.connection.execute("create role rotating superuser login password 'one'")
        rules.write_text(f"local all rotating scram-sha-256\n{rules.read_text()}")
        store.connection.execute("select pg_reload_conf()")
        first, second = (make_conninfo(admin, user="rotating", password=password) for password in ("one", "two"))
        fill_anew(admin, 40)
        with Drain(first, FEW, lambda: spark, "rounds") as shared:
            shared.run(budget_s=patience(), idle_s=1)
            assert why_away(shared) == ALL_WELL
            store.connection.execute("alter role rotating password 'two'")
            fill_anew(admin, 41)
            with pytest.raises(Exception, match="password authentication failed"):
                shared.run(budget_s=patience(), idle_s=patience())
        assert store.owned_leases("rounds") == {}
    # a wrong password is not retried for long
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect_patiently(first)
    assert share(second, spark, FEW) == ALL_WELL
    assert_whole(admin, FEW)


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_spark_server_that_goes_ends_the_drain(
    things: PlatformStore,
    dsn: str,
    spark_remote: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    fill(things, 40)
    append_events(things, [stop_at(told)])
    relay = Relay(urlsplit(spark_remote).port or 0)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{relay.server_address[1]}")
    with spark_session() as session, Drain(dsn, WITH_WAITING, lambda: session, "rounds") as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=0))
        met(told)
        relay.cut()
        with pytest.raises(Unreachable, match="Spark"):
            running.result(patience())
        let_go(told)
    assert things.owned_leases("rounds") == {}
    assert share(dsn, spark, WITH_WAITING) == {**ALL_WELL, "waiting": None}
    assert_equals_a_clean_run(things, *WITH_WAITING)


def assert_whole(dsn: str, models: Sequence[ReadModel]) -> None:
    with store_at(dsn) as store:
        assert store.owned_leases("rounds") == {}
        assert_equals_a_clean_run(store, *models)
