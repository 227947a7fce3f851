"""Streams that cannot be built: they wait by themselves, in order, and all others go on; in drains and in rebuilds."""

import random
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException

from millrace import fold
from millrace.resources.consumption import failing_streams, limits
from millrace.resources.consumption.commit import Commit, Work
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.failing_streams import Failure, Part
from millrace.resources.consumption.misread import MisreadEvent
from millrace.resources.consumption.parts import LeasedParts
from millrace.resources.consumption.report import DrainReport, PartitionsFailed
from millrace.resources.consumption.staged import StagedBuilds
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.merge import StagedRows
from millrace.rows import FoldEvent, State
from millrace.spark import recompute
from tests.support.building.drains import (
    Counted,
    assert_equals_a_clean_run,
    drain,
    fill,
    observer,
    rows_of,
    staged,
    thing,
    things,
)
from tests.support.building.poison import TOTALS, WORTHS, assert_holds_all_but, at, correct, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition, rows
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["observer", "things"]

OF_JAVA = ("\tat ", "java.", "org.apache.spark", "JVM stacktrace", "Traceback")


def test_failing_streams_wait_in_order_are_tried_again_and_are_dead_letters_in_the_end_which_are_retried_or_given_up(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(failing_streams, "ALL_FAIL", 2)
    bad, other = (ids_of_one_partition(things.connection, 1, partition)[0] for partition in (2, 9))
    fill(things, 60)
    things.append_events([thing(bad, worth=1), poison(bad), thing(bad, worth=2), poison(other), thing("good", worth=2)])
    report = drain(at(dsn, 0), spark, WORTHS)
    assert (report.batches, report.events, report.failed_streams, report.failed) == (1, 65, 2, {})
    first, failing, *_ = offsets_of(things, bad)
    assert_holds_all_but(things, [*offsets_of(things, bad)[1:], *offsets_of(things, other)], WORTHS)
    reasons = dict(
        rows(things.connection, "select decider_id, (last_offset, last_error) from event_store.stream_locks")
    )
    assert first <= int(reasons[bad][0]) < failing
    assert all("'a lot'" in error and "\n" not in error for _, error in reasons.values())
    # neither there nor in the log of the drain
    assert not [word for word in OF_JAVA if word in f"{reasons}{caplog.text}"]

    # what follows waits behind it
    things.append_events([thing(bad, worth=3), thing("good", worth=3)])
    drain(at(dsn, 1), spark, WORTHS)
    assert_holds_all_but(things, [*offsets_of(things, bad)[1:], *offsets_of(things, other)], WORTHS)
    assert dict(locks(things)) == {bad: 1, other: 1}
    # of those that are tried again all fail again: that is theirs
    assert drain(at(dsn, 5), spark, WORTHS).failed_streams == 2
    assert dict(locks(things)) == {bad: 2, other: 2}

    # two more would do the same
    things.connection.execute("update event_store.stream_locks set attempts = 4")
    assert things.dead_letters(WORTHS.view) == []
    drain(at(dsn, 20), spark, WORTHS)
    letters = {letter.decider_id: letter for letter in things.dead_letters(WORTHS.view)}
    assert letters.keys() == {bad, other}
    assert (letters[bad].attempts, letters[bad].waiting, letters[bad].offset) == (5, 3, failing)
    assert "'a lot'" in letters[bad].last_error
    assert drain(at(dsn, 3000), spark, WORTHS) == DrainReport()
    things.discard_dead_letter(WORTHS.view, DECIDER, bad, "nobody knows what it is worth")
    correct(things.connection, other, '{"worth": 7}')
    assert things.retry_dead_letters(WORTHS.view, DECIDER, other) == 1
    retried = drain(at(dsn, 3001), spark, WORTHS)
    assert (retried.batches, retried.failed_streams, locks(things)) == (1, 0, [])
    assert_holds_all_but(things, [failing], WORTHS)

    # as where the declaration is wrong: if all new events fail, nobody is blamed
    things.append_events([poison(f"new-{n}") for n in range(3)])
    with pytest.raises(PartitionsFailed, match="'a lot'"):
        drain(at(dsn, 3002), spark, WORTHS)
    assert locks(things) == []
    assert sum(lag.behind for lag in things.view_lag(WORTHS.view)) == 3


def test_a_rebuild_lets_those_wait_that_fail_frees_those_that_do_not_and_tries_discarded_events_again(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    partition = 3
    freed, failing, parked, good = ids_of_one_partition(things.connection, 4, partition)
    things.append_events([poison(freed), thing(failing, worth=1), poison(parked), thing(parked, worth=2), thing(good)])

    def park_what_fails() -> None:
        """Let each failing stream be a dead letter, as after its last attempt."""
        things.connection.execute(
            "update event_store.stream_locks set attempts = 5, parked_at = updated_at, locked_until = 'infinity'"
        )

    def rebuild(seconds: int) -> set[str]:
        with Consumer(at(dsn, seconds), WORTHS, lambda: spark, "rebuilder") as consumer:
            return {failure.stream.decider_id for failure in consumer.rebuild(partition).failures}

    drain(at(dsn, 0), spark, WORTHS)
    park_what_fails()
    assert {letter.decider_id for letter in things.dead_letters()} == {freed, parked}
    correct(things.connection, freed, '{"worth": 3}')
    correct(things.connection, failing, '{"worth": "a lot"}')
    assert rebuild(6) == {failing, parked}
    assert dict(locks(things)) == {failing: 1, parked: 6}
    assert {letter.decider_id for letter in things.dead_letters()} == {parked}
    assert_holds_all_but(things, [*offsets_of(things, failing), *offsets_of(things, parked)], WORTHS)

    correct(things.connection, failing, '{"worth": 1}')
    given_up = offsets_of(things, parked)[:1]
    things.discard_dead_letter(WORTHS.view, DECIDER, parked, "a lot")
    drain(at(dsn, 12), spark, WORTHS)
    assert locks(things) == []
    assert_holds_all_but(things, given_up, WORTHS)
    # increments with discards equal a rebuild with the same discards
    assert rebuild(13) == {parked}
    park_what_fails()
    assert [letter.offset for letter in things.dead_letters()] == given_up
    things.discard_dead_letter(WORTHS.view, DECIDER, parked, "a lot")
    drain(at(dsn, 20), spark, WORTHS)
    assert_holds_all_but(things, given_up, WORTHS)


@fold(view="crashes", deciders=[DECIDER], key="thing_id", columns={"n": "int"})
def crashes(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing; stands for a library that a value brings down."""
    import os

    if event.data.get("crash"):
        os._exit(3)
    return {"n": (state or {"n": 0})["n"] + 1}


def test_an_event_that_makes_its_process_crash_fails_its_own_stream_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("a"), thing("bad", crash=True), thing("b")])
    report = drain(dsn, spark, crashes)
    assert (report.failed_streams, report.failed) == (1, {})
    assert rows(things.connection, "select thing_id from read_models.crashes order by 1") == [("a",), ("b",)]
    assert locks(things) == [("bad", 1)]


def test_while_log_partitions_are_built_one_by_one_the_leases_of_those_that_wait_are_kept(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    things.append_events(thing(ids_of_one_partition(things.connection, 1, partition)[0]) for partition in (2, 5, 9))
    waited: list[int] = []
    leased: LiteralString = "select partition, leased_until from event_store.checkpoints where partition = any (%s)"
    with Consumer(dsn, Counted, lambda: spark, "next", lease_s=3) as consumer:
        build, stage = StagedBuilds.build, StagedBuilds.stage

        def one_by_one(builds: StagedBuilds, store: EventStore, work: Work) -> Commit:
            if len(work.leases) > 1:
                waited.extend(lease.partition for lease in work.leases)
                raise PySparkException("only all together fail")
            return build(builds, store, work)

        def slow(
            builds: StagedBuilds, work: Work, batch: int, without: tuple[Failure, ...] = ()
        ) -> tuple[list[StagedRows], list[MisreadEvent]]:
            waited.remove(work.leases[0].partition)
            before: dict[int, datetime] = dict(rows(observer, leased, waited))
            wait_until(
                lambda: all(until > before[p] for p, until in rows(observer, leased, waited)),
                "the leases of those that wait are extended",
            )
            return stage(builds, work, batch, without)

        monkeypatch.setattr(StagedBuilds, "build", one_by_one)
        monkeypatch.setattr(StagedBuilds, "stage", slow)
        report = staged(consumer).drain(budget_s=patience(), idle_s=0)
    assert (waited, report.failed, report.events, report.batches) == ([], {}, 3, 3)
    assert_equals_a_clean_run(things, Counted)


# Reasons that no single event tells of: the search goes by halves ------------------------------------------


def refused(decider_id: str) -> NewEvent:
    """Make an event whose row Postgres refuses, which no single event tells of: no index holds such a key."""
    return thing(decider_id, owner=random.Random(decider_id).randbytes(6000).hex(), units=1)


def test_streams_that_are_misread_and_such_as_postgres_refuses_wait_from_one_batch_on_and_all_others_are_built(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    odd = [thing("odd", owner="q", units=units) for units in (1, "a lot", 2)]
    things.append_events([thing("good", owner="p", units=1), refused("bad"), *odd])
    report = drain(at(dsn, 0), spark, TOTALS)
    assert (report.batches, report.failed_streams, report.failed) == (1, 2, {})
    assert locks(things) == [("bad", 1), ("odd", 1)]
    assert sorted(rows_of(things.connection, TOTALS)) == [("p", 1), ("q", 1)]


def test_a_rebuild_names_more_streams_than_one_search_of_a_drain(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 1)
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 3)
    good, *bad = ids_of_one_partition(things.connection, 3, partition=3)
    things.append_events([thing(good, owner="p", units=1), *map(refused, bad)])
    things.sequence_events()
    with Consumer(at(dsn, 0), TOTALS, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(3)
    assert {failure.stream.decider_id for failure in commit.failures} == {*bad}
    assert dict(locks(things)) == dict.fromkeys(bad, 1)
    assert rows_of(things.connection, TOTALS) == [("p", 1)]


def test_a_search_that_has_had_its_time_sets_aside_those_that_it_named_and_the_rest_is_read_again(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    searches: list[LeasedParts] = []
    offsets_of_part = LeasedParts.offsets

    def last_look(parts: LeasedParts, part: Part) -> Sequence[int]:
        """Answer, and end the time of the first search with its first failing event."""
        found = offsets_of_part(parts, part)
        if not searches:
            parts._until = 0.0
        searches.append(parts)
        return found

    monkeypatch.setattr(LeasedParts, "offsets", last_look)
    good, *bad = ids_of_one_partition(things.connection, 3, partition=3)
    things.append_events([thing(good, owner="p", units=1), *map(refused, bad)])
    report = drain(at(dsn, 0), spark, TOTALS)
    assert len({id(parts) for parts in searches}) == 2
    assert (report.batches, report.failed_streams) == (1, 2)
    assert dict(locks(things)) == dict.fromkeys(bad, 1)
    assert rows_of(things.connection, TOTALS) == [("p", 1)]
    assert "The search for failing streams had not ended after 1800 s. The 1 that it named wait" in caplog.text
    assert rows(things.connection, "select count(*) from read_models.amounts_staging") == [(0,)]


def test_a_search_that_named_nobody_in_its_time_fails_its_log_partition_and_says_so(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_BUILDS", 0)
    (bad,) = ids_of_one_partition(things.connection, 1, partition=3)
    (good,) = ids_of_one_partition(things.connection, 1, partition=4)
    things.append_events([refused(bad), thing(good, owner="p", units=1)])
    with pytest.raises(PartitionsFailed, match="1 log partition") as failed:
        drain(at(dsn, 0), spark, TOTALS)
    said = "The search for failing streams had not ended after 0 s, and named none: "
    assert said in str(failed.value) + (failed.value.detail or "")
    assert locks(things) == []
    # the others were built by themselves
    assert rows_of(things.connection, TOTALS) == [("p", 1)]
    with (
        Consumer(at(dsn, 100), TOTALS, lambda: spark, "rebuilder") as consumer,
        pytest.raises(PartitionsFailed) as failed,
    ):
        consumer.rebuild(3)
    assert said in (failed.value.detail or "")


@recompute(view="moments", deciders=[DECIDER], key=["thing_id"], columns={"n": "bigint", "first_at": "timestamp"})
def moments(events: "DataFrame") -> "DataFrame":
    """One row per thing, with a time that Postgres may not hold."""
    from pyspark.sql import functions as f

    micros = f.get_json_object("data", "$.micros").cast("bigint")
    return events.groupBy("decider_id").agg(
        f.count("*").alias("n"), f.min(f.timestamp_micros(micros)).alias("first_at")
    )


@pytest.mark.parametrize("model", [crashes, moments], ids=["fold", "recompute"])
def test_a_search_that_gives_up_moves_no_checkpoint_and_a_stream_that_it_named_goes_on_from_its_rows(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, model: ReadModel
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 1)
    things.append_events([thing("bad", micros=0), thing("bad", crash=True, micros=-(2**62))])
    with Consumer(at(dsn, 0), model, lambda: spark, "first") as consumer:
        work = Work(model, tuple(consumer._store.claim_batch(model.view, "first", 2)))
        assert not consumer._rounds.builds.build(consumer._store, work).whole
    counted = sql.SQL("select thing_id, n from read_models.{}").format(sql.Identifier(model.name))
    assert things.connection.execute(counted).fetchall() == [("bad", 1)]
    correct(things.connection, "bad", "{}")
    with Consumer(at(dsn, 100), model, lambda: spark, "next") as consumer:
        report = staged(consumer).drain(budget_s=patience(), idle_s=0)
    # two positions: the checkpoint was at the beginning
    assert (report.events, report.failed_streams, locks(things)) == (2, 0, [])
    assert things.connection.execute(counted).fetchall() == [("bad", 2)]
