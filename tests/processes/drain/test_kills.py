"""Drains that are killed at every step and at random, with every kind of model: no event is lost or applied twice."""

import random
from collections.abc import Callable
from functools import partial
from typing import cast

import psycopg
import pytest
from pyspark.sql import SparkSession

from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.versions import ensure_version
from tests.support.building import drains
from tests.support.building import killed_drains as kills
from tests.support.building import read_models as models
from tests.support.building.oracle import expected_rows
from tests.support.building.read_models import expected_uses
from tests.support.building.shared_drains import TOGETHER, share
from tests.support.factories import Connect

Step = Callable[[psycopg.Connection], bool]
Uses = cast("ReadModel", models.uses)
EXPECTED = {model.name: partial(expected_rows, model) for model in (drains.Everything, drains.machines)} | {
    "uses": expected_uses
}
STEPS = [kills.lease_taken, kills.rows_staged, kills.merged_but_not_committed, kills.some_commits]
NAMES = {"everything": "Everything", "machines": "machines", "uses": "uses"}


@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", [drains.Everything, drains.machines, Uses], ids=NAMES)
def test_after_a_kill_at_any_step_the_model_equals_a_clean_run(
    things: PlatformStore, dsn: str, spark: SparkSession, connect: Connect, model: ReadModel, step: Step
) -> None:
    drains.fill(things, 200)
    ensure_version(things.connection, model)
    mode = "share" if step is kills.merged_but_not_committed else "access share"
    with (
        drains.held(connect(), f"lock table read_models.{model.state_table} in {mode} mode"),
        kills.victim(dsn, batch_events=40, model=NAMES[model.name]) as process,
    ):
        kills.kill_at(process, connect(), step)
    assert kills.consumed(things.connection) < 200
    drains.drain(drains.later(dsn), spark, model)
    assert drains.close(drains.rows_of(things.connection, model)) == drains.close(
        EXPECTED[model.name](drains.all_events(things))
    )
    assert sum(lag.behind for lag in things.view_lag(model.view)) == 0


@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize("models", [[drains.Everything], TOGETHER], ids=["a drain", "a shared drain"])
def test_random_kills_leave_no_trace(
    things: PlatformStore, dsn: str, spark: SparkSession, observer: psycopg.Connection, models: list[ReadModel]
) -> None:
    dice = random.Random(7)
    for seed in range(3):
        drains.fill(things, 100, seed)
        goal = kills.consumed(observer) + dice.randrange(1, 100 * len(models))
        victim = kills.victim if models is not TOGETHER else kills.sharing_victim
        with victim(dsn, dice.randrange(10, 60)) as process:
            kills.kill_at(process, observer, lambda seen, goal=goal: kills.consumed(seen) >= goal)  # type: ignore[misc]
        things.release_owner("victim")  # as the next run does for a run that has ended in Dagster
    share(dsn, spark, models)
    drains.assert_equals_a_clean_run(things, *models)
