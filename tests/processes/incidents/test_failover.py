"""Exhausted connections, and a standby that takes over, while the sequencer and a drain of a read model run."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from millrace.drain.view_drain import ViewDrain
from millrace.errors import MillraceError, PositionOutOfRange
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.read_models.stored.versions import AheadOfLog
from tests.processes.incidents.conftest import STORE
from tests.support.building.drains import Everything, all_events, assert_equals_a_clean_run, rows_of
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.factories import append, assert_log_holds_every_event_once, refusal, rows, start, value
from tests.support.incidents.clients import Appender, going_on, more
from tests.support.incidents.page import PROGRAMS, declare, incident
from tests.support.incidents.servers import Copy, crash, either
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_event

SETTINGS = "fsync = off\nmax_connections = 30\nshared_buffers = '16MB'\nwal_receiver_status_interval = '1s'"
LOST = "00000000-0000-4000-8000-00000000105e"


@pytest.fixture(scope="module")
def primary(
    programs: Path,
    started: Callable[[EmbeddedPostgres, str], EmbeddedPostgres],
    tmp_path_factory: pytest.TempPathFactory,
) -> EmbeddedPostgres:
    server = started(EmbeddedPostgres(tmp_path_factory.mktemp("primary"), programs), SETTINGS)
    with psycopg.connect(server.dsn(STORE), autocommit=True) as connection:
        for event in EVENTS:
            PlatformStore(connection).register_decider_event(DECIDER, event, f"a thing was {event}")
    return server


@contextmanager
def sequencing(dsn: str, log: Path) -> Iterator[None]:
    """Run `millrace run sequencer`; the same process must survive."""
    with log.open("a") as said:
        process = subprocess.Popen(
            [PROGRAMS / "millrace", "run", "sequencer", "--dsn", dsn], stdout=said, stderr=said, env=os.environ
        )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            process.wait(patience())


@contextmanager
def draining(dsn: str, spark: SparkSession) -> Iterator[list[Exception]]:
    """Drain the read model without a pause, as Dagster's runs do: the next run follows a failed one.

    Yields the errors of failed runs.
    """
    stop, failed = threading.Event(), list[Exception]()

    def run() -> None:
        while not stop.is_set():
            try:
                with ViewDrain(dsn, Everything, lambda: spark, "a run", lease_s=5) as consumer:
                    consumer.drain(budget_s=600, idle_s=600, stop=stop)
            except (MillraceError, psycopg.OperationalError) as error:
                failed.append(error)

    drain = start(run)
    try:
        yield failed
    finally:
        stop.set()
        drain.result(patience())


def writers() -> list[Appender]:
    data = {"text": "é", "units": 3, "worth": 1.25, "good": True, "nested": {"cause": "wear"}}
    return [Appender(f"thing-{n}", decider=DECIDER, event="made", data=data) for n in range(2)]


def drain_rest(dsn: str, spark: SparkSession) -> None:
    with ViewDrain(dsn, Everything, lambda: spark, "the last run") as consumer:
        consumer.drain(budget_s=patience(), idle_s=0)


def stored(store: PlatformStore) -> set[object]:
    return {event_id for (event_id,) in rows(store.connection, "select event_id from event_store.events")}


def test_sessions_that_idle_are_ended_and_everybody_else_goes_on(primary: EmbeddedPostgres, tmp_path: Path) -> None:
    declare(tmp_path)
    with ExitStack() as opened:
        _exhaust(primary, tmp_path, opened)


def _exhaust(primary: EmbeddedPostgres, tmp_path: Path, opened: ExitStack) -> None:
    def connected(dsn: str, *, autocommit: bool = True) -> psycopg.Connection:
        connection = psycopg.connect(dsn, autocommit=autocommit)
        opened.callback(connection.close)
        return connection

    def taken(dsn: str) -> int:
        """Connect until the server refuses, and return the number of connections."""
        number = 0
        with suppress(psycopg.OperationalError):
            while number < 30:
                connected(dsn)
                number += 1
        return number

    admin, ours, theirs = (primary.dsn(STORE, user) for user in ("postgres", "millrace", "shop"))
    busy = connected(theirs, autocommit=False)
    kept = append(PlatformStore(busy), "kept", event="made", decider=DECIDER)
    idle = taken(theirs)
    assert idle > 20
    with (
        incident("Connections are exhausted", tmp_path, MILLRACE_DSN=ours, ADMIN_DSN=admin) as operator,
        sequencing(ours, tmp_path / "sequence.log"),
    ):
        operator.follow(refused=True)
        wait_until(lambda: "connection" in (tmp_path / "sequence.log").read_text(), "the sequencer finds no connection")
        assert "shop" in operator.follow()
        assert str(idle) in operator.follow()
        operator.follow()
        # the open transaction commits completely
        busy.commit()
        with psycopg.connect(admin, autocommit=True) as connection:
            position = "select position from event_store.log_position(%s)"
            wait_until(lambda: value(connection, position, kept.event_id) is not None, "the sequencer goes on")
    assert taken(theirs) == 9  # and the connection of the open transaction


def test_a_failover_keeps_what_was_acknowledged(
    primary: EmbeddedPostgres, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    declare(tmp_path)
    folder = tmp_path_factory.mktemp("servers")
    second, third = (Copy(folder / name, primary.programs) for name in ("second", "third"))
    dsn = either(STORE, primary, second, third)
    try:
        second.follow(primary, synchronous=True)
        both = writers()
        with sequencing(dsn, tmp_path / "sequence.log"):
            with draining(dsn, spark) as failed, going_on(dsn, *both):
                with psycopg.connect(dsn, autocommit=True) as connection:
                    wait_until(lambda: _consumed(connection) > 0, f"the drain commits {failed}")
                crash(primary)
                with incident("Failover of Postgres", tmp_path, MILLRACE_DSN=dsn, STANDBY_DSN=second.dsn(STORE)) as one:
                    one.follow()
                    one.follow()
                    for writer in both:
                        more(writer.acknowledged)
                    with psycopg.connect(dsn, autocommit=True) as connection:
                        seen = _consumed(connection)
                        wait_until(lambda: _consumed(connection) > seen, "the drain goes on")
                    one.follow()
            with psycopg.connect(dsn, autocommit=True) as connection:
                store = PlatformStore(connection)
                store.sequence_events()
                acknowledged = {event for writer in both for event in writer.acknowledged}
                assert sum(len(writer.acknowledged) for writer in both) == len(acknowledged)
                # at most one append of each writer was stored and not acknowledged
                assert acknowledged <= stored(store)
                assert len(stored(store) - acknowledged) <= 3
                assert_log_holds_every_event_once(connection)
                drain_rest(dsn, spark)
                assert_equals_a_clean_run(store)
                assert len(rows_of(connection, Everything)) == len({e.decider_id for e in all_events(store)})
        lose_what_is_not_copied(second, third, dsn, spark, tmp_path)
    finally:
        for server in (second, third):
            server.stop()


def _consumed(connection: psycopg.Connection) -> int:
    query = "select coalesce(sum(position), 0)::int from event_store.checkpoints where view = 'everything'"
    return int(value(connection, query))


def lose_what_is_not_copied(second: Copy, third: Copy, dsn: str, spark: SparkSession, folder: Path) -> None:
    """Fail over to a standby that lacks the last events: the store is of one moment; readers beyond it get an error."""
    third.follow(second, synchronous=False)
    third.stop()
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        before = stored(store)
        append_event(store, "made", LOST, DECIDER, "thing-lost", {"units": 1}, LOST, None)  # type: ignore[arg-type]
        store.sequence_events()
        ((partition, position),) = rows(connection, "select * from event_store.log_position(%s)", LOST)
    drain_rest(dsn, spark)
    crash(second)
    third.start()
    with psycopg.connect(third.dsn(STORE), autocommit=True) as admin:
        admin.execute("select pg_promote()")
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        store.sequence_events()
        assert stored(store) == before
        assert_log_holds_every_event_once(connection)
        assert store.views_beyond_log() == []
        drain_rest(dsn, spark)
        assert_equals_a_clean_run(store)
        # a reader of the lost event is beyond the log, and gets an error until another event has that position
        refusal(PositionOutOfRange, lambda: store.read_log(partition, position + 1))
        other = append(store, "thing-lost", event="made", decider=DECIDER)
        store.sequence_events()
        assert store.read_log(partition, position + 1) == []
        found = rows(connection, "select partition, position from event_store.log_position(%s)", other.event_id)
        assert found == [(partition, position)]
        with incident("Failover with asynchronous replication", folder, MILLRACE_DSN=dsn) as operator:
            operator.follow()
        # only possible by writing into the tables
        connection.execute(
            "update event_store.checkpoints set position = position + 100 where view = 'everything' and partition = %s",
            (partition,),
        )
        refused = refusal(AheadOfLog, lambda: drain_rest(dsn, spark))
        assert "millrace view reset everything" in str(refused.hint)
