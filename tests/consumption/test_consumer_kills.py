"""Drains that lose their process, their connection or their staged rows at any step: the model equals a clean run."""

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore, RecordedEvent
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import ensure_version
from tests.support.building import read_models as models
from tests.support.building.drains import (
    Everything,
    all_events,
    assert_equals_a_clean_run,
    close,
    drain,
    fill,
    held,
    later,
    observer,
    rows_of,
    thing,
    things,
    wait_blocked_in,
)
from tests.support.building.killed_drains import (
    consumed,
    lease_taken,
    merged_but_not_committed,
    rows_staged,
    some_commits,
    victim,
)
from tests.support.building.poison import assert_holds_all_but, locks, offsets_of, poison
from tests.support.building.read_models import expected_everything, expected_machines, expected_uses
from tests.support.factories import Connect, start, terminate, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["observer", "things"]


# folds read stored states and functions whole streams: a kill must leave both as they were
MODELS: dict[str, tuple[ReadModel, Callable[[list[RecordedEvent]], list[tuple[Any, ...]]]]] = {
    "Everything": (Everything, expected_everything),
    "machines": (cast("ReadModel", models.machines), expected_machines),
    "uses": (cast("ReadModel", models.uses), expected_uses),
}


@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("Everything", lease_taken),
        ("Everything", rows_staged),
        ("Everything", merged_but_not_committed),
        ("Everything", some_commits),
        ("machines", some_commits),
        ("machines", merged_but_not_committed),
        ("uses", some_commits),
    ],
)
def test_after_a_kill_at_any_step_the_next_consumer_makes_the_model_equal_a_clean_run(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    name: str,
    step: Callable[[psycopg.Connection], bool],
) -> None:
    model, expected = MODELS[name]
    fill(things, 200)
    ensure_version(things.connection, model)
    observer, holder = connect(), connect()
    blocks = step is merged_but_not_committed
    with (
        held(holder, f"lock table read_models.{model.state_table} in {'share' if blocks else 'access share'} mode"),
        victim(dsn, batch_events=40, model=name) as process,
    ):
        wait_until(lambda: step(observer) or process.poll() is not None, step.__name__)
        assert process.poll() is None
        process.kill()
        process.wait(patience())
    assert consumed(observer) < 200
    drain(later(dsn), spark, model)
    assert close(rows_of(things.connection, model)) == close(expected(all_events(things)))
    assert sum(lag.behind for lag in things.view_lag(model.view)) == 0


@pytest.mark.usefixtures("spark_remote")
def test_kills_at_random_points_while_events_are_appended_leave_no_trace(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    dice = random.Random(20260)
    fill(things, 100, seed=0)
    ensure_version(things.connection, Everything)
    for seed in (1, 2):
        goal, stage = consumed(observer) + dice.randrange(1, 80), dice.choice([lease_taken, rows_staged])
        with victim(dsn, batch_events=dice.randrange(20, 50)) as process:
            fill(things, 60, seed)
            wait_until(
                lambda goal=goal, stage=stage: consumed(observer) >= goal and stage(observer),  # type: ignore[misc]
                f"{goal} events and {stage.__name__}",
            )
            process.kill()
            process.wait(patience())
        things.release_owner("victim")  # as the next run does with a run that Dagster knows to be over
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_a_terminated_connection_during_the_merge_is_replaced_and_the_drain_goes_on_by_itself(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 100)
    ensure_version(things.connection, Everything)
    observer, holder = connect(), connect()
    with held(holder, "lock table read_models.everything_state in share mode"):
        running = start(lambda: drain(dsn, spark))
        terminate(observer, wait_blocked_in(observer, 'insert into "read_models"'))
    assert running.result(patience()).events == 100
    assert_equals_a_clean_run(things)


def test_staged_rows_that_vanish_are_noticed_and_the_batch_is_built_again(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    fill(things, 60)
    ensure_version(things.connection, Everything)
    observer, holder = connect(), connect()
    claimed = threading.Event()
    interfered = threading.Event()
    builds: list[int] = []

    def building() -> "SparkSession":
        builds.append(1)
        claimed.set()
        assert interfered.wait(patience())
        return spark

    with Consumer.open(dsn, Everything, building, "next") as consumer:
        running = start(lambda: consumer.drain(budget_s=patience(), idle_s=0))
        assert claimed.wait(patience())
        with held(holder, "select from event_store.checkpoints for update"):
            interfered.set()
            wait_blocked_in(observer, "commit_batch")
            observer.execute("truncate read_models.everything_staging")
        report = running.result(patience())
    assert (report.batches, report.events, len(builds)) == (1, 60, 2)
    assert_equals_a_clean_run(things)


@pytest.mark.usefixtures("spark_remote")
def test_a_kill_after_the_failing_streams_were_handed_over_and_before_the_commit_changes_nothing(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    things.append_events([poison("bad"), thing("good", worth=1)])
    ensure_version(things.connection, Everything)
    observer, holder = connect(), connect()
    with (
        held(holder, "lock table read_models.everything_state in share mode"),
        victim(dsn, batch_events=1000) as process,
    ):
        wait_until(lambda: merged_but_not_committed(observer) or process.poll() is not None, "the merge waits")
        assert process.poll() is None
        process.kill()
        process.wait(patience())
    assert locks(things) == []
    assert value(observer, "select sum(position)::int from event_store.checkpoints") == 0
    assert drain(later(dsn), spark).failed_streams == 1
    assert locks(things) == [("bad", 1)]
    assert_holds_all_but(things, offsets_of(things, "bad"))
