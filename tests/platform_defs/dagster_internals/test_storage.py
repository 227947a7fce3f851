"""Dagster's instance as dagster.yaml declares it, on a real Postgres. Not here: our definitions."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from millrace.assets.rounds import DRAIN_TAG, SHARED_JOB
from millrace.platform_defs.dagster_internals.coordinator import BACKFILL_TAG, ReservingRunCoordinator
from millrace.platform_defs.dagster_internals.launcher import PatientRunLauncher
from millrace.platform_defs.dagster_internals.prune import forget_evaluations
from millrace.platform_defs.dagster_internals.storage import MOST_CONNECTIONS, PooledPostgresStorage
from millrace.platform_defs.names import VIEW_TAG
from millrace.platform_defs.sensors import CAPTURE_TAG
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.project import PROJECT

# submits runs, and handles the queue as the daemon does, but starts no process
QUEUE = """
import json, sys
from collections import Counter
from types import SimpleNamespace
import dagster as dg
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("millrace"), "r")
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    limits = instance.get_concurrency_config()
    for submitted in json.loads(sys.argv[2]):
        for job, number, tag in submitted:
            made = dg.GraphDefinition(name=job).to_job()
            for _ in range(number):
                run = instance.create_run_for_job(made, tags={tag: "x"}, remote_job_origin=RemoteJobOrigin(place, job))
                instance.run_coordinator.submit_run(SimpleNamespace(dagster_run=run))
        begun = QueuedRunCoordinatorDaemon(interval_seconds=1)._get_runs_to_dequeue(instance, limits, None)
        for run in begun:
            starting = dg.DagsterEvent(event_type_value="PIPELINE_STARTING", job_name=run.job_name)
            instance.report_dagster_event(starting, run_id=run.run_id)
        print(json.dumps(Counter(run.job_name for run in begun)))
"""


@pytest.fixture(scope="module")
def dsn(postgres: EmbeddedPostgres) -> str:
    """Make an empty database for Dagster alone."""
    postgres.create_database("dagster")
    return postgres.dsn("dagster")


@pytest.fixture
def instance(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("MILLRACE_DAGSTER_DSN", dsn)
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as opened:
        yield opened


@dg.asset
def greeting() -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"events": 3})


def sessions(dsn: str) -> int:
    """Count the server processes that were started for clients since the server started."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select sessions from pg_stat_database where datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])


def test_dagster_yaml_gives_our_storage_and_a_quick_queue(instance: dg.DagsterInstance) -> None:
    storage = instance.get_ref().storage_data
    assert storage is not None
    assert isinstance(storage.rehydrate(PooledPostgresStorage), PooledPostgresStorage)
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, dg.QueuedRunCoordinator)
    assert coordinator.dequeue_interval_seconds == 1
    assert isinstance(instance.run_launcher, PatientRunLauncher)
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 0
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled


def test_the_drain_of_all_read_models_has_a_place_however_many_runs_wait(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    assert isinstance(instance.run_coordinator, ReservingRunCoordinator)
    waiting = [
        *[("days_of_a_report", 28, "of"), ("archive", 16, BACKFILL_TAG)],
        *[("drain", 30, VIEW_TAG), ("capture", 9, CAPTURE_TAG)],
    ]
    submitted = json.dumps([waiting, [(SHARED_JOB, 1, DRAIN_TAG), ("apply_schema", 1, "of")]])
    done = subprocess.run(
        [sys.executable, "-c", QUEUE, tmp_path, submitted], capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"days_of_a_report": 4, "drain": 12, "capture": 7},
        {SHARED_JOB: 1},
    ]


def test_a_run_and_its_events_can_be_read_back(instance: dg.DagsterInstance) -> None:
    result = dg.materialize([greeting], instance=instance)
    assert result.success
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert [r.run_id for r in instance.get_runs(dg.RunsFilter(run_ids=[run.run_id]))] == [run.run_id]
    [record] = instance.fetch_materializations(greeting.key, limit=1).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["events"].value == 3


def test_many_calls_from_many_threads_share_few_connections(instance: dg.DagsterInstance, dsn: str) -> None:
    before = sessions(dsn)

    def call(_: int) -> int:
        instance.get_runs(limit=1)
        instance.all_instigator_state()
        return len(instance.get_asset_keys())

    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(call, range(100)))) == 100
    # 300 calls: the pool may reopen overflow connections, but not open a connection for each call
    assert sessions(dsn) - before <= MOST_CONNECTIONS * 2


def test_calls_from_one_thread_use_one_connection(instance: dg.DagsterInstance, dsn: str) -> None:
    instance.get_runs(limit=1)
    before = sessions(dsn)
    for _ in range(50):
        instance.get_runs(limit=1)
        instance.all_instigator_state()
        instance.get_asset_keys()
    # the one is the counting session itself
    assert sessions(dsn) - before <= 1


def test_it_goes_on_after_every_connection_was_cut(instance: dg.DagsterInstance, dsn: str) -> None:
    instance.get_runs(limit=1)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    assert dg.materialize([greeting], instance=instance).success


@dg.asset_check(asset=greeting)
def of_runs() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


def test_of_evaluations_of_checks_only_the_newest_outlives_its_time(instance: dg.DagsterInstance, dsn: str) -> None:
    def evaluations(name: str) -> list[str]:
        key = dg.AssetCheckKey(greeting.key, name)
        found = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
        return [record.status.value for record in found]

    def events() -> int:
        query = "select count(*) from event_logs where dagster_event_type = 'ASSET_CHECK_EVALUATION'"
        with psycopg.connect(dsn) as connection:
            return int((connection.execute(query).fetchone() or (0,))[0])

    for passed in (True, False, True, False):
        said = dg.AssetCheckEvaluation(asset_key=greeting.key, check_name="of_no_run", passed=passed)
        instance.report_runless_asset_event(said)
    for _ in range(3):
        assert dg.materialize([greeting, of_runs], instance=instance).success
    now = datetime.now(UTC)
    assert forget_evaluations(instance, now - timedelta(hours=1)) == 0
    assert (len(evaluations("of_no_run")), len(evaluations("of_runs")), events()) == (4, 3, 7)
    assert forget_evaluations(instance, now + timedelta(minutes=1)) == 5
    assert (evaluations("of_no_run"), evaluations("of_runs")) == (["FAILED"], ["SUCCEEDED"])
    # events of runs are deleted with their runs
    assert events() == 1 + 3
