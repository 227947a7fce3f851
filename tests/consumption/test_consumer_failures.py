"""Drains that fail, in Spark, in the merge or for want of a server: what failed is named, the rest goes on."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from millrace.platform_defs.local.services import free_port
from millrace.resources.consumption import commit as commits
from millrace.resources.consumption import connection
from millrace.resources.consumption import drain as draining
from millrace.resources.consumption import round as rounds
from millrace.resources.consumption.commit import Commit, Work
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.drain import Drain
from millrace.resources.consumption.misread import NothingBuilds
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.consumption.staged import StagedBuilds
from millrace.resources.errors import Unreachable
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import ensure_version
from millrace.resources.spark import spark_session
from millrace.resources.spark.bounded import TookTooLong
from tests.support.building.drains import (
    Counted,
    Everything,
    assert_equals_a_clean_run,
    drain,
    fill,
    held,
    observer,
    staged,
    thing,
    things,
    wait_blocked_in,
)
from tests.support.building.poison import TOTALS
from tests.support.building.relay import Relay
from tests.support.building.shared_drains import share
from tests.support.factories import Connect, ids_of_one_partition, rows, start
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


def test_a_failing_partition_is_named_with_its_reason_does_not_hold_up_others_and_is_consumed_once_it_can_be(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    # no stream's fault: a trigger of an operator's
    two = ids_of_one_partition(things.connection, 2, partition=3)
    (good,) = ids_of_one_partition(things.connection, 1, partition=5)
    ensure_version(things.connection, TOTALS)
    things.connection.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$"
    )
    things.connection.execute(
        "create trigger refuse before insert on read_models.amounts_state_parts for each row when (new.partition = 3)"
        " execute function refuse()"
    )
    things.append_events([thing(bad, owner="o", units=8) for bad in two] + [thing(good, owner="p", units=7)])
    with pytest.raises(PartitionsFailed) as failed:
        drain(dsn, spark, TOTALS)
    (line,) = (failed.value.detail or "").splitlines()
    assert line.startswith("p03: ")
    assert "not now" in line
    assert not [word for word in ("\tat ", "java.lang", "Traceback") if word in line]
    assert {lag.partition: lag.behind for lag in things.view_lag(TOTALS.view) if lag.behind} == {3: 2}
    assert rows(things.connection, "select * from read_models.amounts") == [("p", 7)]
    assert rows(things.connection, "select from event_store.stream_locks") == []
    assert things.lease_owners(TOTALS.view) == []

    things.connection.execute("drop trigger refuse on read_models.amounts_state_parts")
    drain(dsn, spark, TOTALS)
    assert rows(things.connection, "select * from read_models.amounts order by owner") == [("o", 16), ("p", 7)]


def test_a_spark_that_does_not_start_is_tried_once_in_each_drain(things: EventStore, dsn: str) -> None:
    tries = []

    def starts() -> "SparkSession":
        tries.append("one")
        raise Unreachable("Spark does not start here.")

    fill(things, 20)
    ensure_version(things.connection, Counted)
    with (
        Drain(dsn, [Counted, Everything], starts, "all") as shared,
        pytest.raises(Unreachable, match="start here"),
    ):
        shared.run(budget_s=patience(), idle_s=0)
    assert tries == ["one"]
    with Consumer(dsn, Counted, starts, "run") as consumer, pytest.raises(Unreachable, match="start here"):
        consumer.drain(budget_s=patience(), idle_s=0)
    assert tries == ["one"] * 2
    assert things.lease_owners(Counted.view) == []


def test_a_postgres_that_refuses_every_write_ends_the_drain_with_its_reason(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(ids_of_one_partition(things.connection, 1, partition)[0]) for partition in (3, 5)])
    ensure_version(things.connection, Counted)
    # stands for a full disk: an OperationalError of a connection that is well
    things.connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$"
    )
    things.connection.execute(
        "create trigger refuse before insert on read_models.counted_state for each row execute function refuse()"
    )
    with pytest.raises(PartitionsFailed, match="No space left on device"):
        drain(dsn, spark, Counted)
    things.connection.execute("drop trigger refuse on read_models.counted_state")
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)


@pytest.mark.parametrize(("table", "statement"), [("staging", "copy"), ("state", "insert into")])
def test_time_limits_of_a_login_end_no_drain(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    observer: psycopg.Connection,
    table: str,
    statement: str,
) -> None:
    """Neither in a task nor in its commit."""
    fill(things, 50)
    limited = f"{dsn}&options=-c%20statement_timeout%3D1s"
    with Consumer(limited, Everything, lambda: spark, "limited") as consumer:
        with held(connect(), f"lock table read_models.everything_{table} in access exclusive mode"):
            draining = start(lambda: staged(consumer).drain(budget_s=patience(), idle_s=0))
            late = "select now() - query_start > interval '1 s' from pg_stat_activity where pid = %s"
            waits = wait_blocked_in(observer, f"{statement}%everything_{table}")
            wait_until(lambda: rows(observer, late, waits) != [(False,)], "it waits for longer")
        draining.result(patience())
    assert_equals_a_clean_run(things, Everything)


def in_rounds(dsn: str, spark: "SparkSession") -> None:
    assert set(share(dsn, spark, [Everything]).values()) == {None}


def alone(dsn: str, spark: "SparkSession") -> None:
    with Consumer(dsn, Everything, lambda: spark, "alone") as consumer:
        assert staged(consumer).drain(budget_s=patience(), idle_s=0).batches == 1


@pytest.mark.parametrize(("door", "merge"), [(in_rounds, "merge_rows"), (alone, "merge_batch")])
def test_a_drain_that_was_paused_in_its_commit_lets_others_on_and_commits_anew(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    observer: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    door: Callable[[str, "SparkSession"], None],
    merge: str,
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    whole = getattr(commits, merge)

    def paused(session: psycopg.Connection, *given: object) -> object:
        monkeypatch.setattr(commits, merge, whole)
        (pid,) = rows(session, "select pg_backend_pid()")[0]
        wait_until(lambda: not rows(observer, "select from pg_stat_activity where pid = %s", pid), "it is let go")
        return whole(session, *given)

    monkeypatch.setattr(commits, merge, paused)
    fill(things, 50)
    door(dsn, spark)
    assert_equals_a_clean_run(things, Everything)


def test_without_a_spark_server_a_drain_fails_in_one_sentence_and_gives_its_leases_back(
    things: EventStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 20)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{free_port()}")

    def nowhere() -> "SparkSession":
        with spark_session() as session:
            return session

    with pytest.raises(Unreachable) as gone, Consumer(dsn, Counted, nowhere, "next") as consumer:
        consumer.drain(budget_s=patience(), idle_s=0)
    assert gone.value.message == f"No Spark Connect server answers at {os.environ['SPARK_REMOTE']}."
    assert things.lease_owners("counted") == []


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_spark_server_that_dies_in_mid_drain_fails_it_and_the_next_drain_goes_on(
    things: EventStore, dsn: str, spark_remote: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 40)
    relay = Relay(urlsplit(spark_remote).port or 0)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{relay.server_address[1]}")
    with (
        spark_session() as session,
        Consumer(dsn, Counted, lambda: session, "next") as consumer,
        # it gives up by itself, whatever its budget is
        pytest.raises(Unreachable, match="Spark"),
    ):
        consumer.drain(budget_s=float("inf"), idle_s=0, batch_events=20, on_commit=lambda _: relay.cut())
    assert things.lease_owners("counted") == []
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)


def test_each_commit_is_told_at_once_and_what_a_log_partition_that_failed_keeps_leased_is_not_built_again(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good, other = (ids_of_one_partition(things.connection, 1, partition)[0] for partition in (3, 5, 7))
    things.append_events([thing(bad), thing(good), thing(other)])
    build, collect = StagedBuilds.build, rounds.Rounds._collected
    told: list[Commit] = []
    seen: list[tuple[set[int], int]] = []
    collected: list[object] = []

    def built(builds: StagedBuilds, store: EventStore, work: Work) -> Commit:
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
            things.append_events([thing(good)])

    monkeypatch.setattr(StagedBuilds, "build", built)
    monkeypatch.setattr(rounds.Rounds, "_collected", collecting)
    with Consumer(dsn, Counted, lambda: spark, "own") as consumer, pytest.raises(PartitionsFailed, match="1 log"):
        staged(consumer).drain(budget_s=patience(), idle_s=0, on_commit=more)
    assert seen[0] == ({3, 5, 7}, 0)
    alone = [tells for partitions, tells in seen[1:] if partitions & {5, 7}]
    assert alone == [*range(len(alone))]
    assert collected == []


class Clock(threading.Event):
    """A clock that goes on where a drain waits, and the event that it waits for."""

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


def test_a_drain_asks_once_more_after_each_delay_before_it_ends(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[int] = []

    def more() -> None:
        if not later:
            later.append(7)
            fill(things, 7, seed=2)

    clock = Clock(more)
    monkeypatch.setattr(draining, "time", clock)
    fill(things, 5)
    with Consumer(dsn, replace(Counted, pooling_delay_s=9), lambda: spark, "own") as consumer:
        assert consumer.drain(budget_s=100, idle_s=5, stop=clock).events == 12


def test_a_drain_that_nothing_could_be_built_in_says_so_at_once(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*_: object) -> Commit:
        raise NothingBuilds("not now")

    clock = Clock()
    monkeypatch.setattr(draining, "time", clock)
    monkeypatch.setattr(StagedBuilds, "build", built)
    fill(things, 5)
    with Consumer(dsn, Counted, lambda: spark, "own") as consumer, pytest.raises(PartitionsFailed, match="not now"):
        staged(consumer).drain(budget_s=100, idle_s=50, stop=clock)
    assert clock.now < 50
