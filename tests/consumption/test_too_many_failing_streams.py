"""Batches in which more streams fail than one search names, or all, or one names in its time.

The healthy part is committed. No stream is blamed for a cause that all of them share.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from millrace.resources.consumption import failing_streams, limits
from millrace.resources.consumption.batch import LeasedParts
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.failing_streams import Part
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.event_store import EventStore, NewEvent
from tests.support.building.drains import (
    Everything,
    drain,
    observer,
    rows_of,
    thing,
    things,
)
from tests.support.building.poison import TOTALS, assert_holds_all_but, at, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


def test_where_everything_fails_no_stream_is_blamed(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    things.append_events([poison(f"thing-{n}") for n in range(12)])
    with pytest.raises(PartitionsFailed, match="'a lot'"):
        drain(dsn, spark)
    assert locks(things) == []
    assert sum(lag.behind for lag in things.view_lag(Everything.view)) == 12


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


def refused(decider_id: str) -> NewEvent:
    """Make an event whose row Postgres refuses, which no single event tells of: no index holds such a key."""
    return thing(decider_id, owner=random.Random(decider_id).randbytes(6000).hex(), units=1)


def test_a_rebuild_in_which_more_streams_fail_than_one_search_names_goes_on_until_it_has_them_all(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_FAILURES", 1)
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 3)
    good, *bad = ids_of_one_partition(things.connection, 3, partition=3)
    things.append_events([thing(good, owner="p", units=1), *map(refused, bad)])
    things.sequence_events()
    with Consumer.open(at(dsn, 0), TOTALS, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(3)
    assert sorted(failure.stream.decider_id for failure in commit.failures) == sorted(bad)
    assert locks(things) == [(each, 1) for each in sorted(bad)]
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
    assert locks(things) == [(each, 1) for each in sorted(bad)]
    assert rows_of(things.connection, TOTALS) == [("p", 1)]
    assert "The search for failing streams had not ended after 1800 s. The 1 that it named wait" in caplog.text


def test_a_search_that_named_nobody_in_its_time_fails_its_log_partition_and_says_so(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_BUILDS", 0)
    (bad,) = ids_of_one_partition(things.connection, 1, partition=3)
    (good,) = ids_of_one_partition(things.connection, 1, partition=4)
    things.append_events([poison(bad), thing(good, worth=1)])
    with pytest.raises(PartitionsFailed, match="1 log partition") as failed:
        drain(at(dsn, 0), spark)
    said = "The search for failing streams had not ended after 0 s, and named none: "
    assert said in str(failed.value) + (failed.value.detail or "")
    assert locks(things) == []
    # the others were built by themselves
    assert_holds_all_but(things, offsets_of(things, bad))
    with (
        Consumer.open(at(dsn, 100), Everything, lambda: spark, "rebuilder") as consumer,
        pytest.raises(PartitionsFailed) as failed,
    ):
        consumer.rebuild(3)
    assert said in (failed.value.detail or "")
