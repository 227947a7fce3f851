"""Failed runs are incidents until a run did what they had to do."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pytest

from millrace.assets.partitions import log_partitions
from millrace.platform_defs.alerts import runs
from millrace.platform_defs.alerts.runs import FailedRuns
from millrace.resources.alerts.incidents import Finding

FAILS = "test/fails"
DRAINS = dg.DynamicPartitionsDefinition(name="views")


def fail_if_asked(context: dg.AssetExecutionContext) -> None:
    if FAILS in context.run.tags:
        raise ValueError(context.run.tags[FAILS])


@dg.asset(partitions_def=log_partitions(16))
def orders(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.asset(partitions_def=log_partitions(16))
def archived(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.asset(key=runs.DRAINED, partitions_def=DRAINS)
def view_events(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.op
def drain_some(context: dg.OpExecutionContext) -> None:
    for view in json.loads(context.run.tags["test/drained"]):
        context.log_event(dg.AssetMaterialization(runs.DRAINED, partition=view))
    if FAILS in context.run.tags:
        raise ValueError(context.run.tags[FAILS])


@dg.job(name=runs.SHARED_JOB)
def shared() -> None:
    drain_some()


DEFINED = dg.Definitions(
    [orders, archived, view_events],
    jobs=[shared, dg.define_asset_job(runs.DRAIN, [view_events]), dg.define_asset_job("archive", [archived])],
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        opened.add_dynamic_partitions("views", ["orders", "labels"])
        yield opened


def run(
    instance: dg.DagsterInstance, job: str, *, fails: str = "", asset: dg.AssetKey | None = None, **tags: str
) -> str:
    """Run a job, or some assets as a person does in the UI; return the id of the run."""
    names = {"partition": runs.PARTITION_TAG, "first": runs.RANGE_TAGS[0], "last": runs.RANGE_TAGS[1]}
    found = DEFINED.resolve_job_def(job).execute_in_process(
        instance=instance,
        asset_selection=None if asset is None else [asset],
        partition_key=tags.get("partition"),
        tags={names.get(name, name.replace("_", "/")): value for name, value in tags.items() if name != "partition"}
        | ({FAILS: fails} if fails else {}),
        raise_on_error=False,
    )
    assert found.success is not bool(fails)
    return found.run_id


def rebuild(instance: dg.DagsterInstance, first: str, last: str, *, fails: str = "") -> str:
    return run(instance, runs.OF_ASSETS, asset=orders.key, first=first, last=last, fails=fails)


def found(failed: FailedRuns) -> Mapping[str, Finding]:
    return {finding.subject: finding for finding in failed.found("dagster", set())}


def test_a_rebuild_of_one_log_partition_mends_no_other_one(instance: dg.DagsterInstance) -> None:
    failed = FailedRuns(instance)
    rebuild(instance, "p03", "p03", fails="no column")
    rebuild(instance, "p04", "p06", fails="no table")
    assert {name: each.cause for name, each in found(failed).items()} == {
        "of orders (p03)": "ValueError: no column",
        "of orders (p04 to p06)": "ValueError: no table",
    }
    rebuild(instance, "p07", "p09")
    # the same log partition of another asset
    run(instance, runs.OF_ASSETS, asset=archived.key, first="p03", last="p03")
    assert set(found(failed)) == {"of orders (p03)", "of orders (p04 to p06)"}
    rebuild(instance, "p00", "p04")
    assert set(found(failed)) == {"of orders (p04 to p06)"}
    # the rest of them, by two runs: one log partition has another tag
    run(instance, runs.OF_ASSETS, asset=orders.key, partition="p05")
    assert set(found(failed)) == {"of orders (p04 to p06)"}
    run(instance, runs.OF_ASSETS, asset=orders.key, partition="p06")
    assert found(failed) == {}
    # also for who begins to look now
    assert found(FailedRuns(instance)) == {}


def test_the_next_run_of_a_job_does_what_the_last_one_did_not_whatever_its_log_partitions(
    instance: dg.DagsterInstance,
) -> None:
    failed = FailedRuns(instance)
    run(instance, "archive", first="p00", last="p05", fails="disk full")
    assert set(found(failed)) == {"archive"}
    run(instance, "archive", first="p03", last="p03")
    assert found(failed) == {}


def test_what_fails_again_is_found_again_with_its_new_cause_until_somebody_removes_the_run(
    instance: dg.DagsterInstance,
) -> None:
    failed = FailedRuns(instance)
    rebuild(instance, "p03", "p03", fails="no column")
    rebuild(instance, "p03", "p03")
    assert found(failed) == {}
    run_id = rebuild(instance, "p03", "p03", fails="no table")
    (again,) = found(failed).values()
    assert (again.cause, again.page) == ("ValueError: no table", f"/runs/{run_id}")
    instance.delete_run(run_id)
    assert found(failed) == {}


def test_each_failed_run_of_a_week_is_found_however_many_there_are(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE", 2)
    wanted = set()
    for number in range(5):
        rebuild(instance, f"p{number:02}", f"p{number:02}", fails="no column")
        wanted.add(f"of orders (p{number:02})")
    failed = FailedRuns(instance)
    assert set(found(failed)) == wanted
    rebuild(instance, "p00", "p00")
    assert set(found(failed)) == wanted - {"of orders (p00)"}


def test_no_more_runs_than_some_are_asked_after_in_one_look_and_each_in_its_turn(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_ASKED", 1)
    for key in ("p00", "p01"):
        rebuild(instance, key, key, fails="no column")
    rebuild(instance, "p00", "p01")
    failed = FailedRuns(instance)
    # the newest is asked after at first
    assert set(found(failed)) == {"of orders (p00)"}
    assert found(failed) == {}
    for key in ("p00", "p01", "p02"):
        rebuild(instance, key, key, fails="no column")
    rebuild(instance, "p00", "p00")
    # the two newer ones, which nothing mended, do not keep the oldest from its turn
    looks = [set(found(failed)) for _ in range(3)]
    assert "of orders (p00)" in looks[0]
    assert looks[-1] == {"of orders (p01)", "of orders (p02)"}


def test_a_drain_that_failed_is_mended_by_one_that_others_share_unless_that_left_its_view(
    instance: dg.DagsterInstance,
) -> None:
    failed = FailedRuns(instance)
    for view in ("orders", "labels"):
        run(instance, runs.DRAIN, partition=view, millrace_view=view, fails="no column")
    both = {"drain (orders)", "drain (labels)"}
    assert set(found(failed)) == both
    left = json.dumps({"labels": "a build failed"})
    run(instance, runs.SHARED_JOB, test_drained='["labels"]', millrace_left=left)
    run(instance, runs.SHARED_JOB, test_drained='["orders"]', fails="out of memory")
    assert set(found(failed)) == {*both, runs.SHARED_JOB}
    run(instance, runs.SHARED_JOB, test_drained='["orders"]')
    assert set(found(failed)) == {"drain (labels)"}
    # in the UI it is materialized as an asset
    run(instance, runs.OF_ASSETS, asset=runs.DRAINED, partition="labels")
    assert found(failed) == {}


def test_the_cause_is_what_was_recorded_wherever_dagster_put_it(instance: dg.DagsterInstance) -> None:
    logged = instance.all_logs(run(instance, "archive", partition="p00", fails="no server"))
    events = [event for entry in logged if (event := entry.dagster_event)]
    error: Any = next(event.step_failure_data.error for event in events if event.is_step_failure)
    ended = type(next(event.job_failure_data for event in events if event.is_job_failure))
    met = type(next(event.engine_event_data for event in events if event.is_engine_event))
    cases: dict[str, tuple[Any, str | None, Any]] = {
        "met": (met.engine_error(error), None, None),
        "told": (met.engine_error(error), "took too long", None),
        "ended": (None, "An exception.", ended(error=error)),
        "nothing": (None, None, None),
    }
    for name, (engine, message, data) in cases.items():
        failed = instance.create_run_for_job(shared, tags={runs.VIEW_TAG: name})
        if engine:
            instance.report_engine_event("Something.", failed, engine)
            instance.report_engine_event("No error.", failed, met())
        instance.report_run_failed(failed, message, data)
    causes = {name: each.cause for name, each in found(FailedRuns(instance)).items()}
    assert causes == {
        "archive (p00)": "ValueError: no server",
        "drain_views (met)": "ValueError: no server",
        "drain_views (told)": "took too long",
        "drain_views (ended)": "ValueError: no server",
        "drain_views (nothing)": "It says no reason.",
    }
