"""A check's verdict shows on the page of its read model, even after a drain or a rebuild materializes the model.

The tests query what Dagster's page shows: `executionForLatestMaterialization`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import get_type_hints
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.shown_partitions import ShownPartitions
from millrace.assets.verdicts import APPROVAL_CHECK, INDEXES_CHECK, LAG_CHECK, NAMES_CHECK, repeat_verdicts
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from tests.support.elsewhere import postgres_at
from tests.support.factories import register_shop_without_schemas
from tests.support.running import in_process
from tests.support.sql_calls import BatchEvent, append_events

ORDERS = replace(declared("millrace.examples.shop", ["read_models"]).models["orders"], lookups={}, serve="approved")
DECLARED = Declarations(models={"orders": ORDERS})
ASSET = dg.AssetKey(["read_models", "orders"])
GREY, RED, GREEN = None, "FAILED", "SUCCEEDED"


def on_the_page(instance: dg.DagsterInstance, check: str = LAG_CHECK) -> str | None:
    """Return the status of a check on the page; None if it is grey."""
    key = dg.AssetCheckKey(ASSET, check)
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
    if key not in found:
        return None
    (kind,) = {
        hint for name, hint in get_type_hints(found[key].targets_latest_materialization).items() if name != "return"
    }
    context = type("Context", (kind,), {"instance": instance, "loaders": {}})()
    if not asyncio.run(found[key].targets_latest_materialization(context)):
        return None
    status = asyncio.run(found[key].resolve_status(context)).value
    return None if status == "SKIPPED" else status


def judge(instance: dg.DagsterInstance, *, passed: bool) -> None:
    figures = {"lag": dg.MetadataValue.float(7.0)}
    for check in (LAG_CHECK, NAMES_CHECK, APPROVAL_CHECK):
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(ASSET, check, passed, figures))


def materialize(instance: dg.DagsterInstance) -> None:
    """Record a materialization in a run that knows nothing of checks."""
    assert dg.materialize([dg.asset(key=ASSET)(lambda: None)], instance=instance).success


@pytest.fixture
def watch(store: PlatformStore, instance: dg.DagsterInstance, dsn: str) -> Callable[[], None]:
    """Return a function that ticks the sensor once."""
    assert store.poll_views() == []
    return lambda: in_process.tick(instance, dsn, DECLARED, "watch_freshness") and None


@pytest.mark.parametrize("check", [LAG_CHECK, NAMES_CHECK, APPROVAL_CHECK])
def test_what_a_drain_materializes_hides_no_verdict(instance: dg.DagsterInstance, check: str) -> None:
    run = instance.create_run_for_job(build_defs(declarations=DECLARED).resolve_job_def("drain"))
    shown = ShownPartitions(instance, run, ORDERS)
    shown.make_green({3: {"events": 1, "position": 1}}, {})
    assert on_the_page(instance, check) is GREY
    for passed, colour in ((False, RED), (True, GREEN)):
        judge(instance, passed=passed)
        for partition in (3, 4):
            shown.make_green({partition: {"events": 2, "position": 2}}, {})
            assert on_the_page(instance, check) == colour
    (record,) = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(ASSET, check), limit=1)
    assert record.evaluation is not None
    assert record.evaluation.metadata["lag"] == dg.MetadataValue.float(7.0)


def test_the_sensor_says_again_what_is_hidden(instance: dg.DagsterInstance, watch: Callable[[], None]) -> None:
    judge(instance, passed=False)
    materialize(instance)
    assert on_the_page(instance) is GREY
    watch()
    assert on_the_page(instance) == on_the_page(instance, NAMES_CHECK) == RED
    watch()
    history = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(ASSET, LAG_CHECK), limit=9)
    assert len(history) == 2


def test_a_check_that_is_under_way_speaks_itself(instance: dg.DagsterInstance, watch: Callable[[], None]) -> None:
    judge(instance, passed=False)
    hourly = build_defs(declarations=DECLARED).resolve_job_def("apply_schema")
    run = instance.create_run_for_job(hourly, status=dg.DagsterRunStatus.STARTED)
    materialize(instance)
    watch()
    assert on_the_page(instance) == "IN_PROGRESS"
    # the run ends without a verdict
    instance.report_run_canceled(run)
    assert on_the_page(instance) is GREY
    watch()
    assert on_the_page(instance) == RED


@pytest.mark.parametrize("was_judged", [True, False])
@pytest.mark.parametrize("job", ["rebuild", None])
def test_a_rebuild_judges_what_it_made(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore, job: str | None, was_judged: bool
) -> None:
    append_order(store)
    if was_judged:
        judge(instance, passed=False)
    assert rebuild(instance, dsn, job).success
    for check in (LAG_CHECK, NAMES_CHECK, INDEXES_CHECK):
        assert on_the_page(instance, check) == GREEN
    of_another = dg.AssetCheckKey(dg.AssetKey(["event_store", "event_log"]), "offsets_are_dense")
    assert instance.event_log_storage.get_asset_check_execution_history(of_another, limit=1) == []
    # this one needs Spark, and keeps its verdict
    assert on_the_page(instance, APPROVAL_CHECK) == (RED if was_judged else GREY)


def test_a_rebuild_that_fails_hides_nothing(instance: dg.DagsterInstance, dsn: str, store: PlatformStore) -> None:
    append_order(store)
    judge(instance, passed=False)
    # no version of this model can be made: the run fails before any materialization
    store.register_view("orders", "-infinity")
    assert not rebuild(instance, dsn).success
    for check in (LAG_CHECK, NAMES_CHECK):
        assert on_the_page(instance, check) == RED


def append_order(store: PlatformStore) -> None:
    register_shop_without_schemas(store)
    append_events(store, [BatchEvent("order", str(uuid4()), "order_placed", uuid4(), {}, uuid4())])


def rebuild(instance: dg.DagsterInstance, dsn: str, job: str | None = None) -> dg.ExecuteInProcessResult:
    """Rebuild a log partition by a job, or as the button of the asset's page does."""
    defs = build_defs(declarations=DECLARED, resources={"postgres": postgres_at(dsn)})
    assert not defs.resolve_job_def("rebuild").asset_layer.asset_graph.asset_check_keys
    from_the_page = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={ASSET})
    chosen = defs.resolve_job_def(job) if job else from_the_page
    return chosen.execute_in_process(instance=instance, partition_key="p03", raise_on_error=False)


def test_repeating_costs_nothing_where_nothing_was_judged(instance: dg.DagsterInstance) -> None:
    materialize(instance)
    repeat_verdicts(instance, [ASSET])
    assert on_the_page(instance) is GREY
