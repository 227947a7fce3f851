"""What is wrong in Dagster: failed runs until a later run did their work, breached checks, a storage that is gone.

Not here: a daemon that dies, its sensors and its queue (`processes/test_dagster.py`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from sqlalchemy import event

from millrace.assets.partitions import VIEW_EVENTS, log_partitions
from millrace.operations.alerts.findings import Finding
from millrace.platform_defs import failed_runs, names
from millrace.platform_defs.beside_store import DagsterSource
from millrace.platform_defs.dagster_internals import breached_checks
from millrace.platform_defs.standing import DagsterStanding
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.patience import wait_until
from tests.support.running.dagster_instance import DATABASE
from tests.support.running.dagster_instance import instance as stored

__all__ = ["stored"]

FAILS = "test/fails"
ORDERS = dg.AssetKey(["read_models", "orders"])
TAGS = {"partition": names.PARTITION_TAG, "first": failed_runs.RANGE_TAGS[0], "last": failed_runs.RANGE_TAGS[1]}


def fail_if_asked(context: dg.AssetExecutionContext) -> None:
    if FAILS in context.run.tags:
        try:
            raise KeyError(context.run.tags[FAILS])
        except KeyError as error:
            raise RuntimeError("the asset failed") from error


@dg.asset(partitions_def=log_partitions(16))
def orders(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.asset(partitions_def=log_partitions(16))
def archived(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.asset(key=VIEW_EVENTS, partitions_def=dg.DynamicPartitionsDefinition(name="views"))
def view_events(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.asset
def report(context: dg.AssetExecutionContext) -> None:
    fail_if_asked(context)


@dg.op
def drain_some(context: dg.OpExecutionContext) -> None:
    context.log_event(dg.AssetMaterialization(VIEW_EVENTS, partition="orders"))


@dg.job
def shared() -> None:
    drain_some()


DEFINED = dg.Definitions(
    [orders, archived, view_events, report],
    jobs=[
        shared,
        dg.define_asset_job(names.DRAIN, [view_events]),
        dg.define_asset_job("archive", [archived]),
        dg.define_asset_job("nightly", [report]),
        dg.define_asset_job(names.ALL_CHECKS, [report, archived]),
    ],
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
    done = DEFINED.resolve_job_def(job).execute_in_process(
        instance=instance,
        asset_selection=None if asset is None else [asset],
        partition_key=tags.get("partition"),
        tags={TAGS.get(name, name.replace("_", "/")): value for name, value in tags.items() if name != "partition"}
        | ({FAILS: fails} if fails else {}),
        raise_on_error=False,
    )
    assert done.success is not bool(fails)
    return done.run_id


def rebuild(instance: dg.DagsterInstance, first: str, last: str, *, fails: str = "") -> str:
    return run(instance, failed_runs.OF_ASSETS, asset=orders.key, first=first, last=last, fails=fails)


def found(judged: DagsterStanding) -> Mapping[str, Finding]:
    """Look once; an instance in memory has no sensors to look at."""
    return {finding.subject: finding for finding in [*judged.failed_runs(), *judged.breached_checks()]}


def say(instance: dg.DagsterInstance, check: str, *, passed: bool, **metadata: object) -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=ORDERS,
            check_name=check,
            passed=passed,
            metadata=metadata,  # type: ignore[arg-type]
            severity=dg.AssetCheckSeverity.WARN,
        )
    )


def test_a_failed_run_is_found_with_its_cause_until_one_like_it_succeeds(instance: dg.DagsterInstance) -> None:
    judged = DagsterStanding(instance)
    assert found(judged) == {}
    failed = run(instance, "nightly", fails="no column", dagster_partition="2030-01-01")
    run(instance, "nightly", fails="no table")
    seen = found(judged)
    assert {name: each.cause for name, each in seen.items()} == {
        "nightly (2030-01-01)": "KeyError: 'no column'",
        "nightly": "KeyError: 'no table'",
    }
    assert seen["nightly (2030-01-01)"].page == f"/runs/{failed}"
    # the run of the next day does not mend it
    run(instance, "nightly", dagster_partition="2030-01-02")
    assert set(found(judged)) == set(seen)
    run(instance, "nightly", dagster_partition="2030-01-01")
    # also for a new observer
    assert set(found(judged)) == set(found(DagsterStanding(instance))) == {"nightly"}
    again = run(instance, "nightly", fails="no disk", dagster_partition="2030-01-01")
    finding = found(judged)["nightly (2030-01-01)"]
    assert (finding.cause, finding.page) == ("KeyError: 'no disk'", f"/runs/{again}")
    # an operator removes the run
    instance.delete_run(again)
    assert set(found(judged)) == {"nightly"}


def test_a_rebuild_is_mended_when_all_its_log_partitions_were_built_since(instance: dg.DagsterInstance) -> None:
    judged = DagsterStanding(instance)
    # an earlier build mends nothing
    rebuild(instance, "p03", "p06")
    rebuild(instance, "p03", "p03", fails="no column")
    rebuild(instance, "p04", "p06", fails="no table")
    both = {"of orders (p03)", "of orders (p04 to p06)"}
    assert set(found(judged)) == both
    # builds of other log partitions, and of another asset, mend nothing
    rebuild(instance, "p07", "p09")
    run(instance, failed_runs.OF_ASSETS, asset=archived.key, first="p03", last="p06")
    assert set(found(judged)) == both
    for partition in ("p03", "p04", "p05"):
        run(instance, failed_runs.OF_ASSETS, asset=orders.key, partition=partition)
    assert set(found(judged)) == {"of orders (p04 to p06)"}
    run(instance, failed_runs.OF_ASSETS, asset=orders.key, partition="p06")
    assert found(judged) == found(DagsterStanding(instance)) == {}
    # the next run of a job does the work of the failed one, for any log partitions
    run(instance, "archive", first="p00", last="p05", fails="disk full")
    assert set(found(judged)) == {"archive"}
    run(instance, "archive", first="p03", last="p03")
    assert found(judged) == {}


def test_a_drain_that_failed_is_mended_by_any_that_got_on_with_its_view(instance: dg.DagsterInstance) -> None:
    judged = DagsterStanding(instance)
    for view in ("orders", "labels"):
        run(instance, names.DRAIN, partition=view, millrace_view=view, fails="no column")
    assert set(found(judged)) == {"drain (orders)", "drain (labels)"}
    run(instance, "shared")
    assert set(found(judged)) == {"drain (labels)"}
    # from the UI the view's drain runs as an asset's materialization
    run(instance, failed_runs.OF_ASSETS, asset=VIEW_EVENTS, partition="labels")
    assert found(judged) == {}


def test_each_failed_run_is_found_and_mended_however_many_there_are(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_runs, "PAGE", 2)
    for number in range(5):
        rebuild(instance, f"p{number:02}", f"p{number:02}", fails="no column")
    wanted = {f"of orders (p{number:02})" for number in range(5)}
    judged = DagsterStanding(instance)
    assert set(found(judged)) == wanted
    rebuild(instance, "p00", "p00")
    assert set(found(judged)) == set(found(DagsterStanding(instance))) == wanted - {"of orders (p00)"}


def test_a_steady_look_costs_the_same_however_many_runs_fail(stored: dg.DagsterInstance) -> None:
    judged = DagsterStanding(stored)
    asked: list[str] = []

    def ask(*told: Any) -> None:  # noqa: ANN401
        # ignore Dagster's queries of the catalog
        if "pg_catalog" not in told[2]:
            asked.append(told[2])

    def looked() -> int:
        judged.found()
        asked.clear()
        judged.found()
        return len(asked)

    engine = stored.run_storage._engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", ask)
    rebuild(stored, "p00", "p00", fails="no column")
    say(stored, "totals_add_up", passed=False)
    one = looked()
    for number in range(1, 6):
        rebuild(stored, f"p{number:02}", f"p{number:02}", fails="no column")
        say(stored, f"check_{number}", passed=False)
    assert len(found(judged)) == 12
    assert looked() == one
    assert one <= 12, asked


def test_the_cause_is_what_was_recorded_wherever_dagster_put_it(instance: dg.DagsterInstance) -> None:
    logged = instance.all_logs(run(instance, "archive", partition="p00", fails="no server"))
    events = [event for entry in logged if (event := entry.dagster_event)]
    failure: Any = next(event.step_failure_data.error for event in events if event.is_step_failure)
    error = failure.cause
    ended = type(next(event.job_failure_data for event in events if event.is_job_failure))
    met = type(next(event.engine_event_data for event in events if event.is_engine_event))
    cases: dict[str, tuple[Any, str | None, Any]] = {
        "met": (met.engine_error(error), None, None),
        "told": (met.engine_error(error), "took too long", None),
        "ended": (None, "An exception.", ended(error=error)),
        "nothing": (None, None, None),
    }
    for name, (engine, message, data) in cases.items():
        failed = instance.create_run_for_job(shared, tags={names.VIEW_TAG: name})
        if engine:
            instance.report_engine_event("Something.", failed, engine)
            instance.report_engine_event("No error.", failed, met())
        instance.report_run_failed(failed, message, data)
    assert {name: each.cause for name, each in found(DagsterStanding(instance)).items()} == {
        "archive (p00)": "KeyError: 'no server'",
        "shared (met)": "KeyError: 'no server'",
        "shared (told)": "took too long",
        "shared (ended)": "KeyError: 'no server'",
        "shared (nothing)": "It says no reason.",
    }


def test_breached_checks_are_found_until_they_pass(
    instance: dg.DagsterInstance,
) -> None:
    judged = DagsterStanding(instance)
    say(instance, "totals_add_up", passed=False, difference=12)
    problems = {"crm": ["no slot", "table t is stopped", "it is late"], "shop": ["table u is stopped"]}
    stopped = ["table t is stopped", "table u is stopped"]  # the store finds these
    say(instance, "slots_are_healthy", passed=False, problems=problems, stopped_tables=stopped)
    for check in sorted(breached_checks.LEFT_OUT):
        say(instance, check, passed=False)
    seen = found(judged)
    assert {name: (each.kind, each.cause) for name, each in seen.items()} == {
        "totals_add_up of read_models/orders": ("check", "A warning. difference: 12"),
        "crm": ("slot", "no slot; it is late"),
    }
    assert set(found(DagsterStanding(instance))) == set(seen)
    for check in ("totals_add_up", "slots_are_healthy"):
        say(instance, check, passed=True)
    assert found(judged) == {}


def test_a_check_that_is_not_declared_any_more_is_breached_no_more(instance: dg.DagsterInstance) -> None:
    judged = DagsterStanding(instance)
    say(instance, "declaration_loads", passed=False)
    # an operator runs only some checks, or retries a failed run
    part = run(instance, names.ALL_CHECKS, asset=report.key)
    instance.create_run_for_job(
        DEFINED.resolve_job_def(names.ALL_CHECKS),
        status=dg.DagsterRunStatus.SUCCESS,
        parent_run_id=part,
        root_run_id=part,
    )
    assert set(found(judged)) == {"declaration_loads of read_models/orders"}
    # the hourly run of all checks began later, and did not evaluate this one
    run(instance, names.ALL_CHECKS, partition="p00")
    assert found(judged) == {}


def test_an_evaluation_that_is_only_planned_changes_nothing(
    stored: dg.DagsterInstance, postgres: EmbeddedPostgres
) -> None:
    judged = DagsterStanding(stored)
    say(stored, "totals_add_up", passed=False)
    with psycopg.connect(postgres.dsn(DATABASE), autocommit=True) as connection:
        # the next evaluation is running
        connection.execute(
            "insert into asset_check_executions (asset_key, check_name, run_id, execution_status, evaluation_event_storage_id)"
            " select asset_key, check_name, 'r', 'PLANNED', 1000 from asset_check_executions"
        )
        assert set(found(judged)) == {"totals_add_up of read_models/orders"}
    say(stored, "totals_add_up", passed=True)
    assert found(judged) == {}


@pytest.mark.usefixtures("stored")
def test_what_dagster_said_last_counts_for_a_minute_and_errors_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(source: DagsterSource) -> str:
        try:
            return ", ".join(each.subject for each in source.found())
        except Exception as error:  # noqa: BLE001 - any error
            return type(error).__name__

    with dg.DagsterInstance.get() as instance:
        run(instance, "nightly", fails="no column")
    source = DagsterSource()
    # Dagster has not answered yet
    assert said(source) == "TimeoutError"
    wait_until(lambda: said(source) == "nightly", "it has answered")
    source._patience_s = -1
    assert said(source) == "TimeoutError"
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    other = DagsterSource()
    wait_until(lambda: said(other) == "DagsterInvariantViolationError", "it answers with an error")
