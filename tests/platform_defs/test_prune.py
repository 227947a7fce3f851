from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations
from millrace.platform_defs.definitions import build_defs


def test_old_finished_runs_are_forgotten_and_unfinished_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.platform_defs.prune.CHUNK", 2)
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        job = build_defs(declarations=Declarations()).resolve_job_def("prune_runs")
        for _ in range(3):
            instance.create_run_for_job(job_def=job, status=dg.DagsterRunStatus.SUCCESS)
        alive = instance.create_run_for_job(job_def=job, status=dg.DagsterRunStatus.STARTED)

        def prune(keep_days: float) -> int:
            config = {"ops": {"prune_old_runs": {"config": {"keep_days": keep_days}}}}
            return int(job.execute_in_process(instance=instance, run_config=config).output_for_node("prune_old_runs"))

        assert prune(keep_days=1) == 0
        # the run of the first pruning itself is old by now, too
        assert prune(keep_days=0) == 4
        assert instance.has_run(alive.run_id)
