"""Old runs are deleted, except those with a newest materialization or evaluation."""

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations
from millrace.platform_defs.loading import build_defs

JOB = build_defs(declarations=Declarations()).resolve_job_def("prune_runs")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.platform_defs.dagster_internals.prune.CHUNK", 2)


def prune(instance: dg.DagsterInstance, keep_days: float = 0) -> int:
    config = {"ops": {"prune_old_runs": {"config": {"keep_days": keep_days}}}}
    return int(JOB.execute_in_process(instance=instance, run_config=config).output_for_node("prune_old_runs"))


def test_old_finished_runs_are_forgotten_and_unfinished_ones_are_kept(instance: dg.DagsterInstance) -> None:
    for _ in range(3):
        instance.create_run_for_job(job_def=JOB, status=dg.DagsterRunStatus.SUCCESS)
    alive = instance.create_run_for_job(job_def=JOB, status=dg.DagsterRunStatus.STARTED)
    assert prune(instance, keep_days=1) == 0
    # the run of the first pruning is itself old by now
    assert prune(instance) == 4
    assert instance.has_run(alive.run_id)


def test_a_run_with_the_newest_of_an_asset_or_partition_is_kept(instance: dg.DagsterInstance) -> None:
    days = dg.StaticPartitionsDefinition([f"day-{day}" for day in range(5)])

    @dg.asset(partitions_def=days)
    def report() -> None: ...

    @dg.asset
    def whole() -> None: ...

    def run(*assets: dg.AssetsDefinition, day: int | None = None) -> str:
        key = None if day is None else f"day-{day}"
        return dg.materialize(assets, instance=instance, partition_key=key).run_id

    of_days = [run(report, day=day) for day in range(5)]
    again = run(report, day=1)
    replaced, newest = run(whole), run(whole)
    assert prune(instance) == 2
    kept = {record.dagster_run.run_id for record in instance.get_run_records()}
    assert {of_days[1], replaced}.isdisjoint(kept)
    assert {*of_days, again, newest} - {of_days[1]} <= kept
    assert instance.get_materialized_partitions(report.key) == set(days.get_partition_keys())
    # the run of the previous pruning, and runs that were replaced meanwhile
    run(report, day=0)
    assert prune(instance) == 2
    assert not instance.has_run(of_days[0])
