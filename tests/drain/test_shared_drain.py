"""Shared drains: many views in one job, each with its own commit, through faults of servers and connections."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from psycopg import Connection

from millrace import last, read_model, stream_id
from millrace.drain import collected as planning
from millrace.drain import loop as draining
from millrace.drain import round as one_round
from millrace.drain.commit import Commit
from millrace.drain.loop import Drain
from millrace.drain.member import Member
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.read_models.stored.versions import ensure_version, versions
from tests.support.building import read_models as models
from tests.support.building.drains import Crossing, Everything, fill, held, thing, wait_blocked_in
from tests.support.building.lab import Lab
from tests.support.building.shared_drains import ALL_WELL, FEW, TOGETHER, consumers, positions, why_away
from tests.support.factories import Connect, at_once, rows, start, terminate
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOBODY: dict[str, str | None] = {model.view: None for model in TOGETHER}


def test_views_of_every_kind_are_drained_in_one_job(lab: Lab) -> None:
    lab.fill(120)
    commits: dict[str, int] = {}
    with lab.together(
        TOGETHER, on_commit=lambda member, commit: commits.update({member.declared.view: commit.events})
    ) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == NOBODY
        assert [consumers(lab, view) for view in NOBODY] == [1] * len(NOBODY)
    assert [consumers(lab, view) for view in NOBODY] == [0] * len(NOBODY)
    assert lab.rows("select from event_store.consumers") == []
    assert commits == dict.fromkeys(NOBODY, 120)
    assert lab.owned_leases("rounds") == {}
    lab.is_clean(*TOGETHER)


def test_a_recomputed_model_takes_no_part(dsn: str, spark: "SparkSession") -> None:
    with Drain(dsn, [cast("ReadModel", models.uses), Everything], lambda: spark, "rounds") as shared:
        assert [member.declared.view for member in shared.members] == ["everything"]


def test_each_view_gets_the_events_from_its_position_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # so few events that one view's range ends in the middle of another's
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 60)
    monkeypatch.setattr(one_round, "MOST_EVENTS", 60)
    lab.fill(60).share([Crossing])
    lab.fill(10, seed=2).share([Everything])
    assert lab.fill(60, seed=3).share(FEW) == ALL_WELL
    lab.is_clean(*FEW)


def drained(lab: Lab) -> list[int]:
    """Drain some views together; return how many events each commit of one of them had."""
    events: list[int] = []

    def note(member: Member, commit: Commit) -> None:
        if member.declared.view == "crossing":
            events.append(commit.events)

    with lab.together(FEW, on_commit=note) as shared:
        shared.run(budget_s=patience(), idle_s=0)
    return events


def test_a_backlog_comes_in_rounds_that_grow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 30)
    monkeypatch.setattr(one_round, "MOST_EVENTS", 75)
    lab.fill(110)
    assert drained(lab) == [10, 20, 25, 25, 25, 5]
    monkeypatch.undo()
    monkeypatch.setattr(planning, "ROUND_BYTES", 200_000)
    append_events(lab, [thing(f"large-{number}", text="x" * 9_000, owner="ann") for number in range(30)])
    lab.fill(20, seed=2)
    events = drained(lab)
    assert sum(events) == 50
    assert len(events) > 2
    lab.is_clean(*FEW)


def test_what_is_large_for_all_views_comes_in_small_rounds(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"__doc__": "The text of each thing.", "thing_id": stream_id(), "text": last("data.text")}
    declared = [
        read_model(view=f"text_{number}", deciders=["thing"], key=["thing_id"])(type(f"Text{number}", (), columns))
        for number in range(8)
    ]
    monkeypatch.setattr(planning, "ROUND_BYTES", 40_000)
    append_events(lab, [thing(f"t-{number}", text=str(number) * 6_000) for number in range(4)])
    commits: list[int] = []
    with lab.together(declared, on_commit=lambda _, commit: commits.append(commit.events)) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        assert {*why_away(shared).values()} == {None}
    # four events of 6 kB fit once, but not for eight views
    assert sum(commits) == 4 * 8 < len(commits) * 4
    for number in range(8):
        found = lab.rows(f"select thing_id, text from read_models.text{number} order by 1")
        assert found == [(f"t-{each}", str(each) * 6_000) for each in range(4)]


def test_a_changed_declaration_is_built_in_the_same_rounds(lab: Lab) -> None:
    lab.fill(40).share(FEW)
    changed = replace(Crossing, columns={**Crossing.columns, "again": Crossing.columns["events"]})
    assert lab.fill(40, seed=2).share([Everything, changed]) == {"everything": None, "crossing": None}
    (version,) = versions(lab.connection, "crossing")
    assert (version.version, version.serves) == (2, True)
    assert lab.rows("select count(*) from read_models.crossing where again <> events") == [(0,)]


def test_a_drain_ends_when_newer_code_made_a_version(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MEMBERS_EVERY_S", 0.0)
    monkeypatch.setattr(draining, "PATIENCE_S", 0.0)
    with lab.together(FEW) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience()))
        wait_until(lambda: why_away(shared)["machines"] is None and shared.members[2].joined, "all take part")
        changed = replace(Crossing, columns={**Crossing.columns, "again": Crossing.columns["events"]})
        ensure_version(lab.connection, changed)
        running.result(patience())
        assert shared.overtaken == ["crossing"]


def test_a_quiet_view_is_looked_at_when_the_log_grows(lab: Lab) -> None:
    # no poll would find the events today
    slow = [replace(model, pooling_delay_s=86_400) for model in FEW]
    stop, marks = threading.Event(), list[int]()
    with lab.together(slow) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience(), stop=stop))
        wait_until(lambda: all(member.joined for member in shared.members), "all take part")
        for seed in (1, 2):
            lab.fill(20, seed=seed)
            lab.sequence_events()
            marks = lab.announce_positions(marks)
            end = 20 * seed
            wait_until(lambda end=end: positions(lab.connection, "everything") == end, "its rows")  # type: ignore[misc]
        stop.set()
        running.result(patience())


def test_a_drain_leaves_a_disabled_view_until_it_is_enabled(lab: Lab) -> None:
    stop = threading.Event()
    with lab.together(FEW) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience(), stop=stop))
        wait_until(lambda: all(member.joined for member in shared.members), "all take part")
        lab.enable_view("crossing", enabled=False)
        wait_until(lambda: consumers(lab, "crossing") == 0, "the drain left the view")
        assert why_away(shared) == {**ALL_WELL, "crossing": draining.DISABLED}
        # that is no failure
        (state,) = lab.drain_states("crossing").values()
        assert (state.failures, state.ended_s) == (0, None)
        lab.enable_view("crossing", enabled=True)
        wait_until(lambda: consumers(lab, "crossing") == 1, "the drain took it back")
        stop.set()
        running.result(patience())


def test_a_drain_ends_when_its_code_has_changed(lab: Lab) -> None:
    changed = threading.Event()
    with lab.together(FEW, has_new_code=changed.is_set) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience()))
        wait_until(lambda: all(member.joined for member in shared.members), "all take part")
        changed.set()
        running.result(patience())
        assert shared.overtaken == ["code"]


def test_a_drain_that_hands_over_leaves_every_view_to_the_next(lab: Lab) -> None:
    lab.fill(20)
    with lab.together(FEW) as first, lab.together(FEW, owner="next") as following:
        # compiled before a view joins, and used after
        following.warm_up()
        first.run(budget_s=patience(), idle_s=0)
        assert {consumers(lab, model.view) for model in FEW} == {1}
        first.hand_over()
        assert {consumers(lab, model.view) for model in FEW} == {0}
        lab.fill(20, seed=2)
        following.run(budget_s=patience(), idle_s=0)
        assert why_away(following) == ALL_WELL
    assert positions(lab.connection, "everything") == 40
    lab.is_clean(*FEW)


def test_two_shared_drains_at_once_consume_nothing_twice(lab: Lab) -> None:
    lab.fill(100)
    for work in at_once([lambda: lab.share(FEW, "A"), lambda: lab.share(FEW, "B")]):
        work.result(patience())
    lab.share(FEW)
    lab.is_clean(*FEW)


def test_leases_that_were_taken_over_are_not_committed(lab: Lab) -> None:
    lab.fill(60)
    rob = (
        "update event_store.checkpoints set lease_token = nextval('event_store.lease_token_seq'), lease_owner = 'another',"
        " leased_until = clock_timestamp(), revision = revision + 1 where view = 'crossing' and lease_owner is not null"
    )
    with Drain(lab.dsn, FEW, lab.once(lambda: lab.execute(rob)), "rounds") as shared:
        shared.run(budget_s=0.1, idle_s=0)
        assert positions(lab.connection, "everything") == 60
        assert positions(lab.connection, "crossing") == 0
        shared.run(budget_s=patience(), idle_s=0)
    lab.share(FEW)
    lab.is_clean(*FEW)


def test_lost_connections_are_replaced(lab: Lab, connect: Connect, observer: Connection) -> None:
    lab.share(FEW)
    lab.fill(60)
    # the connection that Spark's worker keeps from the round before
    kept = "select pid from pg_stat_activity where datname = current_database() and query ilike '%%owned_leases%%'"
    kept += " and pid <> pg_backend_pid()"
    for (pid,) in rows(observer, kept):
        terminate(observer, pid)
    assert lab.share(FEW) == ALL_WELL
    lab.fill(60, seed=2)
    holder = connect()
    with held(holder, "lock table event_store.checkpoints in share mode"):
        running = start(lambda: lab.share(FEW))
        terminate(observer, wait_blocked_in(observer, "claim_views"))
    assert running.result(patience()) == ALL_WELL
    lab.is_clean(*FEW)


@pytest.mark.parametrize(("views", "tries"), [(len(FEW), 1 + len(FEW)), (1, 1)])
def test_an_error_of_no_view_ends_the_drain_after_some_tries(
    things: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch, views: int, tries: int
) -> None:
    monkeypatch.setattr(draining, "POLL_S", 0.0)
    fill(things, 20)
    from pyspark.errors import AnalysisException

    asked: list[int] = []

    def broken() -> Any:  # noqa: ANN401 - it never returns
        asked.append(1)
        raise AnalysisException("a plan that nobody can make")

    with Drain(dsn, FEW[:views], broken, "rounds") as shared, pytest.raises(AnalysisException):
        shared.run(budget_s=patience(), idle_s=0)
    # all at once, and each of several by itself
    assert len(asked) == draining.FAILURES * tries
    assert things.owned_leases("rounds") == {}


def test_a_drain_that_is_told_to_stop_ends_soon(lab: Lab) -> None:
    stop = threading.Event()
    with lab.together(FEW, on_commit=lambda *_: stop.set()) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience(), stop=stop))
        lab.fill(20)
        running.result(patience())
    assert lab.owned_leases("rounds") == {}
    # the server itself notices a closed session
    wait_until(lambda: not any(consumers(lab, model.view) for model in FEW), "the drain is attached no more")
