"""Shared drains: many views in one job, each with its own commit, through faults of whatever they stand on."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from millrace import last, read_model, stream_id
from millrace.ops import ReadModel
from millrace.resources.consumption import collected as planning
from millrace.resources.consumption import drain as draining
from millrace.resources.consumption import round as one_round
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.drain import Drain
from millrace.resources.consumption.member import Member
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import ensure_version, versions
from tests.support.building import read_models as models
from tests.support.building.drains import (
    Crossing,
    Everything,
    assert_equals_a_clean_run,
    fill,
    held,
    observer,
    thing,
    things,
    wait_blocked_in,
)
from tests.support.building.shared_drains import ALL_WELL, FEW, TOGETHER, consumers, positions, share, why_away
from tests.support.factories import Connect, at_once, rows, start, terminate
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]

NOBODY: dict[str, str | None] = {model.view: None for model in TOGETHER}


# Together -------------------------------------------------------------------------------------------------------


def test_views_of_every_kind_are_drained_in_one_job_each_with_its_own_commit(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 120)
    commits: dict[str, int] = {}
    with Drain(
        dsn,
        TOGETHER,
        lambda: spark,
        "rounds",
        on_commit=lambda member, commit: commits.update({member.declared.view: commit.events}),
    ) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        assert why_away(shared) == NOBODY
        assert [consumers(things, view) for view in NOBODY] == [1] * len(NOBODY)
    assert [consumers(things, view) for view in NOBODY] == [0] * len(NOBODY)
    assert rows(things.connection, "select from event_store.consumers") == []
    assert commits == dict.fromkeys(NOBODY, 120)
    assert things.owned_leases("rounds") == {}
    assert_equals_a_clean_run(things, *TOGETHER)


def test_a_recomputed_model_takes_no_part(dsn: str, spark: "SparkSession") -> None:
    with Drain(dsn, [cast("ReadModel", models.uses), Everything], lambda: spark, "rounds") as shared:
        assert [member.declared.view for member in shared.members] == ["everything"]


def test_views_at_different_positions_each_get_the_events_from_their_own_on(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    # so few that one view's range ends in the middle of another's
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 60)
    monkeypatch.setattr(one_round, "MOST_EVENTS", 60)
    fill(things, 60)
    share(dsn, spark, [Crossing])
    fill(things, 10, seed=2)
    share(dsn, spark, [Everything])
    fill(things, 60, seed=3)
    assert share(dsn, spark, FEW) == ALL_WELL
    assert_equals_a_clean_run(things, *FEW)


def drained(dsn: str, spark: "SparkSession") -> list[int]:
    """Drain some views together; return how many events each commit of one of them had."""
    events: list[int] = []

    def note(member: Member, commit: Commit) -> None:
        if member.declared.view == "crossing":
            events.append(commit.events)

    with Drain(dsn, FEW, lambda: spark, "rounds", on_commit=note) as shared:
        shared.run(budget_s=patience(), idle_s=0)
    return events


def test_a_backlog_comes_in_rounds_that_grow_and_large_events_in_smaller_ones(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_round, "ROUND_EVENTS", 30)
    monkeypatch.setattr(one_round, "MOST_EVENTS", 75)
    fill(things, 110)
    assert drained(dsn, spark) == [10, 20, 25, 25, 25, 5]
    monkeypatch.undo()
    monkeypatch.setattr(planning, "ROUND_BYTES", 200_000)
    things.append_events([thing(f"large-{number}", text="x" * 9_000, owner="ann") for number in range(30)])
    fill(things, 20, seed=2)
    events = drained(dsn, spark)
    assert sum(events) == 50
    assert len(events) > 2
    assert_equals_a_clean_run(things, *FEW)


def test_what_is_small_once_and_large_for_all_views_together_comes_in_smaller_rounds(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"__doc__": "The text of each thing.", "thing_id": stream_id(), "text": last("data.text")}
    declared = [
        read_model(view=f"text_{number}", deciders=["thing"], key=["thing_id"])(type(f"Text{number}", (), columns))
        for number in range(8)
    ]
    monkeypatch.setattr(planning, "ROUND_BYTES", 40_000)
    things.append_events([thing(f"t-{number}", text=str(number) * 6_000) for number in range(4)])
    commits: list[int] = []
    with Drain(
        dsn, declared, lambda: spark, "rounds", on_commit=lambda _, commit: commits.append(commit.events)
    ) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        assert {*why_away(shared).values()} == {None}
    # four events of 6 kB fit once, and not eight times
    assert sum(commits) == 4 * 8 < len(commits) * 4
    for number in range(8):
        found = rows(things.connection, f"select thing_id, text from read_models.text{number} order by 1")
        assert found == [(f"t-{each}", str(each) * 6_000) for each in range(4)]


def test_a_changed_declaration_is_built_beside_the_serving_one_in_the_same_rounds(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 40)
    share(dsn, spark, FEW)
    changed = replace(Crossing, columns={**Crossing.columns, "again": Crossing.columns["events"]})
    fill(things, 40, seed=2)
    assert share(dsn, spark, [Everything, changed]) == {"everything": None, "crossing": None}
    (version,) = versions(things.connection, "crossing")
    assert (version.version, version.serves) == (2, True)
    assert rows(things.connection, "select count(*) from read_models.crossing where again <> events") == [(0,)]


def test_a_drain_ends_when_newer_code_has_made_another_version_of_a_model(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(draining, "PATIENCE_S", 0.0)
    with Drain(dsn, FEW, lambda: spark, "rounds") as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience()))
        wait_until(lambda: why_away(shared)["machines"] is None and shared.members[2].joined, "all take part")
        ensure_version(
            things.connection, replace(Crossing, columns={**Crossing.columns, "again": Crossing.columns["events"]})
        )
        running.result(patience())
        assert shared.overtaken == ["crossing"]


def test_two_shared_drains_at_once_consume_nothing_twice(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    fill(things, 100)
    for work in at_once([lambda: share(dsn, spark, FEW, "A"), lambda: share(dsn, spark, FEW, "B")]):
        work.result(patience())
    share(dsn, spark, FEW)
    assert_equals_a_clean_run(things, *FEW)


# Faults ---------------------------------------------------------------------------------------------------------


def test_leases_that_were_taken_over_before_the_task_read_are_not_committed(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 60)
    robbed = threading.Event()

    def spark_while_another_takes_over() -> "SparkSession":
        if not robbed.is_set():
            things.connection.execute(
                "update event_store.checkpoints set lease_token = nextval('event_store.lease_token_seq'),"
                " lease_owner = 'another', leased_until = clock_timestamp(), revision = revision + 1 where view = 'crossing' and lease_owner is not null"
            )
            robbed.set()
        return spark

    with Drain(dsn, FEW, spark_while_another_takes_over, "rounds") as shared:
        shared.run(budget_s=0.1, idle_s=0)
        assert positions(things.connection, "everything") == 60
        assert positions(things.connection, "crossing") == 0
        shared.run(budget_s=patience(), idle_s=0)
    share(dsn, spark, FEW)
    assert_equals_a_clean_run(things, *FEW)


def test_a_lost_connection_of_the_drain_and_one_of_the_task_are_replaced(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect, observer: psycopg.Connection
) -> None:
    share(dsn, spark, FEW)
    fill(things, 60)
    # the connection that Spark's worker keeps from the round before
    kept = "select pid from pg_stat_activity where datname = current_database() and query ilike '%%owned_leases%%'"
    kept += " and pid <> pg_backend_pid()"
    for (pid,) in rows(observer, kept):
        terminate(observer, pid)
    assert share(dsn, spark, FEW) == ALL_WELL
    fill(things, 60, seed=2)
    holder = connect()
    with held(holder, "lock table event_store.checkpoints in share mode"):
        running = start(lambda: share(dsn, spark, FEW))
        terminate(observer, wait_blocked_in(observer, "claim_views"))
    assert running.result(patience()) == ALL_WELL
    assert_equals_a_clean_run(things, *FEW)


@pytest.mark.parametrize(("views", "tries"), [(len(FEW), 1 + len(FEW)), (1, 1)])
def test_an_error_of_no_view_ends_the_drain_after_some_tries_and_gives_the_leases_back(
    things: EventStore, dsn: str, monkeypatch: pytest.MonkeyPatch, views: int, tries: int
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


def test_a_drain_that_is_told_to_stop_ends_soon_and_gives_the_leases_back(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    stop = threading.Event()
    with Drain(dsn, FEW, lambda: spark, "rounds", on_commit=lambda *_: stop.set()) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=patience(), stop=stop))
        fill(things, 20)
        running.result(patience())
    assert things.owned_leases("rounds") == {}
    # the server notices a closed session by itself
    wait_until(lambda: not any(consumers(things, model.view) for model in FEW), "the drain is attached no more")
