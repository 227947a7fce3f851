"""Streams that cannot be built: they wait by themselves, in order, and all others go on; in drains and in rebuilds."""

import random
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport, PartitionsFailed
from millrace.resources.event_store import EventStore, Lease, NewEvent
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.merge import replace_partitions
from millrace.resources.read_models.versions import ensure_version
from millrace.resources.settings import PROJECT
from tests.consumption.test_consumer_failures import TOTALS, correct
from tests.consumption.test_consumer_kills import merged_but_not_committed, victim
from tests.read_models.test_given_when_then import all_events, close, rows_of
from tests.support.factories import Connect, ids_of_one_partition, read_log, rows, value
from tests.support.read_models import DECIDER, expected_everything, random_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.support.drains import (
    PATIENCE_S,
    Everything,
    assert_equals_a_clean_run,
    drain,
    eventually,
    fill,
    held,
    later,
    observer,
    thing,
    things,
)

__all__ = ["observer", "things"]


def at(dsn: str, seconds: int) -> str:
    """The same database so many seconds after a beginning."""
    return f"{dsn}&options=-c%20event_store.clock%3D2030-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def poison(decider_id: str) -> NewEvent:
    return thing(decider_id, worth="a lot")


def locks(store: EventStore) -> list[tuple[str, int]]:
    return rows(store.connection, "select decider_id, attempts from event_store.stream_locks order by 1")


def assert_holds_all_but(store: EventStore, given_up: Collection[int], model: ReadModel = Everything) -> None:
    """The model equals a clean run over all events but those at some offsets."""
    events = [event for event in all_events(store) if event.offset not in given_up]
    assert close(rows_of(store.connection, model)) == close(expected_everything(events))


def offsets_of(store: EventStore, decider_id: str) -> list[int]:
    return [event.offset for event in store.get_events(decider_id, DECIDER)]


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


def test_where_everything_fails_no_stream_is_blamed(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    things.append_events([poison(f"thing-{n}") for n in range(12)])
    with pytest.raises(PartitionsFailed, match="'a lot'"):
        drain(dsn, spark)
    assert locks(things) == []
    assert sum(lag.lag for lag in things.view_lag(Everything.view)) == 12


def test_where_too_many_fail_those_that_were_found_wait_and_the_rest_is_read_again(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 2)
    things.append_events([thing(f"good-{n}", worth=n) for n in range(8)])
    things.append_events([poison(f"bad-{n}") for n in range(3)])
    report = drain(at(dsn, 0), spark)
    assert (report.batches, report.events, report.failed_streams) == (1, 11, 3)
    assert locks(things) == [(f"bad-{n}", 1) for n in range(3)]
    assert_holds_all_but(things, [offsets_of(things, f"bad-{n}")[0] for n in range(3)])


def test_with_more_failing_streams_than_one_search_names_each_waits_at_its_failing_event_and_discarding_gives_up_that_one(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 2)
    bad = [f"bad-{n}" for n in range(3)]
    things.append_events([thing("good", worth=1)])
    things.append_events(
        [event for each in bad for event in (thing(each, worth=1), poison(each), thing(each, worth=2))]
    )
    failing = {each: offsets_of(things, each)[1] for each in bad}
    waiting = [offset for each in bad for offset in offsets_of(things, each)[1:]]
    assert drain(at(dsn, 0), spark).failed_streams == 3
    assert_holds_all_but(things, waiting)
    acknowledged: dict[str, int] = dict(
        rows(things.connection, "select decider_id, last_offset from event_store.stream_locks")
    )
    assert acknowledged == {each: offset - 1 for each, offset in failing.items()}
    assert value(things.connection, "select count(*) from read_models.everything_staging") == 0

    # retried all at once they are too many, too
    drain(at(dsn, 5), spark)
    assert locks(things) == [(each, 2) for each in bad]
    things.connection.execute("update event_store.stream_locks set attempts = 4")
    drain(at(dsn, 20), spark)
    assert {letter.decider_id: letter.offset for letter in things.dead_letters()} == failing
    for each in bad:
        things.discard_dead_letter(Everything.view, DECIDER, each, "nobody knows what it is worth")
    drain(at(dsn, 30), spark)
    assert locks(things) == []
    assert_holds_all_but(things, set(failing.values()))


def test_locked_streams_that_all_fail_again_count_that_and_where_new_events_all_fail_with_them_nobody_is_blamed(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [f"bad-{n}" for n in range(3)]
    things.append_events([thing("good", worth=1), *[poison(each) for each in bad]])
    assert drain(at(dsn, 0), spark).failed_streams == 3
    monkeypatch.setattr(failing_streams, "ALL_FAIL", 2)
    assert drain(at(dsn, 5), spark).failed_streams == 3
    assert locks(things) == [(each, 2) for each in bad]
    # as where the declaration is wrong
    things.append_events([poison(f"new-{n}") for n in range(3)])
    with pytest.raises(PartitionsFailed, match="'a lot'"):
        drain(at(dsn, 20), spark)
    assert locks(things) == [(each, 2) for each in bad]


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
            eventually(
                lambda: all(until > before[p] for p, until in rows(observer, leased, waited)),
                "the leases of those that wait are extended",
            )
            return build(store, leases)

        monkeypatch.setattr(consumer._builder, "build", one_by_one)
        report = consumer.drain(budget_s=PATIENCE_S, idle_s=0)
    assert (waited, report.failed, report.events) == ([], {}, 60)
    assert report.batches > 5
    assert_equals_a_clean_run(things)


def test_a_rebuild_that_readers_hold_up_while_it_tries_which_streams_can_be_merged_tries_again(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = ids_of_one_partition(things.connection, 2, partition=3)
    things.append_events([thing(good, owner="p", units=1)])
    drain(at(dsn, 0), spark, TOTALS)
    # no index holds such a key
    things.append_events([thing(bad, owner=random.Random(1).randbytes(6000).hex(), units=1)])
    swaps = []

    def held_up(*arguments: Any) -> dict[int, int]:  # noqa: ANN401 - passed on
        swaps.append(arguments)
        if len(swaps) in {2, 3}:
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        return replace_partitions(*arguments)

    monkeypatch.setattr("millrace.resources.consumption.commit.replace_partitions", held_up)
    with Consumer.open(at(dsn, 1), TOTALS, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(3)
    assert [failure.stream.decider_id for failure in commit.failures] == [bad]
    assert rows_of(things.connection, TOTALS) == [("p", 1)]


DRAIN = """
import sys
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.spark import spark_session
from tests.support.read_models import Everything
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


def test_a_rebuild_parks_what_fails_frees_what_does_not_and_equals_a_clean_run(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    partition = 3
    freed, failing, parked, good = ids_of_one_partition(things.connection, 4, partition)
    things.append_events([poison(freed), thing(failing, worth=1), poison(parked), thing(parked, worth=2), thing(good)])
    drain(at(dsn, 0), spark)
    things.connection.execute("update event_store.stream_locks set attempts = 4")
    drain(at(dsn, 5), spark)
    assert {letter.decider_id for letter in things.dead_letters()} == {freed, parked}

    correct(things.connection, freed, '{"worth": 3}')
    things.append_events([thing(failing, worth=2)])
    drain(at(dsn, 6), spark)
    correct(things.connection, failing, '{"worth": "a lot"}')
    with Consumer.open(at(dsn, 7), Everything, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(partition)
    assert {failure.stream.decider_id for failure in commit.failures} == {failing, parked}
    assert locks(things) == [(failing, 1), (parked, 6)]
    assert {letter.decider_id for letter in things.dead_letters()} == {parked}
    assert_holds_all_but(things, [*offsets_of(things, failing), *offsets_of(things, parked)])

    correct(things.connection, failing, '{"worth": 1}')
    correct(things.connection, parked, '{"worth": 1}')
    things.retry_dead_letters(Everything.view)
    drain(at(dsn, 12), spark)
    assert_equals_a_clean_run(things)


@pytest.mark.usefixtures("spark_remote")
def test_a_kill_after_the_failing_streams_were_handed_over_and_before_the_commit_changes_nothing(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    things.append_events([poison("bad"), thing("good", worth=1)])
    ensure_version(things.connection, Everything)
    observer, holder = connect(), connect()
    with (
        held(holder, "lock table read_models.everything_state in share mode"),
        victim(dsn, batch_events=1000) as process,
    ):
        eventually(lambda: merged_but_not_committed(observer) or process.poll() is not None, "the merge waits")
        assert process.poll() is None
        process.kill()
        process.wait(PATIENCE_S)
    assert locks(things) == []
    assert value(observer, "select sum(position)::int from event_store.checkpoints") == 0
    assert drain(later(dsn), spark).failed_streams == 1
    assert locks(things) == [("bad", 1)]
    assert_holds_all_but(things, offsets_of(things, "bad"))


def test_increments_with_failures_and_discards_equal_a_rebuild_with_the_same_discards(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    clock = 0

    def settle(discarded: set[int]) -> None:
        """Let what fails fail for the last time and discard it, until nothing waits."""
        nonlocal clock
        while locks(things):
            things.connection.execute("update event_store.stream_locks set attempts = 4 where parked_at is null")
            clock += 10
            drain(at(dsn, clock), spark)
            for letter in things.dead_letters():
                assert letter.offset is not None
                discarded.add(letter.offset)
                things.discard_dead_letter(Everything.view, DECIDER, letter.decider_id, "a lot", letter.offset)

    # each example runs Spark dozens of times
    @settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(seed=st.integers(0, 2**32))
    def holds(seed: int) -> None:
        nonlocal clock
        dice = random.Random(seed)
        discarded: set[int] = set()
        for part in (20, 30):
            events = random_events(dice, part)
            for n in dice.sample(range(part), 2):
                events[n] = replace(events[n], event_id=uuid4(), data={"worth": "a lot"})
            things.append_events(events)
            clock += 1
            drain(at(dsn, clock), spark)
        settle(discarded)
        assert len(discarded) == 4
        assert_holds_all_but(things, discarded)
        again: set[int] = set()
        with Consumer.open(at(dsn, clock), Everything, lambda: spark, "rebuilder") as consumer:
            partitions = {event.partition for event in read_log(things.connection) if event.offset in discarded}
            for partition in partitions:
                consumer.rebuild(partition)
        settle(again)
        assert again == discarded
        assert_holds_all_but(things, discarded)

    holds()
