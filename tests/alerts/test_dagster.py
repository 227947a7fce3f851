"""What Dagster says is wrong: runs and checks; and a storage that says nothing.

Not here: a daemon that dies, its sensors and its queue (`processes/test_dagster.py`).
"""

import shutil
import socket
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from millrace.assets import consumption, rounds
from millrace.assets.declarations import declared
from millrace.platform_defs import jobs, sensors
from millrace.platform_defs.alerts import dagster as judged
from millrace.platform_defs.alerts import runs as judged_runs
from millrace.platform_defs.alerts.dagster import DagsterStanding
from millrace.platform_defs.alerts.patient import DagsterSource
from millrace.platform_defs.checks import all_checks
from millrace.resources.alerts.alerter import Alerter, Unreadable, connected
from millrace.resources.alerts.incidents import Finding
from millrace.resources.alerts.receiver import AlertReceiver
from millrace.resources.alerts.store import AlertStore
from millrace.resources.event_store import EventStore
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import EXAMPLE, PROJECT
from tests.alerts.hook import Hook, settings_for
from tests.support.running.dagster_instance import DATABASE, instance

__all__ = ["instance"]

MISSING = "column total is missing"
ORDERS = dg.AssetKey(["read_models", "orders"])


class Broken(dg.Config):
    broken: bool = True


@dg.asset
def report(config: Broken) -> None:
    if config.broken:
        try:
            raise KeyError(MISSING)
        except KeyError as error:
            raise RuntimeError("the report failed") from error


NIGHTLY = dg.Definitions([report], jobs=[dg.define_asset_job("nightly", [report])]).resolve_job_def("nightly")
ALL_CHECKS = dg.Definitions([report], jobs=[dg.define_asset_job("apply_schema", [report])]).resolve_job_def(
    "apply_schema"
)


def run(
    instance: dg.DagsterInstance, *, broken: bool, day: str = "", job: dg.JobDefinition = NIGHTLY
) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        instance=instance,
        run_config={"ops": {"report": {"config": {"broken": broken}}}},
        tags={"dagster/partition": day} if day else {},
        raise_on_error=False,
    )


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


def found(standing: DagsterStanding) -> dict[tuple[str, str], Finding]:
    return {finding.key: finding for finding in standing.found(set())}


def test_names_are_those_of_what_they_are_of() -> None:
    assert judged.LAG_CHECK == consumption.LAG_CHECK
    assert jobs.APPLY_SCHEMA.name == judged.ALL_CHECKS
    assert judged_runs.VIEW_TAG == sensors.VIEW_TAG
    assert (judged_runs.SHARED_JOB, judged_runs.LEFT_TAG) == (rounds.SHARED_JOB, rounds.LEFT_TAG)
    assert judged_runs.DRAINED == consumption.KEY
    assert jobs.DRAIN.name == judged_runs.DRAIN
    checks = {key.name for check in all_checks(declared(EXAMPLE)) for key in check.check_keys}
    assert judged.LEFT_OUT | {judged.SLOTS, judged.LAG_CHECK} <= checks


def test_a_failed_run_is_found_with_its_first_cause_until_one_like_it_succeeds(instance: dg.DagsterInstance) -> None:
    standing = DagsterStanding(instance)
    assert found(standing) == {}
    failed = run(instance, broken=True, day="2030-01-01")
    run(instance, broken=True)
    seen = found(standing)
    assert set(seen) == {("run", "nightly (2030-01-01)"), ("run", "nightly")}
    finding = seen["run", "nightly (2030-01-01)"]
    assert MISSING in finding.cause
    assert finding.page == f"/runs/{failed.run_id}"
    # the next day's says nothing of it
    run(instance, broken=False, day="2030-01-02")
    assert ("run", "nightly (2030-01-01)") in found(standing)
    run(instance, broken=False, day="2030-01-01")
    assert set(found(standing)) == {("run", "nightly")}
    # also for who begins to look now
    assert set(found(DagsterStanding(instance))) == {("run", "nightly")}
    run(instance, broken=True, day="2030-01-01")
    assert ("run", "nightly (2030-01-01)") in found(standing)


def test_breached_checks_are_found_until_they_pass(instance: dg.DagsterInstance) -> None:
    standing = DagsterStanding(instance)
    say(instance, "totals_add_up", passed=False, difference=12)
    problems = {"crm": ["no slot", "table t is stopped", "it is late"], "shop": ["table u is stopped"]}
    stopped = ["table t is stopped", "table u is stopped"]  # the store finds these
    say(instance, "slots_are_healthy", passed=False, problems=problems, stopped_tables=stopped)
    say(instance, "lag_within_objective", passed=False, lag=7.0, lag_seconds=300.0, objective_seconds=60.0)
    say(instance, "no_dead_letters", passed=False, dead_letters=1)
    seen = found(standing)
    assert {key: finding.cause for key, finding in seen.items()} == {
        ("check", "totals_add_up of read_models/orders"): "A warning. difference: 12",
        ("slot", "crm"): "no slot; it is late",
        ("late", "orders"): "7 events wait, the oldest for 5 minutes; 60 s are promised.",
    }
    assert set(found(DagsterStanding(instance))) == set(seen)
    for check in ("totals_add_up", "slots_are_healthy", "lag_within_objective"):
        say(instance, check, passed=True)
    assert found(standing) == {}


def test_a_check_that_is_not_declared_any_more_is_breached_until_all_checks_ran_without_it(
    instance: dg.DagsterInstance,
) -> None:
    standing = DagsterStanding(instance)
    say(instance, "declaration_loads", passed=False)
    # somebody runs a part, or once more what failed
    part = ALL_CHECKS.execute_in_process(
        instance=instance,
        run_config={"ops": {"report": {"config": {"broken": False}}}},
        asset_selection=[dg.AssetKey("report")],
    )
    assert part.success
    assert set(found(standing)) == {("check", "declaration_loads of read_models/orders")}
    again = instance.create_run_for_job(
        ALL_CHECKS, status=dg.DagsterRunStatus.SUCCESS, parent_run_id=part.run_id, root_run_id=part.run_id
    )
    assert again.is_success
    assert set(found(standing)) == {("check", "declaration_loads of read_models/orders")}
    # the hourly run of all of them began later, and has not evaluated it
    run(instance, broken=False, job=ALL_CHECKS)
    assert found(standing) == {}


def test_a_breach_is_found_however_many_checks_were_evaluated_since(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "EVALUATIONS", 3)
    say(instance, "totals_add_up", passed=False)
    for number in range(7):
        say(instance, f"other_{number}", passed=True)
    standing = DagsterStanding(instance)
    assert set(found(standing)) == {("check", "totals_add_up of read_models/orders")}
    say(instance, "totals_add_up", passed=True)
    assert found(standing) == {}


def test_an_evaluation_that_is_stored_after_a_later_one_is_seen(
    instance: dg.DagsterInstance, postgres: EmbeddedPostgres
) -> None:
    standing = DagsterStanding(instance)
    say(instance, "totals_add_up", passed=False)
    say(instance, "other", passed=True)
    with psycopg.connect(postgres.dsn(DATABASE), autocommit=True) as connection:
        # as if its transaction had not ended yet
        connection.execute("create table kept as select * from event_logs order by id limit 1")
        connection.execute("delete from event_logs where id = (select id from kept)")
        assert found(standing) == {}
        connection.execute("insert into event_logs select * from kept")
    assert set(found(standing)) == {("check", "totals_add_up of read_models/orders")}
    # what was read once more tells nothing of what came later
    say(instance, "totals_add_up", passed=True)
    assert found(standing) == {}
    assert found(standing) == {}


@pytest.mark.usefixtures("instance")
def test_a_storage_that_is_gone_ends_nothing(dsn: str, postgres: EmbeddedPostgres, hook: Hook) -> None:
    with dg.DagsterInstance.get() as instance:
        run(instance, broken=True)
    with connected(dsn) as connection, AlertReceiver(settings_for(hook)) as receiver:
        EventStore(connection).sequence_events()
        source = DagsterSource()
        alerter = Alerter(connection, receiver, [source], every_s=0, hold_s=0)
        alerter.tick()
        # from here on it is not there
        source._patience_s = 0.5
        connection.execute("update event_store.incidents set due_at = clock_timestamp()")
        with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"drop database {DATABASE} with (force)".encode())
        alerter.tick()
        assert hook.told() == [("began", ["nightly"])]
        alerter.tick()
        states = {each.kind: each.missing_since for each in AlertStore(connection).open_incidents()}
    assert states == {"run": None, "unreadable": None}


def test_a_storage_that_hangs_is_waited_for_for_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What becomes of it: `test_alerter.py`."""
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MILLRACE_DAGSTER_DSN", f"postgresql://d@127.0.0.1:{silent.getsockname()[1]}/d")
        source = DagsterSource(patience_s=0.2)
        for _ in range(3):
            with pytest.raises(Unreadable, match="has not answered"):
                source.found(set())
        # the same question, not three of them
        silent.settimeout(0.5)
        asked = [silent.accept()[0]]
        with pytest.raises(TimeoutError):
            asked.append(silent.accept()[0])
        asked[0].close()
