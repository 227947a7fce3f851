"""Rebuilds of log partitions beside drains, readers and each other: no reader sees a half, nothing deadlocks."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.errors import PartitionLeased
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import ensure_version
from tests.support.building.drains import (
    Counted,
    all_blocked,
    assert_equals_a_clean_run,
    busiest,
    drain,
    fill,
    held,
    rows_of,
    thing,
    things,
)
from tests.support.factories import Connect, at_once, rows, start, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["things"]


def test_a_rebuild_while_others_drain_and_events_are_appended_equals_a_clean_run_and_no_reader_sees_a_half(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 120)
    drain(dsn, spark, Counted)
    partition, done, stop = busiest(things), threading.Event(), threading.Event()
    reader = connect()

    def read() -> int:
        """Assert that every statement sees a whole model: exactly the events below the checkpoint, never fewer."""
        looks, before = 0, (0, 0)
        while not done.is_set():
            ((position, events, number),) = rows(
                reader,
                "select (select position from event_store.checkpoints where view = 'counted' and partition = %(p)s),"
                " sum(events)::bigint, count(*) from read_models.counted"
                " where event_store.stream_partition(thing_id, 16) = %(p)s".replace("%(p)s", "%s"),
                partition,
                partition,
            )
            assert events == position
            assert (events, number) >= before
            before, looks = (events, number), looks + 1
        return looks

    def consume() -> DrainReport:
        with Consumer.open(dsn, Counted, lambda: spark, "drainer") as consumer:
            return consumer.drain(budget_s=patience(), idle_s=patience(), stop=stop, batch_events=40)

    looking, draining = start(read), start(consume)
    try:
        with Consumer.open(dsn, Counted, lambda: spark, "rebuilder") as consumer:
            for seed, partitions in ((2, [partition]), (3, range(16))):
                fill(things, 40, seed)
                consumer.rebuild(*partitions, wait_s=patience())
    finally:
        stop.set()
        draining.result(patience())
        done.set()
    assert looking.result(patience()) > 3
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)


def test_a_rebuild_waits_for_a_leased_partition_and_says_who_has_it(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    ensure_version(things.connection, Counted)
    partition = busiest(things)
    lease = things.claim_partition(Counted.view, partition, "somebody else", 600)
    with Consumer.open(dsn, Counted, lambda: spark, "rebuilder") as consumer:
        with pytest.raises(PartitionLeased, match="somebody else"):
            consumer.rebuild(partition, wait_s=0.3)
        since = value(things.connection, "select clock_timestamp()")
        running = start(lambda: consumer.rebuild(partition, wait_s=patience()))
        asked = "select from pg_stat_activity where query_start > %s and state = 'idle' and query ilike %s"
        wait_until(lambda: rows(things.connection, asked, since, "%claim_partition(%"), "it asked in vain")
        things.release_batch(Counted.view, [lease])
        assert running.result(patience()).leases[0].partition == partition
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)


def test_several_log_partitions_are_rebuilt_together_or_none_is_and_two_that_do_so_take_turns(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    drain(dsn, spark, Counted)
    before = rows_of(things.connection, Counted)
    things.connection.execute("update read_models.counted_state set events = 0")
    damaged = rows_of(things.connection, Counted)
    lease = things.claim_partition(Counted.view, 15, "somebody else", 600)
    with Consumer.open(dsn, Counted, lambda: spark, "rebuilder") as consumer:
        with pytest.raises(PartitionLeased, match="somebody else"):
            consumer.rebuild(*range(16), wait_s=0)
        assert things.lease_owners(Counted.view) == ["somebody else"]
        assert rows_of(things.connection, Counted) == damaged
        things.release_batch(Counted.view, [lease])
        commit = consumer.rebuild(*range(16), wait_s=0)
    assert (commit.events, len(commit.leases), sum(commit.rows_of.values())) == (80, 16, commit.rows)
    assert rows_of(things.connection, Counted) == before

    def rebuild(owner: str, *partitions: int) -> Commit:
        with Consumer.open(dsn, Counted, lambda: spark, owner) as consumer:
            return consumer.rebuild(*partitions, wait_s=patience())

    one, two = at_once([lambda: rebuild("A", *range(16)), lambda: rebuild("B", *reversed(range(16)))])
    assert one.result().rows == two.result().rows > 0
    assert_equals_a_clean_run(things, Counted)


def test_rebuilds_of_two_partitions_at_once_wait_for_a_reader_and_not_for_each_other_nor_do_their_swaps_deadlock(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 120)
    drain(dsn, spark, Counted)
    partitions = [lag.partition for lag in things.view_lag(Counted.view) if lag.position][:2]
    reader, observer = connect(), connect()

    def rebuilt(building: "Callable[[], SparkSession]") -> list[Future[Commit]]:
        def rebuild(partition: int) -> Commit:
            with Consumer.open(dsn, Counted, building, f"rebuilder of {partition}") as consumer:
                return consumer.rebuild(partition)

        return [start(partial(rebuild, partition)) for partition in partitions]

    with held(reader, "select from read_models.counted"):
        both = rebuilt(lambda: spark)
        wait_until(
            lambda: value(observer, "select count(*) = 2 from pg_locks where not granted and locktype = 'relation'"),
            "both swaps wait for the reader",
        )
    assert [one.result(patience()).leases[0].partition for one in both] == partitions
    rows_holder, staging_holder = connect(), connect()
    claimed, go = threading.Barrier(3), threading.Event()

    def building() -> "SparkSession":
        claimed.wait(patience())
        assert go.wait(patience())
        return spark

    both = rebuilt(building)
    claimed.wait(patience())
    # both are held after their new tables were made and before they are swapped in
    with staging_holder.transaction():
        with held(rows_holder, "select from event_store.checkpoints for update"):
            go.set()
            wait_until(lambda: len(all_blocked(observer, "commit_batch")) == 2, "both have staged")
            staging_holder.execute("lock table read_models.counted_staging in share mode")
        wait_until(lambda: len(all_blocked(observer, 'delete from "read_models"')) == 2, "both have their new tables")
    assert [one.result(patience()).leases[0].partition for one in both] == partitions
    assert_equals_a_clean_run(things, Counted)


def test_a_reader_in_repeatable_read_from_before_a_swap_misses_the_partition_as_after_a_truncate(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    """A limit of swapping tables, written down where it would be noticed if Postgres lifted it."""
    things.append_events([thing("only", text="a", units=1)])
    drain(dsn, spark, Counted)
    reader = connect()
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read")
        assert value(reader, "select count(*) from event_store.events") == 1
        with Consumer.open(dsn, Counted, lambda: spark, "rebuilder") as consumer:
            consumer.rebuild(busiest(things))
        assert value(reader, "select count(*) from read_models.counted") == 0
    assert value(reader, "select count(*) from read_models.counted") == 1

    # again and again, and also where it is empty
    full = busiest(things)
    with Consumer.open(dsn, Counted, lambda: spark, "rebuilder") as consumer:
        assert [consumer.rebuild(full).rows for _ in range(2)] == [1, 1]
        assert consumer.rebuild((full + 1) % 16).rows == 0
    assert_equals_a_clean_run(things, Counted)
