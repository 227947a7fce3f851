"""The process of a run ends with its run, however the run ended."""

import threading
from collections.abc import Callable

import dagster as dg
import pytest

from millrace.assets import runs
from millrace.assets.runs import while_it_runs
from tests.support.patience import patience

ENDS: dict[str, Callable[[dg.DagsterInstance, dg.DagsterRun], object]] = {
    "failed": lambda instance, run: instance.report_run_failed(run, "took too long to start"),
    "canceled": lambda instance, run: instance.report_run_canceled(run),
}


@dg.op(config_schema={"end": str})
def work(context: dg.OpExecutionContext) -> None:
    if end := ENDS.get(context.op_config["end"]):
        threading.Thread(target=end, args=(context.instance, context.run)).start()
        threading.Event().wait(patience())


@dg.job(executor_def=while_it_runs)
def working() -> None:
    work()


@pytest.mark.parametrize(("end", "status"), [("failed", "FAILURE"), ("canceled", "CANCELED"), ("lives", "SUCCESS")])
def test_the_process_of_a_run_that_is_over_stops_its_work(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, end: str, status: str
) -> None:
    monkeypatch.setattr(runs, "WATCH_S", 0.02)
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("dagster"))) as instance:
        result = dg.execute_job(
            dg.reconstructable(working), instance, run_config={"ops": {"work": {"config": {"end": end}}}}
        )
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.status.value == status
        assert bool([event for event in result.all_events if event.is_step_success]) == (end == "lives")
