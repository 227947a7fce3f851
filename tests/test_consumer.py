"""Drains and rebuilds that are killed, overtaken, starved and raced: the model always equals a clean run."""

import os
import random
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from platform_defs.local_services import free_port
from resources.columns import count, field, last, sum_
from resources.consumer import Commit, Consumer, DrainReport, PartitionsFailed
from resources.errors import LeaseLost, MillraceError, PartitionLeased, Unreachable
from resources.event_store import EventStore, NewEvent
from resources.read_model import ReadModel, read_model
from resources.read_model_tables import DeclarationChanged, HistoryMissing, drop_tables, ensure_tables
from resources.settings import PROJECT
from resources.spark import spark_session
from tests import read_models_for_tests as models
from tests.factories import Connect, at_once, ids_of_one_partition, rows, start, terminate, value
from tests.read_models_for_tests import (
    DECIDER,
    EVENTS,
    expected_crossing,
    expected_everything,
    random_events,
)
from tests.test_read_models import all_events, close, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# mypy takes a decorated class for a class
Everything = cast("ReadModel", models.Everything)
Crossing = cast("ReadModel", models.Crossing)

PATIENCE_S = 60

# a drain in a process of its own, as a Dagster run is one
VICTIM = """
import sys
from resources.consumer import Consumer
from resources.spark import spark_session
from tests.read_models_for_tests import Everything
with spark_session() as spark, Consumer(sys.argv[1], Everything, lambda: spark, "victim", lease_s=600) as consumer:
    consumer.drain(budget_s=60, idle_s=60, batch_events=int(sys.argv[2]))
"""


@read_model(view="amounts", deciders=[DECIDER], key=["owner"])
class Amounts:
    """One row per owner: what can overflow."""

    owner = field("data.owner")
    units = sum_("data.units")


@pytest.fixture
def things(store: EventStore) -> EventStore:
    for event in EVENTS:
        store.register_decider_event(DECIDER, event, f"a thing was {event}")
    return store


@pytest.fixture
def observer(connect: Connect) -> psycopg.Connection:
    """A second session, to look and to interfere."""
    return connect()


def fill(store: EventStore, number: int, seed: int = 1) -> None:
    store.append_events(random_events(random.Random(seed), number))


def thing(decider_id: str, **data: object) -> NewEvent:
    return NewEvent(DECIDER, decider_id, "made", uuid4(), data, uuid4())


def drain(dsn: str, spark: "SparkSession", model: ReadModel = Everything, owner: str = "next") -> DrainReport:
    with Consumer(dsn, model, lambda: spark, owner) as consumer:
        return consumer.drain(budget_s=PATIENCE_S, idle_s=0)


def assert_equals_a_clean_run(store: EventStore) -> None:
    found = rows_of(store.connection, Everything)
    assert close(found) == close(expected_everything(all_events(store)))
    assert sum(lag.lag for lag in store.view_lag(Everything.view)) == 0


def later(dsn: str) -> str:
    """The same database some days on: every lease of today has expired."""
    return f"{dsn}&options=-c%20event_store.clock%3D2099-01-01"


def eventually(state: Callable[[], object], what: str) -> None:
    """Ask until the state is there, without taking the core from those who have to bring it about."""
    deadline = time.monotonic() + PATIENCE_S
    turn = threading.Event()
    while not state():
        assert time.monotonic() < deadline, f"never happened: {what}"
        turn.wait(0.01)


def all_blocked(observer: psycopg.Connection, statement: str) -> list[int]:
    """The sessions of this database that wait for a lock in such a statement."""
    found = rows(
        observer,
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and query ilike %s",
        f"%{statement}%",
    )
    return [pid for (pid,) in found]


def eventually_blocked(observer: psycopg.Connection, statement: str) -> int:
    eventually(lambda: all_blocked(observer, statement), f"a session waits for a lock: {statement}")
    return all_blocked(observer, statement)[0]


@contextmanager
def held(connection: psycopg.Connection, statement: str) -> Iterator[None]:
    """Keep what a statement locks, until the end of the block."""
    with connection.transaction():
        connection.execute(statement.encode())
        yield


# Killed ----------------------------------------------------------------------------------------------------


@contextmanager
def victim(dsn: str, batch_events: int) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, dsn, str(batch_events)], cwd=PROJECT, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


def lease_taken(observer: psycopg.Connection) -> bool:
    return bool(value(observer, "select count(*) from event_store.checkpoints where lease_owner = 'victim'"))


def rows_staged(observer: psycopg.Connection) -> bool:
    return bool(value(observer, "select count(*) from read_models.everything_staging"))


def consumed(observer: psycopg.Connection) -> int:
    return int(value(observer, "select coalesce(sum(position), 0)::int from event_store.checkpoints"))


def some_commits(observer: psycopg.Connection) -> bool:
    return consumed(observer) >= 60


def merged_but_not_committed(observer: psycopg.Connection) -> bool:
    # the checkpoint is moved and the merge waits for the table's lock, which the test holds
    return bool(all_blocked(observer, 'insert into "read_models"'))


@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize("step", [lease_taken, rows_staged, merged_but_not_committed, some_commits])
def test_after_a_kill_at_any_step_the_next_consumer_makes_the_model_equal_a_clean_run(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    step: Callable[[psycopg.Connection], bool],
) -> None:
    fill(things, 200)
    ensure_tables(things.connection, Everything)
    observer, holder = connect(), connect()
    blocks = step is merged_but_not_committed
    with (
        held(holder, f"lock table read_models.everything_state in {'share' if blocks else 'access share'} mode"),
        victim(dsn, batch_events=40) as process,
    ):
        eventually(lambda: step(observer) or process.poll() is not None, step.__name__)
        assert process.poll() is None
        process.kill()
        process.wait(PATIENCE_S)
    assert consumed(observer) < 200
    drain(later(dsn), spark)
    assert_equals_a_clean_run(things)


@pytest.mark.usefixtures("spark_remote")
def test_kills_at_random_points_while_events_are_appended_leave_no_trace(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    dice = random.Random(20260)
    fill(things, 100, seed=0)
    ensure_tables(things.connection, Everything)
    for seed in (1, 2):
        goal, stage = consumed(observer) + dice.randrange(1, 80), dice.choice([lease_taken, rows_staged])
        with victim(dsn, batch_events=dice.randrange(20, 50)) as process:
            fill(things, 60, seed)
            eventually(
                lambda goal=goal, stage=stage: consumed(observer) >= goal and stage(observer),  # type: ignore[misc]
                f"{goal} events and {stage.__name__}",
            )
            process.kill()
            process.wait(PATIENCE_S)
        things.release_owner("victim")  # as the next run does with a run that Dagster knows to be over
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_a_terminated_connection_during_the_merge_is_replaced_and_the_drain_goes_on_by_itself(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 100)
    ensure_tables(things.connection, Everything)
    observer, holder = connect(), connect()
    with held(holder, "lock table read_models.everything_state in share mode"):
        running = start(lambda: drain(dsn, spark))
        terminate(observer, eventually_blocked(observer, 'insert into "read_models"'))
    assert running.result(PATIENCE_S).events == 100
    assert_equals_a_clean_run(things)


def test_staged_rows_that_vanish_are_noticed_and_the_batch_is_built_again(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 60)
    ensure_tables(things.connection, Everything)
    observer, holder = connect(), connect()
    claimed = threading.Event()
    interfered = threading.Event()
    builds: list[int] = []

    def building() -> "SparkSession":
        builds.append(1)
        claimed.set()
        assert interfered.wait(PATIENCE_S)
        return spark

    with Consumer(dsn, Everything, building, "next") as consumer:
        running = start(lambda: consumer.drain(budget_s=PATIENCE_S, idle_s=0))
        assert claimed.wait(PATIENCE_S)
        with held(holder, "select from event_store.checkpoints for update"):
            interfered.set()
            eventually_blocked(observer, "commit_batch")
            observer.execute("truncate read_models.everything_staging")
        report = running.result(PATIENCE_S)
    assert (report.batches, report.events, len(builds)) == (1, 60, 2)
    assert_equals_a_clean_run(things)


# Overtaken -------------------------------------------------------------------------------------------------


def test_a_zombies_commit_is_refused_and_changes_nothing(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 80)
    taken_over: list[int] = []

    def overtaken() -> "SparkSession":
        if not taken_over:
            taken_over.append(drain(later(dsn), spark, owner="B").events)
        return spark

    with Consumer(dsn, Everything, overtaken, "A") as zombie:
        report = zombie.drain(budget_s=PATIENCE_S, idle_s=0)
    assert taken_over == [80]
    assert (report.batches, report.events) == (0, 0)
    assert_equals_a_clean_run(things)


def test_a_rebuild_whose_lease_was_taken_over_raises_and_changes_nothing(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    drain(dsn, spark)

    def overtaken() -> "SparkSession":
        fill(things, 40, seed=2)
        drain(later(dsn), spark, owner="B")
        return spark

    with Consumer(dsn, Everything, overtaken, "A") as zombie, pytest.raises(LeaseLost) as lost:
        zombie.rebuild(busiest(things))
    assert "token" in str(lost.value)
    assert_equals_a_clean_run(things)


def test_a_zombie_from_before_a_reset_is_refused_although_its_token_was_drawn_again(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    others: list[Consumer] = []

    def reset() -> "SparkSession":
        if not others:
            # stands for a pooler or a failover that lost the session's mark of a consumer at work
            zombie._connection.execute("select pg_advisory_unlock_all()")
            with psycopg.connect(later(dsn), autocommit=True) as connection:
                drop_tables(connection, Everything)
            others.append(Consumer(dsn, Everything, lambda: spark, "B").__enter__())
            # B holds the new leases while A comes to commit what it leased before the reset
            things.claim_batch(Everything.view, "B", 1_000, 600)
        return spark

    with Consumer(dsn, Everything, reset, "A") as zombie:
        report = zombie.drain(budget_s=2, idle_s=0)
    assert report.batches == 0
    for other in others:
        other.close()
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_leases_are_kept_while_spark_builds_longer_than_they_last(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    fill(things, 60)
    until = "select min(leased_until) from event_store.checkpoints"

    def slow() -> "SparkSession":
        first = value(observer, until)
        eventually(lambda: value(observer, "select clock_timestamp() > %s", first), "the first lease's time is over")
        assert things.claim_batch(Everything.view, "B", 1_000, 600) == []
        return spark

    with Consumer(dsn, Everything, slow, "A", lease_s=1) as consumer:
        report = consumer.drain(budget_s=PATIENCE_S, idle_s=0)
    assert (report.batches, report.events) == (1, 60)
    assert_equals_a_clean_run(things)


def test_two_drains_of_one_view_share_the_work_and_nothing_is_consumed_twice(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 150)
    ensure_tables(things.connection, Everything)
    together = threading.Barrier(2)

    def work(owner: str) -> DrainReport:
        met: list[int] = []

        def both_have_claimed() -> "SparkSession":
            if not met:
                met.append(together.wait(PATIENCE_S))
            return spark

        with Consumer(dsn, Everything, both_have_claimed, owner) as consumer:
            # a poll during the other's claim finds nothing: it has to ask once more
            return consumer.drain(budget_s=PATIENCE_S, idle_s=2, batch_events=30)

    reports = [start(lambda owner=owner: work(owner)) for owner in ("A", "B")]  # type: ignore[misc]
    events = [report.result(PATIENCE_S).events for report in reports]
    assert min(events) > 0
    assert sum(events) == 150
    assert_equals_a_clean_run(things)


# Failing ---------------------------------------------------------------------------------------------------


def correct(connection: psycopg.Connection, decider_id: str, data: str) -> None:
    """Change an event behind the store's back: stands for whatever makes the reason of a failure go away."""
    connection.execute("alter table event_store.events disable trigger user")
    connection.execute("update event_store.events set data = %s where decider_id = %s", (data, decider_id))
    connection.execute("alter table event_store.events enable trigger user")


def test_a_failing_partition_is_named_with_its_reason_does_not_hold_up_others_and_is_consumed_once_corrected(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 100)
    things.append_events([thing("bad", worth="a lot")])
    partition = value(things.connection, "select event_store.stream_partition('bad', 16)")
    with pytest.raises(PartitionsFailed) as failed:
        drain(dsn, spark)
    (line,) = (failed.value.detail or "").splitlines()
    assert line.startswith(f"p{partition:02}: ")
    assert "'a lot'" in line
    assert not {"\tat ", "java.lang", "Traceback"} & {
        word for word in ("\tat ", "java.lang", "Traceback") if word in line
    }
    assert {lag.partition for lag in things.view_lag("everything") if lag.lag} == {partition}
    assert things.lease_owners("everything") == []

    correct(things.connection, "bad", '{"worth": 5}')
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


@pytest.mark.parametrize(
    ("model", "first", "second", "reason"),
    [
        (Amounts, {"owner": "o", "units": 2**62}, {"owner": "o", "units": 2**62}, "out of range"),
        (Amounts, {"owner": "o"}, {"owner": "%s", "units": 1}, "index row"),
    ],
    ids=["a sum that only the merge overflows", "a key that no index holds"],
)
def test_what_only_the_merge_refuses_fails_its_partition_alone(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    model: ReadModel,
    first: dict[str, Any],
    second: dict[str, Any],
    reason: str,
) -> None:
    bad, _ = ids_of_one_partition(things.connection, 2, partition=3)
    good, _ = ids_of_one_partition(things.connection, 2, partition=5)
    if second["owner"] == "%s":
        second = second | {"owner": random.Random(1).randbytes(6000).hex()}
    things.append_events([thing(bad, **first)])
    drain(dsn, spark, model)
    things.append_events([thing(bad, **second), thing(good, owner="other", units=7)])
    with pytest.raises(PartitionsFailed) as failed, Consumer(dsn, model, lambda: spark, "next") as consumer:
        consumer.drain(budget_s=10, idle_s=0)
    (line,) = (failed.value.detail or "").splitlines()
    assert line.startswith("p03: ")
    assert reason in line
    assert ("other", 7) in rows(things.connection, "select owner, units from read_models.amounts_state")
    assert {lag.partition: lag.lag for lag in things.view_lag(model.view) if lag.lag} == {3: 1}


def test_a_postgres_that_refuses_every_write_ends_the_drain_with_its_reason(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 20)
    ensure_tables(things.connection, Everything)
    # stands for a full disk: an OperationalError of a connection that is well
    things.connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$"
    )
    things.connection.execute(
        "create trigger refuse before insert on read_models.everything_state for each row execute function refuse()"
    )
    with pytest.raises(PartitionsFailed, match="No space left on device"):
        drain(dsn, spark)
    things.connection.execute("drop trigger refuse on read_models.everything_state")
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_without_a_spark_server_a_drain_fails_in_one_sentence_and_gives_its_leases_back(
    things: EventStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 20)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{free_port()}")

    def nowhere() -> "SparkSession":
        with spark_session() as session:
            return session

    with pytest.raises(Unreachable) as gone, Consumer(dsn, Everything, nowhere, "next") as consumer:
        consumer.drain(budget_s=PATIENCE_S, idle_s=0)
    assert gone.value.message == f"No Spark Connect server answers at {os.environ['SPARK_REMOTE']}."
    assert things.lease_owners("everything") == []


class Relay(socketserver.ThreadingTCPServer):
    """A way to the Spark Connect server that can be cut."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.open: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), _Relayed)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self) -> None:
        self.shutdown()
        self.server_close()
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Relayed(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as there:
            self.server.open += [self.request, there]
            threading.Thread(target=_pump, args=(there, self.request), daemon=True).start()
            _pump(self.request, there)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_RDWR)


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_spark_server_that_dies_in_mid_drain_fails_it_within_seconds_and_the_next_drain_goes_on(
    things: EventStore, dsn: str, spark_remote: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 100)
    relay = Relay(urlsplit(spark_remote).port or 0)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{relay.server_address[1]}")
    with spark_session() as session, Consumer(dsn, Everything, lambda: session, "next") as consumer:
        cut_at: list[float] = []

        def cut(_: Commit) -> None:
            relay.cut()
            cut_at.append(time.monotonic())

        with pytest.raises(Unreachable, match="Spark"):
            consumer.drain(budget_s=300, idle_s=0, batch_events=50, on_commit=cut)
        assert time.monotonic() - cut_at[0] < 30
    assert things.lease_owners("everything") == []
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


# Budget, idle, stop ----------------------------------------------------------------------------------------


def test_a_drain_without_budget_takes_nothing(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 10)
    with Consumer(dsn, Everything, lambda: spark, "next") as consumer:
        assert consumer.drain(budget_s=0, idle_s=60) == DrainReport()
    assert things.lease_owners("everything") == []


def test_a_drain_that_is_told_to_stop_ends_after_its_batch(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 60)
    stop = threading.Event()
    with Consumer(dsn, Everything, lambda: spark, "next") as consumer:
        report = consumer.drain(
            budget_s=PATIENCE_S, idle_s=60, batch_events=10, stop=stop, on_commit=lambda _: stop.set()
        )
    assert (report.batches, report.events) == (1, 10)
    assert things.lease_owners("everything") == []


def test_an_idle_drain_takes_what_comes_and_ends_when_nothing_came_for_its_idle_time(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    asked: list[int] = []
    idle = replace(Everything, pooling_delay_s=0)
    with Consumer(dsn, idle, lambda: spark, "next") as consumer:
        running = start(
            lambda: consumer.drain(budget_s=PATIENCE_S, idle_s=1, on_commit=lambda c: asked.append(c.events))
        )
        eventually(
            lambda: rows(
                observer, "select from pg_stat_activity where query ilike '%%claim_batch(%%' and state = 'idle'"
            ),
            "the drain polled and found nothing",
        )
        fill(things, 30)
        report = running.result(PATIENCE_S)
    assert (report.events, sum(asked)) == (30, 30)
    assert_equals_a_clean_run(things)


# Rebuilt ---------------------------------------------------------------------------------------------------


def busiest(store: EventStore) -> int:
    """The log partition with most events."""
    return int(
        value(store.connection, "select partition from event_store.event_log group by 1 order by count(*) desc limit 1")
    )


def test_a_rebuild_while_others_drain_and_events_are_appended_equals_a_clean_run_and_no_reader_sees_a_half(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    partition, done, stop = busiest(things), threading.Event(), threading.Event()
    reader = connect()

    def read() -> int:
        """Every statement sees a whole model: it counts exactly the events below the checkpoint, never fewer than before."""
        looks, before = 0, (0, 0)
        while not done.is_set():
            ((position, events, number),) = rows(
                reader,
                "select (select position from event_store.checkpoints where view = 'everything' and partition = %(p)s),"
                " sum(events)::bigint, count(*) from read_models.everything"
                " where event_store.stream_partition(thing_id, 16) = %(p)s".replace("%(p)s", "%s"),
                partition,
                partition,
            )
            assert events == position
            assert (events, number) >= before
            before, looks = (events, number), looks + 1
        return looks

    def consume() -> DrainReport:
        with Consumer(dsn, Everything, lambda: spark, "drainer") as consumer:
            return consumer.drain(budget_s=PATIENCE_S, idle_s=PATIENCE_S, stop=stop, batch_events=40)

    looking, draining = start(read), start(consume)
    try:
        with Consumer(dsn, Everything, lambda: spark, "rebuilder") as consumer:
            for seed in (2, 3, 4):
                fill(things, 40, seed)
                consumer.rebuild(partition, wait_s=30)
    finally:
        stop.set()
        draining.result(PATIENCE_S)
        done.set()
    assert looking.result(PATIENCE_S) > 3
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_a_rebuild_waits_for_a_leased_partition_and_says_who_has_it(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    ensure_tables(things.connection, Everything)
    partition = busiest(things)
    lease = things.claim_partition("everything", partition, "somebody else", 600)
    with Consumer(dsn, Everything, lambda: spark, "rebuilder") as consumer:
        began = time.monotonic()
        with pytest.raises(PartitionLeased, match="somebody else"):
            consumer.rebuild(partition, wait_s=0.3)
        assert 0.2 < time.monotonic() - began < 10
        running = start(lambda: consumer.rebuild(partition, wait_s=30))
        things.release_batch("everything", [lease])
        assert running.result(PATIENCE_S).leases[0].partition == partition
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_two_rebuilds_of_one_partition_at_once_take_turns(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 80)
    drain(dsn, spark)
    partition = busiest(things)

    def rebuild(owner: str) -> Commit:
        with Consumer(dsn, Everything, lambda: spark, owner) as consumer:
            return consumer.rebuild(partition, wait_s=30)

    one, two = at_once([lambda: rebuild("A"), lambda: rebuild("B")])
    assert {one.result().leases[0].lease_token, two.result().leases[0].lease_token}
    assert one.result().rows == two.result().rows > 0
    assert_equals_a_clean_run(things)


def test_rebuilds_of_two_partitions_at_once_wait_for_a_reader_and_not_for_each_other(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    first, second = [lag.partition for lag in things.view_lag("everything") if lag.position][:2]
    reader, observer = connect(), connect()

    def rebuild(partition: int) -> Commit:
        with Consumer(dsn, Everything, lambda: spark, f"rebuilder of {partition}") as consumer:
            return consumer.rebuild(partition)

    with held(reader, "select from read_models.everything"):
        both = [start(lambda p=p: rebuild(p)) for p in (first, second)]  # type: ignore[misc]
        eventually(
            lambda: value(observer, "select count(*) = 2 from pg_locks where not granted and locktype = 'relation'"),
            "both swaps wait for the reader",
        )
    assert [one.result(PATIENCE_S).leases[0].partition for one in both] == [first, second]
    assert_equals_a_clean_run(things)


def test_swaps_of_two_partitions_that_come_at_the_same_moment_do_not_deadlock(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    partitions = [lag.partition for lag in things.view_lag("everything") if lag.position][:2]
    observer, rows_holder, staging_holder = connect(), connect(), connect()
    claimed, go = threading.Barrier(3), threading.Event()

    def building() -> "SparkSession":
        claimed.wait(PATIENCE_S)
        assert go.wait(PATIENCE_S)
        return spark

    def rebuild(partition: int) -> Commit:
        with Consumer(dsn, Everything, building, f"rebuilder of {partition}") as consumer:
            return consumer.rebuild(partition)

    both = [start(lambda p=p: rebuild(p)) for p in partitions]  # type: ignore[misc]
    claimed.wait(PATIENCE_S)
    # both are held after their new tables were made and before they are swapped in
    with staging_holder.transaction():
        with held(rows_holder, "select from event_store.checkpoints for update"):
            go.set()
            eventually(lambda: len(all_blocked(observer, "commit_batch")) == 2, "both have staged")
            staging_holder.execute("lock table read_models.everything_staging in share mode")
        eventually(lambda: len(all_blocked(observer, 'delete from "read_models"')) == 2, "both have their new tables")
    assert [one.result(PATIENCE_S).leases[0].partition for one in both] == partitions
    assert_equals_a_clean_run(things)


def test_a_reader_in_repeatable_read_from_before_a_swap_misses_the_partition_as_after_a_truncate(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    """A limit of swapping tables, written down where it would be noticed if Postgres lifted it."""
    things.append_events([thing("only", text="a", units=1)])
    drain(dsn, spark)
    reader = connect()
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read")
        assert value(reader, "select count(*) from event_store.events") == 1
        with Consumer(dsn, Everything, lambda: spark, "rebuilder") as consumer:
            consumer.rebuild(busiest(things))
        assert value(reader, "select count(*) from read_models.everything") == 0
    assert value(reader, "select count(*) from read_models.everything") == 1


def test_a_partition_can_be_rebuilt_again_and_again_and_also_where_it_is_empty(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("only", text="a", units=1)])
    drain(dsn, spark)
    full = busiest(things)
    with Consumer(dsn, Everything, lambda: spark, "rebuilder") as consumer:
        assert [consumer.rebuild(full).rows for _ in range(3)] == [1, 1, 1]
        assert consumer.rebuild((full + 1) % 16).rows == 0
    assert_equals_a_clean_run(things)


# Declared anew ---------------------------------------------------------------------------------------------


def test_a_changed_declaration_is_refused_with_the_remedy_and_after_a_reset_builds_anew(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    drain(dsn, spark)
    before = rows_of(things.connection, Everything)
    changed = replace(Everything, columns={"events": count(), "status": last("event")})
    with pytest.raises(DeclarationChanged) as refused, Consumer(dsn, changed, lambda: spark, "next"):
        pass
    assert refused.value.hint == "Build it anew: millrace reset everything"
    assert rows_of(things.connection, Everything) == before

    lease = things.claim_partition("everything", 3, "somebody", 600)
    with pytest.raises(MillraceError, match="leased by somebody"):
        drop_tables(things.connection, changed)
    things.release_batch("everything", [lease])
    drop_tables(things.connection, changed)
    assert drain(dsn, spark, changed).events == 60
    assert [row[:2] for row in rows_of(things.connection, changed)] == [row[:2] for row in before]


def test_a_shortened_log_keeps_a_model_going_and_is_no_ground_to_build_one(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    drain(dsn, spark)
    before = rows_of(things.connection, Everything)
    full = busiest(things)
    things.mark_archived(full, 1)
    things.raise_low_water_mark(full, 1, "a test")
    with Consumer(dsn, Everything, lambda: spark, "rebuilder") as consumer:
        with pytest.raises(HistoryMissing, match=f"log partition {full} begins at 1"):
            consumer.rebuild(full)
        consumer.rebuild((full + 1) % 16)
    assert rows_of(things.connection, Everything) == before
    fill(things, 20, seed=2)
    assert drain(dsn, spark).events == 20
    with pytest.raises(HistoryMissing):
        ensure_tables(things.connection, Crossing)


def test_a_model_whose_key_crosses_streams_is_drained_by_two_and_equals_a_clean_run(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    ensure_tables(things.connection, Crossing)
    at_once([lambda: drain(dsn, spark, Crossing, "A"), lambda: drain(dsn, spark, Crossing, "B")])
    assert close(rows_of(things.connection, Crossing)) == close(expected_crossing(all_events(things)))


def test_a_model_whose_view_was_removed_is_refused_and_counts_nothing_twice(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 30)
    drain(dsn, spark)
    things.connection.execute("delete from event_store.views where view = 'everything'")
    with pytest.raises(DeclarationChanged, match="was removed"), Consumer(dsn, Everything, lambda: spark, "next"):
        pass
    drop_tables(things.connection, Everything)
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_a_view_that_is_somebody_elses_is_not_taken_over(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    things.register_view("everything", mode="bulk")
    with (
        pytest.raises(DeclarationChanged, match="registered already"),
        Consumer(dsn, Everything, lambda: spark, "next"),
    ):
        pass


def test_a_reset_after_the_view_was_renamed_removes_the_old_view(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 10)
    drain(dsn, spark)
    drop_tables(things.connection, replace(Everything, view="renamed"))
    assert things.poll_views() == []


def test_a_batch_that_is_not_committed_leaves_no_staged_rows(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    with Consumer(dsn, Everything, lambda: spark, "late") as consumer:
        lost = threading.Event()

        def spark_whose_leases_are_lost_meanwhile() -> "SparkSession":
            things.connection.execute("update event_store.checkpoints set lease_token = lease_token + 1")
            lost.set()
            return spark

        consumer._spark = spark_whose_leases_are_lost_meanwhile
        report = consumer.drain(budget_s=60, idle_s=0, stop=lost)
        assert (report.batches, report.failed) == (0, {})
    assert rows(things.connection, "select count(*) from read_models.everything_staging") == [(0,)]
