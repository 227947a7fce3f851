"""Drains that lose their process, their connection or their staged rows at a step: the model equals a clean run.

A kill for each step of a commit. More of them, and kills at random: `tests/processes/consumption`.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import psycopg
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.stored.versions import ensure_version
from tests.support.building import read_models as models
from tests.support.building.drains import (
    Counted,
    Everything,
    all_events,
    assert_equals_a_clean_run,
    close,
    drain,
    fill,
    held,
    later,
    machines,
    rows_of,
    staged,
    things,
    wait_blocked_in,
)
from tests.support.building.killed_drains import (
    consumed,
    kill_at,
    lease_taken,
    merged_but_not_committed,
    rows_staged,
    sharing_victim,
    some_commits,
    some_views_committed_and_one_waits,
    victim,
)
from tests.support.building.poison import WORTHS, assert_holds_all_but, locks, offsets_of, poison
from tests.support.building.read_models import expected_uses
from tests.support.building.shared_drains import TOGETHER, share
from tests.support.factories import Connect, start, terminate
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

Uses = cast("ReadModel", models.uses)
NAMES = {"everything": "Everything", "machines": "machines", "uses": "uses"}


# folds read stored states and functions whole streams: a kill must leave both as they were
@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize(("model", "step"), [(machines, lease_taken), (Everything, rows_staged), (Uses, some_commits)])
def test_after_a_kill_at_a_step_the_next_consumer_makes_the_model_equal_a_clean_run(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    model: ReadModel,
    step: Callable[[psycopg.Connection], bool],
) -> None:
    fill(things, 100)
    ensure_version(things.connection, model)
    with victim(dsn, batch_events=40, model=NAMES[model.name]) as process:
        kill_at(process, connect(), step)
    assert consumed(things.connection) < 100
    drain(later(dsn), spark, model)
    if model is Uses:
        assert close(rows_of(things.connection, Uses)) == close(expected_uses(all_events(things)))
    else:
        assert_equals_a_clean_run(things, model)


@pytest.mark.usefixtures("spark_remote")
def test_a_kill_after_the_failing_streams_were_handed_over_and_before_the_commit_changes_nothing(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 40)
    things.append_events([poison("bad")])
    ensure_version(things.connection, WORTHS)
    holder = connect()
    with (
        held(holder, "lock table read_models.worths_state in share mode"),
        victim(dsn, batch_events=1000, model="Worths") as process,
    ):
        kill_at(process, connect(), merged_but_not_committed)
    assert (locks(things), consumed(things.connection)) == ([], 0)
    assert drain(later(dsn), spark, WORTHS).failed_streams == 1
    assert locks(things) == [("bad", 1)]
    assert_holds_all_but(things, offsets_of(things, "bad"), WORTHS)


@pytest.mark.usefixtures("spark_remote")
def test_after_a_kill_between_the_commits_of_two_views_every_view_is_as_if_it_had_not_been(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 100)
    for model in TOGETHER:
        ensure_version(things.connection, model)
    holder = connect()
    with held(holder, "lock table read_models.going_state in share mode"), sharing_victim(dsn, 40) as process:
        kill_at(process, connect(), some_views_committed_and_one_waits)
    assert consumed(things.connection) < 100 * len(TOGETHER)
    share(later(dsn), spark)
    assert_equals_a_clean_run(things, *TOGETHER)


def test_a_terminated_connection_during_the_merge_is_replaced_and_the_drain_goes_on_by_itself(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 100)
    ensure_version(things.connection, Counted)
    observer, holder = connect(), connect()
    with held(holder, "lock table read_models.counted_state in share mode"):
        running = start(lambda: drain(dsn, spark, Counted))
        terminate(observer, wait_blocked_in(observer, 'insert into "read_models"'))
    assert running.result(patience()).events == 100
    assert_equals_a_clean_run(things, Counted)


def test_staged_rows_that_vanish_are_noticed_and_the_batch_is_built_again(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 60)
    ensure_version(things.connection, Counted)
    observer, holder = connect(), connect()
    claimed = threading.Event()
    interfered = threading.Event()
    builds: list[int] = []

    def building() -> "SparkSession":
        builds.append(1)
        claimed.set()
        assert interfered.wait(patience())
        return spark

    with Consumer.open(dsn, Counted, building, "next") as consumer:
        running = start(lambda: staged(consumer).drain(budget_s=patience(), idle_s=0))
        assert claimed.wait(patience())
        with held(holder, "select from event_store.checkpoints for update"):
            interfered.set()
            wait_blocked_in(observer, "commit_batch")
            observer.execute("truncate read_models.counted_staging")
        report = running.result(patience())
    assert (report.batches, report.events, len(builds)) == (1, 60, 2)
    assert_equals_a_clean_run(things, Counted)
