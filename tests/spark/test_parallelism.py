"""The numbers of tasks and connections of a build: by the session's cores on a cluster, within limits everywhere."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from millrace.drain.commit import Commit, Work
from millrace.drain.limits import Limits
from millrace.drain.read import leased_events
from millrace.drain.staged import StagedBuilds
from millrace.read_models.stored.merge import next_batch
from millrace.read_models.stored.versions import ensure_version
from millrace.settings import Settings
from millrace.spark.parallelism import batch_size, cores_of, task_number, tasks_on
from millrace.spark.session import ONE_MACHINE, SESSION_CONFIGURATION, TASK_EVENTS
from tests.support.building.drains import Everything, staged
from tests.support.building.lab import Lab
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def told(spark: "SparkSession", **settings: str) -> Iterator[None]:
    """Set some settings of a session until the block ends."""
    names = {name: f"spark.{name.replace('_', '.')}" for name in settings}
    before = {name: spark.conf.get(names[name]) or "" for name in settings}
    for name, value in settings.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(names[name], value)


def read_by(events: "DataFrame") -> tuple[int, int]:
    """Return the number of tasks that read events, and the number of events."""
    from pyspark.sql import functions as f

    found = events.groupBy(f.spark_partition_id()).count().collect()
    return len(found), sum(row["count"] for row in found)


def test_tasks_grow_with_the_cores_and_none_is_too_small_for_what_it_costs() -> None:
    assert [tasks_on(8, events) for events in (0, 49_999, 100_000, 1_200_000, 10**8)] == [1, 1, 2, 24, 24]


def test_a_session_has_settings_that_make_rows_equal_everywhere(spark: "SparkSession") -> None:
    for name, value in {**SESSION_CONFIGURATION, **ONE_MACHINE}.items():
        assert spark.conf.get(name) == value
    assert (task_number(spark, 0), task_number(spark, 1_000_000), batch_size(spark)) == (1, 9, 500_000)
    # also behind Spark Connect
    assert cores_of(spark) == len(os.sched_getaffinity(0))


def test_no_more_tasks_read_or_write_than_allowed(lab: Lab) -> None:
    lab.fill(60)
    lab.sequence_events()
    ensure_version(lab.connection, Everything)
    work = Work(Everything, tuple(lab.claim_batch(Everything.view, "test", 1000, 600)))
    with told(lab.spark, millrace_taskEvents="10"):
        for allowed, tasks in ((64, 7), (3, 3)):
            leased = leased_events(lab.spark, lab.dsn, work, Limits(live_readers=allowed))
            assert read_by(leased.frame) == (tasks, 60)
    with told(lab.spark, millrace_taskEvents="10", sql_shuffle_partitions="3", sql_adaptive_enabled="false"):
        for allowed, tasks in ((32, 3), (2, 2)):
            limits, batch = Limits(staging_connections=allowed), next_batch(lab.connection)
            assert len(StagedBuilds(lab.dsn, lab.session, "test", 600, limits).stage(work, batch)[0]) == tasks


def test_a_batch_is_what_the_session_is_worth(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.drain.round.BATCH_EVENTS", 20)
    for seed, most, expected in ((1, None, [20, 40]), (2, 30, [30, 30])):
        lab.fill(60, seed)
        commits: list[Commit] = []
        with lab.consumer(Everything, "test") as consumer:
            staged(consumer).drain(budget_s=patience(), idle_s=0, batch_events=most, on_commit=commits.append)
        assert [commit.events for commit in commits] == expected
    lab.is_clean()


def test_a_deployment_says_its_cores_and_how_long_a_build_may_take() -> None:
    said = Limits.of(Settings(cores=None, build_timeout_s=600))
    assert (said.cores, said.build_s, said.round_s) == (None, 600, 60)
    assert Limits.of(Settings(cores=3, build_timeout_s=90)) == Limits(cores=3, build_s=90, round_s=9)


def test_the_number_of_cores_can_be_said(spark: "SparkSession") -> None:
    class OfACluster:
        """Stands for a cluster's session, which has no configured task size."""

        class conf:  # noqa: N801 - Spark's name
            @staticmethod
            def get(name: str, default: None) -> None:
                assert name == TASK_EVENTS
                return default

    assert spark.conf.get(TASK_EVENTS) is not None
    assert task_number(OfACluster, 10**7, 40) == 120  # type: ignore[arg-type]
    assert batch_size(OfACluster, 40) == 10**7  # type: ignore[arg-type]
