"""Drains that fail in Spark, in the merge or without a server: the failed part is named, the rest continues."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from psycopg import Connection

from millrace.drain import commit as commits
from millrace.drain import connection
from millrace.drain import loop as draining
from millrace.drain import round as rounds
from millrace.drain.commit import Commit, Work
from millrace.drain.loop import Drain
from millrace.drain.misread import NothingBuilds
from millrace.drain.report import PartitionsFailed
from millrace.drain.staged import StagedBuilds
from millrace.drain.view_drain import ViewDrain
from millrace.errors import Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.local.services import free_port
from millrace.read_models.stored.versions import ensure_version
from millrace.spark import spark_session
from millrace.spark.bounded import TookTooLong
from tests.support.building.drains import Counted, Everything, fill, held, staged, thing, wait_blocked_in
from tests.support.building.lab import Lab
from tests.support.building.poison import TOTALS
from tests.support.building.relay import Relay
from tests.support.factories import Connect, ids_of_one_partition, rows, start
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_failing_partition_is_named_and_holds_up_no_others(lab: Lab) -> None:
    # no stream is to blame: an operator's trigger fails
    two = ids_of_one_partition(lab.connection, 2, partition=3)
    (good,) = ids_of_one_partition(lab.connection, 1, partition=5)
    ensure_version(lab.connection, TOTALS)
    lab.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$"
    )
    lab.execute(
        "create trigger refuse before insert on read_models.amounts_state_parts for each row when (new.partition = 3)"
        " execute function refuse()"
    )
    append_events(lab, [thing(bad, owner="o", units=8) for bad in two] + [thing(good, owner="p", units=7)])
    with pytest.raises(PartitionsFailed) as failed:
        lab.drain(TOTALS)
    (line,) = (failed.value.detail or "").splitlines()
    assert line.startswith("p03: ")
    assert "not now" in line
    assert not [word for word in ("\tat ", "java.lang", "Traceback") if word in line]
    assert {lag.partition: lag.behind for lag in lab.view_lag(TOTALS.view) if lag.behind} == {3: 2}
    assert lab.rows("select * from read_models.amounts") == [("p", 7)]
    assert lab.rows("select from event_store.stream_locks") == []
    assert lab.lease_owners(TOTALS.view) == []

    lab.execute("drop trigger refuse on read_models.amounts_state_parts")
    lab.drain(TOTALS)
    assert lab.rows("select * from read_models.amounts order by owner") == [("o", 16), ("p", 7)]


def test_a_spark_that_does_not_start_is_tried_once_in_each_drain(things: PlatformStore, dsn: str) -> None:
    tries = []

    def starts() -> "SparkSession":
        tries.append("one")
        raise Unreachable("Spark does not start here.")

    fill(things, 20)
    ensure_version(things.connection, Counted)
    with Drain(dsn, [Counted, Everything], starts, "all") as shared, pytest.raises(Unreachable, match="start here"):
        shared.run(budget_s=patience(), idle_s=0)
    assert tries == ["one"]
    with ViewDrain(dsn, Counted, starts, "run") as consumer, pytest.raises(Unreachable, match="start here"):
        consumer.drain(budget_s=patience(), idle_s=0)
    assert tries == ["one"] * 2
    assert things.lease_owners(Counted.view) == []


def test_a_postgres_that_refuses_writes_ends_the_drain(lab: Lab) -> None:
    append_events(lab, [thing(ids_of_one_partition(lab.connection, 1, partition)[0]) for partition in (3, 5)])
    ensure_version(lab.connection, Counted)
    # stands for a full disk: an OperationalError on a healthy connection
    lab.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$"
    )
    lab.execute(
        "create trigger refuse before insert on read_models.counted_state for each row execute function refuse()"
    )
    with pytest.raises(PartitionsFailed, match="No space left on device"):
        lab.drain(Counted)
    lab.execute("drop trigger refuse on read_models.counted_state")
    lab.drain(Counted)
    lab.is_clean(Counted)


@pytest.mark.parametrize(("table", "statement"), [("staging", "copy"), ("state", "insert into")])
def test_time_limits_of_a_login_end_no_drain(
    lab: Lab, connect: Connect, observer: Connection, table: str, statement: str
) -> None:
    """They apply neither in a task nor in its commit."""
    lab.fill(50)
    limited = f"{lab.dsn}&options=-c%20statement_timeout%3D1s"
    with ViewDrain(limited, Everything, lab.session, "limited") as consumer:
        with held(connect(), f"lock table read_models.everything_{table} in access exclusive mode"):
            draining = start(lambda: staged(consumer).drain(budget_s=patience(), idle_s=0))
            late = "select now() - query_start > interval '1 s' from pg_stat_activity where pid = %s"
            waits = wait_blocked_in(observer, f"{statement}%everything_{table}")
            wait_until(lambda: rows(observer, late, waits) != [(False,)], "it waits for longer")
        draining.result(patience())
    lab.is_clean(Everything)


def in_rounds(lab: Lab) -> None:
    assert set(lab.share([Everything]).values()) == {None}


def alone(lab: Lab) -> None:
    with lab.consumer(Everything, "alone") as consumer:
        assert staged(consumer).drain(budget_s=patience(), idle_s=0).batches == 1


@pytest.mark.parametrize(("door", "merge"), [(in_rounds, "merge_rows"), (alone, "merge_batch")])
def test_a_drain_that_was_paused_in_its_commit_commits_anew(
    lab: Lab, observer: Connection, monkeypatch: pytest.MonkeyPatch, door: Callable[[Lab], None], merge: str
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    whole = getattr(commits, merge)

    def paused(session: Connection, *given: object) -> object:
        monkeypatch.setattr(commits, merge, whole)
        (pid,) = rows(session, "select pg_backend_pid()")[0]
        wait_until(lambda: not rows(observer, "select from pg_stat_activity where pid = %s", pid), "it is let go")
        return whole(session, *given)

    monkeypatch.setattr(commits, merge, paused)
    lab.fill(50)
    door(lab)
    lab.is_clean(Everything)


def test_without_a_spark_server_a_drain_says_so(
    things: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 20)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{free_port()}")

    def nowhere() -> "SparkSession":
        with spark_session() as session:
            return session

    with pytest.raises(Unreachable) as gone, ViewDrain(dsn, Counted, nowhere, "next") as consumer:
        consumer.drain(budget_s=patience(), idle_s=0)
    assert gone.value.message == f"No Spark Connect server answers at {os.environ['SPARK_REMOTE']}."
    assert things.lease_owners("counted") == []


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_after_spark_died_the_next_drain_goes_on(lab: Lab, spark_remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill(40)
    relay = Relay(urlsplit(spark_remote).port or 0)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{relay.server_address[1]}")
    with (
        spark_session() as session,
        ViewDrain(lab.dsn, Counted, lambda: session, "next") as consumer,
        # it gives up by itself, with any budget
        pytest.raises(Unreachable, match="Spark"),
    ):
        consumer.drain(budget_s=float("inf"), idle_s=0, batch_events=20, on_commit=lambda _: relay.cut())
    assert lab.lease_owners("counted") == []
    lab.drain(Counted)
    lab.is_clean(Counted)


def test_each_commit_is_told_and_no_failed_one_is_built_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good, other = (ids_of_one_partition(lab.connection, 1, partition)[0] for partition in (3, 5, 7))
    append_events(lab, [thing(bad), thing(good), thing(other)])
    build, collect = StagedBuilds.build, rounds.Rounds._collected
    told: list[Commit] = []
    seen: list[tuple[set[int], int]] = []
    collected: list[object] = []

    def built(builds: StagedBuilds, store: PlatformStore, work: Work) -> Commit:
        seen.append(({lease.partition for lease in work.leases}, len(told)))
        if 3 in seen[-1][0]:
            raise TookTooLong("late") if len(work.leases) > 1 else NothingBuilds("not now")
        return build(builds, store, work)

    def collecting(self: rounds.Rounds, *given: Any) -> bool:  # noqa: ANN401 - passed on
        collected.append(given)
        return collect(self, *given)

    def more(commit: Commit) -> None:
        told.append(commit)
        if len(told) <= 3:
            append_events(lab, [thing(good)])

    monkeypatch.setattr(StagedBuilds, "build", built)
    monkeypatch.setattr(rounds.Rounds, "_collected", collecting)
    with lab.consumer(Counted, "own") as consumer, pytest.raises(PartitionsFailed, match="1 log"):
        staged(consumer).drain(budget_s=patience(), idle_s=0, on_commit=more)
    assert seen[0] == ({3, 5, 7}, 0)
    alone = [tells for partitions, tells in seen[1:] if partitions & {5, 7}]
    assert alone == [*range(len(alone))]
    assert collected == []


class Clock(threading.Event):
    """A clock that advances when a drain waits, and the event that it waits for."""

    def __init__(self, on_wait: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.now = 0.0
        self._on_wait = on_wait

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        if timeout:
            self._on_wait()
        self.now += timeout or 0.0
        return False


def test_a_drain_asks_once_more_after_each_delay(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[int] = []

    def more() -> None:
        if not later:
            later.append(7)
            lab.fill(7, seed=2)

    clock = Clock(more)
    monkeypatch.setattr(draining, "time", clock)
    lab.fill(5)
    with lab.consumer(replace(Counted, pooling_delay_s=9), "own") as consumer:
        assert consumer.drain(budget_s=100, idle_s=5, stop=clock).events == 12


def test_a_drain_that_builds_nothing_says_so_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> Commit:
        raise NothingBuilds("not now")

    clock = Clock()
    monkeypatch.setattr(draining, "time", clock)
    monkeypatch.setattr(StagedBuilds, "build", built)
    lab.fill(5)
    with lab.consumer(Counted, "own") as consumer, pytest.raises(PartitionsFailed, match="not now"):
        staged(consumer).drain(budget_s=100, idle_s=50, stop=clock)
    assert clock.now < 50
