"""Streams that cannot be built: in a drain they wait by themselves, in order, and all others go on."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest
from pyspark.errors import PySparkException

from millrace import Event, State, fold
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport, PartitionsFailed
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.settings import PROJECT
from tests.support.building.drains import (
    Everything,
    assert_equals_a_clean_run,
    drain,
    fill,
    observer,
    rows_of,
    thing,
    things,
)
from tests.support.building.poison import TOTALS, assert_holds_all_but, at, correct, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition, rows
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


def crashes(state: State | None, event: Event) -> State | None:
    """One row per thing; stands for a library that a value brings down."""
    import os

    if event.data.get("crash"):
        os._exit(3)
    return {"n": (state or {"n": 0})["n"] + 1}


CRASHES = fold(view="crashes", deciders=[DECIDER], key="thing_id", columns={"n": "int"})(crashes)


def test_an_event_that_speaks_like_a_lost_server_fails_its_own_stream_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 20)
    words = (
        "event_log: No space left on device, psycopg.OperationalError, ExecutorLostFailure, HistoryShortened",
        "a\nTraceback (most recent call last):\n  File x\nmillrace.resources.event_log_source.log.Unreadable: event_log: b",
    )
    things.append_events([thing(f"bad-{n}", worth=said) for n, said in enumerate(words)])
    report = drain(dsn, spark)
    assert (report.failed_streams, report.failed) == (2, {})
    assert_holds_all_but(things, [*offsets_of(things, "bad-0"), *offsets_of(things, "bad-1")])
    assert locks(things) == [("bad-0", 1), ("bad-1", 1)]


def test_an_event_that_makes_its_process_crash_fails_its_own_stream_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("a"), thing("bad", crash=True), thing("b")])
    report = drain(dsn, spark, CRASHES)
    assert (report.failed_streams, report.failed) == (1, {})
    assert rows(things.connection, "select thing_id from read_models.crashes order by 1") == [("a",), ("b",)]
    assert locks(things) == [("bad", 1)]


def test_if_nothing_builds_but_the_crash_no_stream_is_to_blame(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("bad", crash=True)])
    with pytest.raises(PartitionsFailed):
        drain(dsn, spark, CRASHES)
    assert locks(things) == []


def test_one_failing_event_among_many_streams_waits_with_what_follows_it_and_all_else_is_committed_in_the_same_batch(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 100)
    things.append_events([thing("bad", worth=1), poison("bad"), thing("bad", worth=2)])
    report = drain(at(dsn, 0), spark)
    assert (report.batches, report.events, report.failed_streams, report.failed) == (1, 103, 1, {})
    first, *waiting = offsets_of(things, "bad")
    assert_holds_all_but(things, waiting)
    ((offset, error),) = rows(things.connection, "select last_offset, last_error from event_store.stream_locks")
    assert first <= offset < waiting[0]
    assert "'a lot'" in error
    assert not [word for word in ("\n", "\tat ", "java.lang", "Traceback") if word in error]

    things.append_events([thing("bad", worth=3), thing("good", worth=3)])
    drain(at(dsn, 1), spark)
    waiting = offsets_of(things, "bad")[1:]
    assert_holds_all_but(things, waiting)
    assert locks(things) == [("bad", 1)]

    correct(things.connection, "bad", '{"worth": 5}')
    retried = drain(at(dsn, 5), spark)
    assert (retried.batches, retried.failed_streams) == (1, 0)
    assert locks(things) == []
    assert rows(things.connection, "select events, worth from read_models.everything where thing_id = 'bad'") == [
        (4, 16)
    ]


def test_a_stream_that_fails_again_and_again_is_a_dead_letter_with_its_reason_and_discarding_goes_on_with_the_next_event(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([poison("bad"), thing("bad", worth=2), poison("other"), thing("good", worth=2)])
    for attempts, seconds in enumerate((0, 5), start=1):
        drain(at(dsn, seconds), spark)
        assert locks(things) == [("bad", attempts), ("other", attempts)]
    # two more would do the same
    things.connection.execute("update event_store.stream_locks set attempts = 4")
    assert things.dead_letters(Everything.view) == []
    drain(at(dsn, 15), spark)
    bad, other = sorted(things.dead_letters(Everything.view), key=lambda letter: letter.decider_id)
    assert (bad.decider_id, bad.attempts, bad.waiting, bad.offset) == ("bad", 5, 2, offsets_of(things, "bad")[0])
    assert "'a lot'" in bad.last_error
    assert drain(at(dsn, 3000), spark) == DrainReport()

    things.discard_dead_letter(Everything.view, DECIDER, "bad", "nobody knows what it is worth")
    correct(things.connection, "other", '{"worth": 7}')
    assert things.retry_dead_letters(Everything.view, DECIDER, other.decider_id) == 1
    drain(at(dsn, 3001), spark)
    assert locks(things) == []
    assert_holds_all_but(things, offsets_of(things, "bad")[:1])


def test_failing_streams_of_several_log_partitions_are_all_found_in_one_batch(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    bad = [ids_of_one_partition(things.connection, 1, partition)[0] for partition in (2, 9)]
    things.append_events([event for each in bad for event in (thing(each, worth=1), poison(each))])
    report = drain(at(dsn, 0), spark)
    assert (report.batches, report.failed_streams) == (1, 2)
    assert locks(things) == [(each, 1) for each in sorted(bad)]
    assert_holds_all_but(things, [offsets_of(things, each)[1] for each in bad])


def test_a_stream_that_only_the_merge_refuses_waits_alone(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    bad, good = ids_of_one_partition(things.connection, 2, partition=3)
    things.append_events([thing(bad, owner="o", units=2**62)])
    drain(at(dsn, 0), spark, TOTALS)
    things.append_events(
        [thing(good, owner="p", units=1), thing(bad, owner="q", units=1), thing(bad, owner="o", units=2**62)]
    )
    drain(at(dsn, 1), spark, TOTALS)
    assert rows_of(things.connection, TOTALS) == [("o", 2**62), ("p", 1), ("q", 1)]
    ((stuck, error),) = rows(things.connection, "select decider_id, last_error from event_store.stream_locks")
    assert stuck == bad
    assert "bigint" in error


def test_while_log_partitions_are_built_one_by_one_the_leases_of_those_that_wait_are_kept(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 60)
    waited: list[int] = []
    leased: LiteralString = "select partition, leased_until from event_store.checkpoints where partition = any (%s)"
    with Consumer.open(dsn, Everything, lambda: spark, "next", lease_s=3) as consumer:
        build = consumer._builder.build

        def one_by_one(store: EventStore, leases: Sequence[Lease]) -> Commit:
            if len(leases) > 1:
                waited.extend(lease.partition for lease in leases)
                raise PySparkException("only all together fail")
            waited.remove(leases[0].partition)
            before: dict[int, datetime] = dict(rows(observer, leased, waited))
            wait_until(
                lambda: all(until > before[p] for p, until in rows(observer, leased, waited)),
                "the leases of those that wait are extended",
            )
            return build(store, leases)

        monkeypatch.setattr(consumer._builder, "build", one_by_one)
        report = consumer.drain(budget_s=patience(), idle_s=0)
    assert (waited, report.failed, report.events) == ([], {}, 60)
    assert report.batches > 5
    assert_equals_a_clean_run(things)


DRAIN = """
import sys
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.spark import spark_session
from tests.support.building.read_models import Everything
with spark_session() as spark, Consumer.open(sys.argv[1], Everything, lambda: spark, "next") as consumer:
    assert consumer.drain(budget_s=60, idle_s=0).failed_streams == 1
"""


@pytest.mark.usefixtures("spark_remote")
def test_a_drain_with_failing_streams_writes_no_stack_of_java_to_its_log(things: EventStore, dsn: str) -> None:
    things.append_events([poison("bad"), thing("good", worth=1)])
    done = subprocess.run(
        [sys.executable, "-c", DRAIN, dsn], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not [word for word in ("java.", "org.apache.spark", "stacktrace", "'a lot'") if word in done.stderr]
