"""Drains and rebuilds whose leases others take, or share the work with: nothing is consumed twice."""

import threading
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

from millrace.resources.consumption import round as one_round
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.errors import LeaseLost
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import ensure_version, reset_model
from tests.support.building.drains import (
    Counted,
    assert_equals_a_clean_run,
    busiest,
    drain,
    fill,
    later,
    observer,
    thing,
    things,
)
from tests.support.building.poison import WORTHS
from tests.support.building.shared_drains import share
from tests.support.factories import ids_of_one_partition, rows, start, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


def test_a_zombies_commit_is_refused_and_changes_nothing(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 80)
    taken_over: list[int] = []

    def overtaken() -> "SparkSession":
        if not taken_over:
            taken_over.append(drain(later(dsn), spark, Counted, owner="B").events)
        return spark

    with Consumer(dsn, Counted, overtaken, "A") as zombie:
        report = zombie.drain(budget_s=patience(), idle_s=0)
    assert taken_over == [80]
    assert (report.batches, report.events) == (0, 0)
    assert_equals_a_clean_run(things, Counted)


def test_a_rebuild_whose_lease_was_taken_over_raises_and_changes_nothing(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    drain(dsn, spark, Counted)

    def overtaken() -> "SparkSession":
        fill(things, 40, seed=2)
        drain(later(dsn), spark, Counted, owner="B")
        return spark

    with Consumer(dsn, Counted, overtaken, "A") as zombie, pytest.raises(LeaseLost) as lost:
        zombie.rebuild(busiest(things))
    assert "token" in str(lost.value)
    assert_equals_a_clean_run(things, Counted)


def test_a_zombie_from_before_a_reset_is_refused_although_its_token_was_drawn_again(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 80)
    others: list[Consumer] = []

    def reset() -> "SparkSession":
        if not others:
            # it did not say for long that it is at work
            zombie._store.connection.execute("delete from event_store.consumers")
            with psycopg.connect(later(dsn), autocommit=True) as connection:
                reset_model(connection, Counted)
            others.append(Consumer(dsn, Counted, lambda: spark, "B"))
            # B holds the new leases while A comes to commit what it leased before the reset
            things.claim_batch(Counted.view, "B", 1_000, 600)
        return spark

    with Consumer(dsn, Counted, reset, "A") as zombie:
        report = zombie.drain(budget_s=patience(), idle_s=0)
    assert report.batches == 0
    for other in others:
        other.close()
    drain(dsn, spark, Counted)
    assert_equals_a_clean_run(things, Counted)


def test_leases_are_kept_while_spark_builds_longer_than_they_last(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    fill(things, 60)
    until = "select min(leased_until) from event_store.checkpoints"

    def slow() -> "SparkSession":
        first = value(observer, until)
        wait_until(lambda: value(observer, "select clock_timestamp() > %s", first), "the first lease's time is over")
        assert things.claim_batch(Counted.view, "B", 1_000, 600) == []
        return spark

    with Consumer(dsn, Counted, slow, "A", lease_s=1) as consumer:
        report = consumer.drain(budget_s=patience(), idle_s=0)
    assert (report.batches, report.events) == (1, 60)
    assert_equals_a_clean_run(things, Counted)


def test_two_drains_of_one_view_share_the_work_and_nothing_is_consumed_twice(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    ensure_version(things.connection, Counted)
    together = threading.Barrier(2)

    def work(owner: str) -> DrainReport:
        met: list[int] = []

        def both_have_claimed() -> "SparkSession":
            if not met:
                met.append(together.wait(patience()))
            return spark

        with Consumer(dsn, Counted, both_have_claimed, owner) as consumer:
            # a poll during the other's claim finds nothing: it has to ask once more
            return consumer.drain(budget_s=patience(), idle_s=2, batch_events=20)

    reports = [start(lambda owner=owner: work(owner)) for owner in ("A", "B")]  # type: ignore[misc]
    events = [report.result(patience()).events for report in reports]
    assert min(events) > 0
    assert sum(events) == 60
    assert_equals_a_clean_run(things, Counted)


END_ALL: LiteralString = (
    "update event_store.checkpoints set leased_until = event_store_private.clock() - interval '1 s'"
    " where lease_owner is not null"
)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_what_a_second_build_did_not_read_because_its_lease_had_ended_is_not_passed_over(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    good, bad = ids_of_one_partition(things.connection, 2, partition=3)
    # an event follows the one that no column holds, so the round is built again
    things.append_events(thing(name, worth=worth) for name, worth in ((good, 1), (bad, "a lot"), (bad, 2), (good, 3)))
    again = one_round.Rounds._again

    def late(self: one_round.Rounds, *given: Any) -> Any:  # noqa: ANN401 - passed on
        monkeypatch.setattr(one_round.Rounds, "_again", again)
        things.connection.execute(END_ALL)
        return again(self, *given)

    monkeypatch.setattr(one_round.Rounds, "_again", late)
    if shared:
        # the first drain may end before it asks for that view again
        for _ in range(2):
            assert share(dsn, spark, [WORTHS, Counted]) == {"worths": None, "counted": None}
    else:
        drain(dsn, spark, WORTHS)
    assert value(things.connection, "select sum(position) from event_store.checkpoints where view = 'worths'") == 4
    assert rows(things.connection, "select decider_id from event_store.stream_locks") == [(bad,)]
    assert rows(things.connection, "select sum(events) from read_models.worths") == [(2,)]


def test_a_lease_that_has_ended_and_was_not_taken_over_is_extended_again(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    drain(dsn, spark, Counted)
    in_force: LiteralString = (
        "select bool_and(leased_until > event_store_private.clock()) from event_store.checkpoints"
        " where lease_owner is not null"
    )

    def late() -> "SparkSession":
        things.connection.execute(END_ALL)
        wait_until(lambda: value(things.connection, in_force), "its leases are in force again")
        return spark

    with Consumer(dsn, Counted, late, "rebuilder", lease_s=3) as consumer:
        consumer.rebuild(*range(16))
    assert_equals_a_clean_run(things, Counted)
