"""Drains and rebuilds that lose leases to others or share work with them: no event is consumed twice."""

import threading
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest
from psycopg import Connection

from millrace.drain import round as one_round
from millrace.drain.report import DrainReport
from millrace.drain.view_drain import ViewDrain
from millrace.errors import LeaseLost
from millrace.read_models.stored.versions import ensure_version, reset_model
from tests.support.building.drains import Counted, busiest, later, thing
from tests.support.building.lab import Lab
from tests.support.building.poison import WORTHS
from tests.support.factories import ids_of_one_partition, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_zombies_commit_is_refused_and_changes_nothing(lab: Lab) -> None:
    lab.fill(80)
    taken_over: list[int] = []
    overtaken = lab.once(lambda: taken_over.append(lab.later().drain(Counted, owner="B").events))
    with ViewDrain(lab.dsn, Counted, overtaken, "A") as zombie:
        report = zombie.drain(budget_s=patience(), idle_s=0)
    assert taken_over == [80]
    assert (report.batches, report.events) == (0, 0)
    lab.is_clean(Counted)


def test_a_rebuild_whose_lease_was_taken_over_changes_nothing(lab: Lab) -> None:
    lab.fill(80).drain(Counted)

    def overtaken() -> "SparkSession":
        lab.fill(40, seed=2)
        lab.later().drain(Counted, owner="B")
        return lab.spark

    with ViewDrain(lab.dsn, Counted, overtaken, "A") as zombie, pytest.raises(LeaseLost) as lost:
        zombie.rebuild(busiest(lab))
    assert "token" in str(lost.value)
    lab.is_clean(Counted)


def test_a_zombie_from_before_a_reset_is_refused_by_its_token(lab: Lab) -> None:
    lab.fill(80)
    others: list[ViewDrain] = []

    def reset() -> None:
        # it has not renewed its attachment for long
        zombie._store.connection.execute("delete from event_store.consumers")
        with psycopg.connect(later(lab.dsn), autocommit=True) as connection:
            reset_model(connection, Counted)
        others.append(lab.consumer(Counted, "B"))
        # B holds the new leases when A commits the range that it leased before the reset
        lab.claim_batch(Counted.view, "B", 1_000, 600)

    with ViewDrain(lab.dsn, Counted, lab.once(reset), "A") as zombie:
        report = zombie.drain(budget_s=patience(), idle_s=0)
    assert report.batches == 0
    for other in others:
        other.close()
    lab.drain(Counted)
    lab.is_clean(Counted)


def test_leases_are_kept_while_spark_builds_longer_than_they_last(lab: Lab, observer: Connection) -> None:
    lab.fill(60)
    until = "select min(leased_until) from event_store.checkpoints"

    def slow() -> "SparkSession":
        first = value(observer, until)
        wait_until(lambda: value(observer, "select clock_timestamp() > %s", first), "the first lease's time is over")
        assert lab.claim_batch(Counted.view, "B", 1_000, 600) == []
        return lab.spark

    with ViewDrain(lab.dsn, Counted, slow, "A", lease_s=1) as consumer:
        report = consumer.drain(budget_s=patience(), idle_s=0)
    assert (report.batches, report.events) == (1, 60)
    lab.is_clean(Counted)


def test_two_drains_of_one_view_share_the_work(lab: Lab) -> None:
    lab.fill(60)
    ensure_version(lab.connection, Counted)
    together = threading.Barrier(2)

    def work(owner: str) -> DrainReport:
        met: list[int] = []

        def both_have_claimed() -> "SparkSession":
            if not met:
                met.append(together.wait(patience()))
            return lab.spark

        with ViewDrain(lab.dsn, Counted, both_have_claimed, owner) as consumer:
            # a poll during the other's claim finds nothing, so the drain must poll again
            return consumer.drain(budget_s=patience(), idle_s=2, batch_events=20)

    reports = [start(lambda owner=owner: work(owner)) for owner in ("A", "B")]  # type: ignore[misc]
    events = [report.result(patience()).events for report in reports]
    assert min(events) > 0
    assert sum(events) == 60
    lab.is_clean(Counted)


END_ALL: LiteralString = (
    "update event_store.checkpoints set leased_until = event_store_private.clock() - interval '1 s'"
    " where lease_owner is not null"
)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_what_a_second_build_did_not_read_comes_later(lab: Lab, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    good, bad = ids_of_one_partition(lab.connection, 2, partition=3)
    # an event follows the one that no column can hold, so the round is built again
    append_events(lab, (thing(name, worth=worth) for name, worth in ((good, 1), (bad, "a lot"), (bad, 2), (good, 3))))
    again = one_round.Rounds._again

    def late(self: one_round.Rounds, *given: Any) -> Any:  # noqa: ANN401 - passed on
        monkeypatch.setattr(one_round.Rounds, "_again", again)
        lab.execute(END_ALL)
        return again(self, *given)

    monkeypatch.setattr(one_round.Rounds, "_again", late)
    if shared:
        # the first drain may end before it polls that view again
        for _ in range(2):
            assert lab.share([WORTHS, Counted]) == {"worths": None, "counted": None}
    else:
        lab.drain(WORTHS)
    assert lab.value("select sum(position) from event_store.checkpoints where view = 'worths'") == 4
    assert lab.rows("select decider_id from event_store.stream_locks") == [(bad,)]
    assert lab.rows("select sum(events) from read_models.worths") == [(2,)]


def test_a_lease_that_has_ended_and_was_not_taken_over_is_extended_again(lab: Lab) -> None:
    lab.fill(60).drain(Counted)
    in_force: LiteralString = (
        "select bool_and(leased_until > event_store_private.clock()) from event_store.checkpoints"
        " where lease_owner is not null"
    )

    def late() -> "SparkSession":
        lab.execute(END_ALL)
        wait_until(lambda: lab.value(in_force), "its leases are in force again")
        return lab.spark

    with ViewDrain(lab.dsn, Counted, late, "rebuilder", lease_s=3) as consumer:
        consumer.rebuild(*range(16))
    lab.is_clean(Counted)
