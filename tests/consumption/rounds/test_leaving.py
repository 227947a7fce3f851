"""Shared drains: which views leave them and why, when they come back, and that no other view notices."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace import Event, ReadModel, State, fold
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.rounds import drain as draining
from millrace.resources.consumption.rounds import member as membership
from millrace.resources.consumption.rounds import plan as planning
from millrace.resources.consumption.rounds import round as one_round
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.consumption.rounds.leaf import union
from millrace.resources.event_log_source import LogRange
from millrace.resources.event_store import EventStore
from tests.support.building.drains import Crossing, Everything, drain, fill, held, machines, observer, thing, things
from tests.support.building.poison import TOTALS, poison
from tests.support.building.read_models import DECIDER
from tests.support.building.shared_drains import (
    ALL_WELL,
    FEW,
    assert_as_alone,
    consumers,
    positions,
    share,
    why_away,
)
from tests.support.factories import Connect, rows
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]


@fold(view="stumbling", deciders=[DECIDER], key="thing_id", columns={"seen": "bigint"})
def stumbling(state: State | None, event: Event) -> State:
    """One row per thing, but of one it makes nothing."""
    if event.decider_id == "stone":
        raise ValueError("a stone")
    return {"seen": (state or {"seen": 0})["seen"] + 1}


Stumbling = cast("ReadModel", stumbling)


def test_a_value_that_a_type_does_not_hold_makes_its_view_leave_and_no_other(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    things.append_events([poison("bad")])
    with SharedDrain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        away = why_away(shared)
        # this one takes only events that have an owner
        assert away.pop("crossing") is None
        assert "] data.worth is 'a lot', which is not exactly a decimal(18,2)" in (away["everything"] or "")
        assert "column worth: 'a lot' is not exactly a" in (away["machines"] or "")
        assert [consumers(things, model.view) for model in FEW] == [0, 1, 0]
        assert things.owned_leases("rounds") == {}
    assert positions(things.connection, "crossing") == 41


def test_a_fold_that_fails_leaves_alone_and_comes_back_when_a_run_of_its_own_made_it_well(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.0)
    fill(things, 40)
    things.append_events([replace(poison("stone"), data={})])
    with SharedDrain(dsn, [Everything, Stumbling], lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        away = why_away(shared)
        assert away.pop("everything") is None
        assert "a stone" in (away["stumbling"] or "")
        assert (positions(things.connection, "everything"), positions(things.connection, "stumbling")) == (41, 0)
        # not at once: it would fail again
        shared.run(budget_s=patience(), idle_s=0)
        assert "a stone" in (why_away(shared)["stumbling"] or "")

        drain(dsn, spark, Stumbling, "a run of its own")
        things.append_events([replace(poison("stone"), data={}), replace(poison("sand"), data={})])
        things.sequence_events()
        assert positions(things.connection, "stumbling") == 41
        monkeypatch.setattr(membership, "LONGEST_AWAY_S", 0.0)
        shared.members[1].leave("again, as if it were long ago")
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == {"everything": None, "stumbling": None}
    # what follows the failing event waits with it
    assert rows(things.connection, "select decider_id from event_store.stream_locks") == [("stone",)]
    assert rows(things.connection, "select count(*) from read_models.stumbling where thing_id = 'sand'") == [(1,)]
    assert rows(things.connection, "select count(*) from read_models.stumbling where thing_id = 'stone'") == [(0,)]
    assert positions(things.connection, "stumbling") == 43


def test_a_view_whose_table_somebody_locks_leaves_and_the_others_do_not_wait(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    share(dsn, spark, FEW)
    fill(things, 40)
    with held(connect(), "lock table read_models.crossing_state in share mode"):
        away = share(dsn, spark, FEW)
    assert away.pop("crossing") == "canceling statement due to lock timeout"
    assert away == {"everything": None, "machines": None}
    assert (positions(things.connection, "everything"), positions(things.connection, "crossing")) == (40, 0)
    share(dsn, spark, FEW)
    assert_as_alone(things, dsn, spark, FEW)


def test_a_slow_function_commits_once_more_and_then_leaves(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_round, "SLOW_S", 0.0)
    fill(things, 40)
    assert "of a round" in (share(dsn, spark, [machines])["machines"] or "")
    assert_as_alone(things, dsn, spark, [machines])


def test_a_disabled_view_gets_nothing_and_its_leases_end_while_the_others_go_on(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    share(dsn, spark, FEW)
    things.enable_view("crossing", False, reason="a test")
    fill(things, 40)
    share(dsn, spark, FEW)
    assert (positions(things.connection, "everything"), positions(things.connection, "crossing")) == (40, 0)
    assert things.lease_owners("crossing") == []
    things.enable_view("crossing", True, reason="a test")
    share(dsn, spark, FEW)
    assert_as_alone(things, dsn, spark, FEW)


def test_a_view_that_is_removed_between_rounds_leaves_and_the_others_go_on(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.0)
    with SharedDrain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        things.detach_consumer("crossing", "rounds")
        things.connection.execute("delete from event_store.views where view = 'crossing'")
        fill(things, 40)
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared)["crossing"] is not None
    assert (positions(things.connection, "everything"), positions(things.connection, "machines")) == (40, 40)


def test_a_view_that_a_run_of_its_own_consumes_leaves_and_comes_back_after_it(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.0)
    with SharedDrain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        with Consumer.open(dsn, Crossing, lambda: spark, "own"):
            fill(things, 40)
            shared.run(budget_s=patience(), idle_s=0)
            assert why_away(shared)["crossing"] == "a run of its own consumes it"
            assert positions(things.connection, "crossing") == 0
        # the session of the run that ended is known to be over a moment later
        wait_until(lambda: consumers(things, "crossing") == 0, "the run of its own is over")
        monkeypatch.setattr(membership, "BACK_AFTER_S", 0.0)
        shared.members[1].leave("a run of its own consumes it")
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == ALL_WELL
    assert_as_alone(things, dsn, spark, FEW)


def test_a_view_whose_next_events_the_log_has_lost_leaves_and_skips_none(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    share(dsn, spark, FEW)
    fill(things, 60)
    share(dsn, spark, [Everything, machines])
    # as an operator's mistake, or a restore, could leave it
    things.connection.execute("update event_store.log_partitions set earliest_position = 1, archived_position = 1")
    fill(things, 20, seed=2)
    away = share(dsn, spark, FEW)
    assert "begins at position 1" in (away.pop("crossing") or "")
    assert away == {"everything": None, "machines": None}
    assert positions(things.connection, "crossing") == 0


def test_a_view_that_is_removed_after_the_claim_harms_no_other(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    share(dsn, spark, FEW)
    fill(things, 60)
    removed: list[int] = []

    def spark_while_a_view_goes() -> "SparkSession":
        if not removed:
            things.connection.execute("delete from event_store.views where view = 'crossing'")
            removed.append(1)
        return spark

    with SharedDrain(dsn, FEW, spark_while_a_view_goes, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
    assert (positions(things.connection, "everything"), positions(things.connection, "machines")) == (60, 60)


def test_a_view_that_is_for_bulk_consumers_no_more_leaves(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "ROUND_EVERY_S", 0.0)
    with SharedDrain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        things.connection.execute("update event_store.views set mode = 'rows' where view = 'crossing'")
        fill(things, 60)
        shared.run(budget_s=patience(), idle_s=1)
        assert why_away(shared)["crossing"] == "its view is not one of bulk consumers any more"
    assert (positions(things.connection, "everything"), positions(things.connection, "machines")) == (60, 60)


def test_what_a_round_left_leased_is_committed_by_the_next_one(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    share(dsn, spark, FEW)
    fill(things, 60)
    # as if the commit of one view had been interrupted
    assert things.claim_views(["crossing"], "rounds", limit=1, lease_s=600)
    fill(things, 60, seed=2)
    assert share(dsn, spark, FEW) == ALL_WELL
    assert_as_alone(things, dsn, spark, FEW)


def test_a_view_whose_stored_states_somebody_locks_leaves_alone(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 40)
    share(dsn, spark, FEW)
    fill(things, 40, seed=2)
    with held(connect(), "lock table read_models.machines_state in access exclusive mode"):
        away = share(dsn, spark, FEW)
    assert "lock timeout" in (away.pop("machines") or "")
    assert away == {"everything": None, "crossing": None}
    share(dsn, spark, FEW)
    assert_as_alone(things, dsn, spark, FEW)


def test_a_model_whose_tables_cannot_be_made_leaves_alone(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 40)
    things.connection.execute("create table read_models.crossing (other int)")
    away = share(dsn, spark, FEW)
    assert '"crossing" is not a view' in (away.pop("crossing") or "")
    assert away == {"everything": None, "machines": None}


def test_a_function_that_no_worker_can_get_makes_its_view_leave_alone(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    lock = threading.Lock()

    def bound(state: State | None, event: Event) -> State | None:
        """One row per thing."""
        with lock:
            return stumbling.function(state, event)

    fill(things, 40)
    locked = replace(cast("Any", Stumbling), name="locked", view="locked", function=bound)
    away = share(dsn, spark, [Everything, locked])
    assert "pickle" in (away["locked"] or "")
    assert away["everything"] is None


def test_a_version_that_something_keeps_from_serving_leaves_and_says_so(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    share(dsn, spark, FEW)
    things.connection.execute("create view public.dependent as select mean from read_models.crossing")
    changed = replace(Crossing, columns={"events": Crossing.columns["events"]})
    assert "depend" in (share(dsn, spark, [Everything, changed])["crossing"] or "")
    things.connection.execute("drop view public.dependent")
    assert share(dsn, spark, [Everything, changed])["crossing"] is None


def test_a_view_far_behind_is_not_taken_on_and_what_lies_between_is_not_read(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [("a", 0, 0, 10, 1), ("b", 0, 5, 20, 2), ("c", 0, 20, 30, 3), ("far", 0, 900, 910, 4), ("a", 1, 7, 9, 5)]
    assert union(leases) == [LogRange(0, 0, 30), LogRange(0, 900, 910), LogRange(1, 7, 9)]
    share(dsn, spark, FEW)
    fill(things, 60)
    share(dsn, spark, [Everything])
    monkeypatch.setattr(membership, "LARGE_BACKLOG", 59)
    with SharedDrain(dsn, FEW, lambda: spark, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
        assert [member.joined for member in shared.members] == [True, False, False]


def test_views_of_which_a_single_event_is_too_large_leave(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "ROUND_BYTES", 5_000)
    things.append_events([thing("large", text="x" * 9_000)])
    away = share(dsn, spark, [Everything, machines])
    assert set(away.values()) == {"single events are too large for a round"}
    assert things.owned_leases("rounds") == {}


def test_a_sum_that_outgrows_its_type_makes_its_view_leave_and_the_reason_names_the_column(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("a", owner="o", units=5 * 10**18) for _ in range(2)])
    away = share(dsn, spark, [TOTALS, Everything])
    # of another model it is another column's
    assert "overflow in column units: its sum does not fit bigint" in (away["amounts"] or "")
