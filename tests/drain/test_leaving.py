"""Shared drains: which views leave and why, when they return, and that other views are unaffected."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace import fold
from millrace.drain import collected as planning
from millrace.drain import decision
from millrace.drain import loop as draining
from millrace.drain import round as one_round
from millrace.drain.collected_task import union
from millrace.drain.loop import Drain
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State
from millrace.spark.log_source import LogRange
from tests.support.building.drains import Counted, Crossing, Everything, held, machines, thing
from tests.support.building.lab import Lab
from tests.support.building.poison import TOTALS, WORTHS, poison
from tests.support.building.read_models import DECIDER
from tests.support.building.shared_drains import consumers, positions, why_away
from tests.support.building.waiting import Waiting
from tests.support.factories import Connect
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    pass


Other = replace(Counted, name="other", view="other")
Third = replace(Counted, name="third", view="third")
THREE = [Counted, Other, Third]
TWO_WELL: dict[str, str | None] = {"counted": None, "third": None}
ALL_WELL: dict[str, str | None] = {**TWO_WELL, "other": None}


@fold(view="stumbling", deciders=[DECIDER], key="thing_id", columns={"seen": "bigint"})
def stumbling(state: State | None, event: FoldEvent) -> State:
    """One row per thing, but none for one thing."""
    if event.decider_id == "stone":
        raise ValueError("a stone")
    return {"seen": (state or {"seen": 0})["seen"] + 1}


@fold(view="swelling", deciders=[DECIDER], key="thing_id", columns={"t": "string"})
def swelling(_: State | None, event: FoldEvent) -> State:
    """One row per thing: a mebibyte, however small its events are."""
    return {"t": event.event[0] * 2**20}


Stumbling, Swelling = (cast("ReadModel", each) for each in (stumbling, swelling))
# another session locks the stored states that this model reads
Remembering = replace(Waiting, name="remembering", view="remembering")


def unpicklable() -> ReadModel:
    lock = threading.Lock()

    def bound(state: State | None, event: FoldEvent) -> State | None:
        """One row per thing."""
        with lock:
            return stumbling.function(state, event)

    return cast("ReadModel", replace(cast("Any", Stumbling), name="bound", view="bound", function=bound))


def at(store: PlatformStore, *models: ReadModel) -> list[int]:
    return [positions(store.connection, model.view) for model in models]


def test_each_view_that_cannot_go_on_leaves_with_its_reason(lab: Lab, connect: Connect) -> None:
    reasons = {
        # faults of a function
        "swelling": "its rows of a round are more than",
        "bound": "pickle",
        # faults of the tables
        "other": "lock timeout",
        "remembering": "lock timeout",
        "unmade": '"unmade" is not a view',
    }
    unmade = replace(Counted, name="unmade", view="unmade")
    models = [Everything, machines, TOTALS, Stumbling, Swelling, unpicklable(), Other, Remembering, unmade]
    lab.share([Other, Remembering])
    lab.execute("create table read_models.unmade (other int)")
    append_events(lab, [poison("bad"), thing("stone", owner="o"), *(thing(f"thing-{n}") for n in range(40))])
    with (
        held(connect(), "lock table read_models.other_state in share mode"),
        held(connect(), "lock table read_models.remembering_state in access exclusive mode"),
        lab.together([*models, Counted, Third, WORTHS]) as shared,
    ):
        shared.run(budget_s=patience(), idle_s=0)
        away = why_away(shared)
        assert {view: why for view, why in away.items() if reasons.get(view, "") not in (why or "")} == {}
        assert {view for view, why in away.items() if why is not None} == reasons.keys()
        # the model without tables has no version
        attached = {view: consumers(lab, view) for view in away if view != "unmade"}
        assert attached == {view: int(away[view] is None) for view in attached}
        assert lab.owned_leases("rounds") == {}
    # the store records a failed try
    tries = {view: (state.failures, state.error) for view, state in lab.drain_states(*away).items()}
    assert tries == {view: (int(why is not None), why and why[:500]) for view, why in away.items()}
    assert at(lab, *(model for model in models if model.view in reasons)) == [0] * len(reasons)
    assert at(lab, Everything, TOTALS, Counted, Third, WORTHS) == [42] * 5
    # a value that its column cannot hold fails only its stream, and so does a failing event of a fold
    assert lab.rows("select view, decider_id from event_store.stream_locks order by 1") == [
        ("everything", "bad"), ("machines", "bad"), ("stumbling", "stone"), ("worths", "bad"),
    ]  # fmt: skip


def test_a_fold_that_fails_at_an_event_stays(lab: Lab) -> None:
    append_events(lab, [thing("sand"), thing("stone"), thing("stone"), thing("sand")])
    assert lab.share([Counted, Stumbling]) == {"counted": None, "stumbling": None}
    ((name, error),) = lab.rows("select decider_id, last_error from event_store.stream_locks")
    assert (name, "read model stumbling failed at thing 'stone'" in error, "a stone" in error) == ("stone", True, True)
    # not even an empty state
    assert lab.rows("select thing_id, seen from read_models.stumbling_state") == [("sand", 2)]
    assert at(lab, Counted, Stumbling) == [4, 4]


def test_a_view_that_left_comes_back_after_its_own_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MEMBERS_EVERY_S", 0.0)
    append_events(lab, [thing(f"thing-{n}") for n in range(40)])
    with lab.together([Counted, Swelling]) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        # not at once: it would fail again
        shared.run(budget_s=patience(), idle_s=0)
        assert "its rows of a round" in (why_away(shared)["swelling"] or "")

        assert lab.drain_states("swelling")["swelling"].failures == 1
        lab.drain(Swelling, "a run of its own")
        append_events(lab, [thing("sand")])
        lab.sequence_events()
        assert at(lab, Swelling) == [40]
        # it returns once the store has recorded that its own run succeeded
        shared.run(budget_s=patience(), idle_s=0)
        assert "its rows of a round" in (why_away(shared)["swelling"] or "")
        lab.end_drain("swelling", "a run of its own")
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == {"counted": None, "swelling": None}
        assert lab.drain_states("swelling")["swelling"].failures == 0
    assert at(lab, Counted, Swelling) == [41, 41]


def test_a_slow_function_commits_once_more_and_then_leaves(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.together([machines]) as shared:
        # a round of very many events may take proportionally longer
        monkeypatch.setattr(one_round, "SLOW_S", 1e-9)
        monkeypatch.setattr(one_round, "ROUND_EVENTS", 1e-15)
        lab.fill(40)
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == {"machines": None}
    monkeypatch.undo()
    monkeypatch.setattr(one_round, "SLOW_S", 0.0)
    lab.fill(40, seed=2)
    assert "of a round" in (lab.share([machines])["machines"] or "")
    lab.is_clean(machines)


def test_a_view_that_is_taken_out_leaves_and_comes_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MEMBERS_EVERY_S", 0.0)
    monkeypatch.setattr(draining, "POLL_S", 0.0)
    with lab.together(THREE) as shared, ExitStack() as own:

        def one_more(seed: int) -> str | None:
            """Append some events and drain; return why the view is away then."""
            lab.fill(10, seed)
            shared.run(budget_s=patience(), idle_s=0)
            return why_away(shared)["other"]

        assert one_more(1) is None
        lab.enable_view("other", False, reason="a test")
        one_more(2)
        assert (at(lab, *THREE), lab.lease_owners("other")) == ([20, 10, 20], [])
        lab.enable_view("other", True, reason="a test")
        assert one_more(3) is None
        assert at(lab, *THREE) == [30, 30, 30]

        own.enter_context(lab.consumer(Other, "own"))
        assert one_more(4) == "a run of its own consumes it"
        assert at(lab, *THREE) == [40, 30, 40]
        assert lab.drain_states("other")["other"].failures == 0
        own.close()
        # the server notices the end of the run's session a moment later
        wait_until(lambda: consumers(lab, "other") == 0, "the run of its own is over")
        assert one_more(5) is None
        lab.is_clean(*THREE)

        monkeypatch.undo()
        monkeypatch.setattr(draining, "MEMBERS_EVERY_S", 0.0)
        lab.execute("update event_store.views set mode = 'rows' where view = 'other'")
        lab.detach_consumer("third", "rounds")
        lab.execute("delete from event_store.views where view = 'third'")
        assert one_more(6) == "its view is not one of bulk consumers any more"
        assert why_away(shared)["third"] is not None
        assert at(lab, Counted, Other) == [60, 50]


def test_a_view_that_is_removed_after_the_claim_harms_no_other(lab: Lab) -> None:
    lab.share(THREE)
    lab.fill(60)
    a_view_goes = lab.once(lambda: lab.execute("delete from event_store.views where view = 'other'"))
    with Drain(lab.dsn, THREE, a_view_goes, "rounds") as shared:
        shared.run(budget_s=patience(), idle_s=0)
    assert at(lab, Counted, Third) == [60, 60]


def test_a_view_whose_next_events_are_lost_leaves(lab: Lab) -> None:
    lab.share(THREE)
    lab.fill(60).share([Counted, Third])
    # a state that an operator's mistake or a restore could leave
    lab.execute("update event_store.log_partitions set earliest_position = 1, archived_position = 1")
    away = lab.fill(20, seed=2).share(THREE)
    assert "begins at position 1" in (away.pop("other") or "")
    assert away == TWO_WELL
    assert at(lab, Other) == [0]


def test_what_a_round_left_leased_is_committed_by_the_next_one(lab: Lab) -> None:
    lab.share(THREE)
    lab.fill(60)
    # as if the commit of one view had been interrupted
    assert lab.claim_views(["other"], "rounds", limit=1, lease_s=600)
    assert lab.fill(60, seed=2).share(THREE) == ALL_WELL
    lab.is_clean(*THREE)


def test_a_version_that_is_kept_from_serving_leaves(lab: Lab) -> None:
    lab.fill(40).share([Crossing])
    lab.execute("create view public.dependent as select mean from read_models.crossing")
    changed = replace(Crossing, columns={"events": Crossing.columns["events"]})
    assert "depend" in (lab.share([Counted, changed])["crossing"] or "")
    lab.execute("drop view public.dependent")
    assert lab.share([Counted, changed])["crossing"] is None


def test_a_view_that_alone_is_far_behind_is_not_taken_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [("a", 0, 0, 10, 1), ("b", 0, 5, 20, 2), ("c", 0, 20, 30, 3), ("far", 0, 900, 910, 4), ("a", 1, 7, 9, 5)]
    assert union(leases) == [LogRange(0, 0, 30), LogRange(0, 900, 910), LogRange(1, 7, 9)]
    lab.share(THREE)
    lab.fill(60).share([Counted, Third])
    monkeypatch.setattr(decision, "LARGE_BACKLOG", 59)

    def joined() -> list[bool]:
        with lab.together(THREE) as shared:
            shared.run(budget_s=patience(), idle_s=0)
            return [member.joined for member in shared.members]

    assert joined() == [True, False, True]
    lab.fill(60, seed=2)
    lab.sequence_events()
    assert joined() == [True, True, True]
    assert at(lab, *THREE) == [120, 120, 120]


def test_a_view_that_its_own_run_rebuilds_is_not_taken_on(lab: Lab) -> None:
    lab.share([Other])
    lab.execute("update read_models.declarations set unbuilt = '{0}' where view = 'other'")
    lab.fill(10)
    assert "a run of its own rebuilds it" in (lab.share([Counted, Other])["other"] or "")
    assert lab.drain_states("other")["other"].failures == 1
    assert at(lab, Counted, Other) == [10, 0]


def test_views_of_a_single_too_large_event_leave(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "ROUND_BYTES", 5_000)
    append_events(lab, [thing("large", text="x" * 9_000)])
    away = lab.share([Everything, machines])
    assert set(away.values()) == {"single events are too large for a round"}
    assert lab.owned_leases("rounds") == {}
