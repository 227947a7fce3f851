"""Shared drains that are killed at any step: nothing is lost, nothing is doubled, in none of the views."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.read_models.versions import ensure_version
from tests.support.building.drains import fill, held, later, observer, things
from tests.support.building.killed_drains import (
    consumed,
    lease_taken,
    merged_but_not_committed,
    sharing_victim,
    some_commits,
)
from tests.support.building.shared_drains import TOGETHER, assert_as_alone, share
from tests.support.factories import Connect
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]


def some_views_committed_and_one_waits(observer: psycopg.Connection) -> bool:
    return consumed(observer) > 0 and merged_but_not_committed(observer)


@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize("step", [lease_taken, some_commits, some_views_committed_and_one_waits])
def test_after_a_kill_at_any_step_every_view_is_as_if_it_had_not_been(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    step: Callable[[psycopg.Connection], bool],
) -> None:
    fill(things, 200)
    for model in TOGETHER:
        ensure_version(things.connection, model)
    observer, holder = connect(), connect()
    mode = "share" if step is some_views_committed_and_one_waits else "access share"
    with held(holder, f"lock table read_models.going_state in {mode} mode"), sharing_victim(dsn, 40) as process:
        wait_until(lambda: step(observer) or process.poll() is not None, step.__name__)
        assert process.poll() is None
        process.kill()
        process.wait(patience())
    assert consumed(observer) < 200 * len(TOGETHER)
    share(later(dsn), spark)
    assert_as_alone(things, dsn, spark)


@pytest.mark.usefixtures("spark_remote")
def test_kills_at_random_points_while_events_are_appended_leave_no_trace(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection
) -> None:
    dice = random.Random(7)
    for seed in range(3):
        fill(things, 100, seed)
        goal = consumed(observer) + dice.randrange(1, 100 * len(TOGETHER))
        with sharing_victim(dsn, dice.randrange(10, 60)) as process:
            wait_until(lambda goal=goal: consumed(observer) >= goal, f"{goal} events")  # type: ignore[misc]
            process.kill()
            process.wait(patience())
        things.release_owner("victim")  # as the next run does with a run that Dagster knows to be over
    share(dsn, spark)
    assert_as_alone(things, dsn, spark)
