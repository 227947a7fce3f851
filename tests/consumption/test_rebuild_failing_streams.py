"""Streams that a rebuild cannot build: they wait, those that can be built again are freed, all others are there."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.merge import swap_children
from tests.support.building.drains import (
    Everything,
    assert_equals_a_clean_run,
    drain,
    observer,
    rows_of,
    thing,
    things,
)
from tests.support.building.poison import TOTALS, assert_holds_all_but, at, correct, locks, offsets_of, poison
from tests.support.building.read_models import DECIDER, random_events
from tests.support.factories import ids_of_one_partition, read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


def test_a_rebuild_that_readers_hold_up_after_it_tried_which_streams_can_be_merged_tries_again(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = ids_of_one_partition(things.connection, 2, partition=3)
    things.append_events([thing(good, owner="p", units=1)])
    drain(at(dsn, 0), spark, TOTALS)
    # no index holds such a key
    things.append_events([thing(bad, owner=random.Random(1).randbytes(6000).hex(), units=1)])
    swaps = []

    def held_up(*arguments: Any) -> None:  # noqa: ANN401 - passed on
        swaps.append(arguments)
        if len(swaps) in {1, 2}:
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        swap_children(*arguments)

    monkeypatch.setattr("millrace.resources.consumption.commit.swap_children", held_up)
    with Consumer.open(at(dsn, 1), TOTALS, lambda: spark, "rebuilder") as consumer:
        commit = consumer.rebuild(3)
    assert len(swaps) == 3
    assert [failure.stream.decider_id for failure in commit.failures] == [bad]
    assert rows_of(things.connection, TOTALS) == [("p", 1)]


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
