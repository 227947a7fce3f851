"""What a scrape says of Dagster."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import dagster as dg
import psycopg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.selector import InstigatorSelector
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo

from millrace.platform_defs.metrics.serve import serving_metrics
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT
from tests.support.scrapes import of, scraped


@dg.asset
def greeting() -> None:
    pass


@pytest.fixture
def instance(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """Open the instance that DAGSTER_HOME names, on our storage."""
    postgres.create_database("metrics_of_dagster")
    monkeypatch.setenv("MILLRACE_DAGSTER_DSN", postgres.dsn("metrics_of_dagster"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.get() as opened:
        yield opened


def test_runs_are_told_of(dsn: str, instance: dg.DagsterInstance) -> None:
    job = dg.Definitions([greeting]).resolve_implicit_global_asset_job_def()
    dg.materialize([greeting], instance=instance)
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    with serving_metrics(dsn, 0) as port:
        samples = scraped(port)
    assert of(samples, "millrace_up") == 1
    assert of(samples, "millrace_dagster_up") == 1
    assert of(samples, "millrace_dagster_started_runs") == 1
    assert of(samples, "millrace_dagster_queued_runs") == 0
    assert of(samples, "millrace_dagster_queued_seconds") == 0
    assert 0 < of(samples, "millrace_dagster_start_seconds") < 60


def switched(instance: dg.DagsterInstance, place: str, name: str, status: InstigatorStatus, failures: int) -> None:
    """Let a sensor of a code location have failed so often in a row, and be on or off."""
    location = ManagedGrpcPythonEnvCodeLocationOrigin(
        LoadableTargetOrigin(python_file=f"{place}.py"), location_name=place
    )
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "defs"), name)
    selector = InstigatorSelector(location_name=place, repository_name="defs", name=name).get_id()
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, status, SensorInstigatorData()))
    instance.create_tick(
        TickData(
            origin.get_id(),
            name,
            InstigatorType.SENSOR,
            TickStatus.FAILURE,
            time.time(),
            selector_id=selector,
            error=SerializableErrorInfo("no such table", [], "ValueError"),
            consecutive_failure_count=failures,
        )
    )


def test_sensors_that_are_off_do_not_fail_and_one_name_has_one_figure(dsn: str, instance: dg.DagsterInstance) -> None:
    switched(instance, "here", "poll_orders", InstigatorStatus.RUNNING, 2)
    switched(instance, "there", "poll_orders", InstigatorStatus.RUNNING, 7)
    switched(instance, "beyond", "poll_orders", InstigatorStatus.RUNNING, 1)
    switched(instance, "here", "poll_mails", InstigatorStatus.STOPPED, 9)
    with serving_metrics(dsn, 0) as port:
        text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    told = [line for line in text.splitlines() if line.startswith("millrace_dagster_sensor_failures{")]
    assert told == ['millrace_dagster_sensor_failures{sensor="poll_orders"} 7.0']


def test_a_daemon_that_nobody_asks_for_any_more_is_not_dead(dsn: str, instance: dg.DagsterInstance) -> None:
    for daemon in ("SENSOR", "GONE"):
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3600, daemon, None, []))
    with serving_metrics(dsn, 0) as port:
        samples = scraped(port)
    assert of(samples, "millrace_dagster_daemon_idle_seconds", daemon="SENSOR") > 3000
    assert not [labels for name, labels in samples if name.endswith("daemon_idle_seconds") and "GONE" in str(labels)]


@pytest.mark.usefixtures("instance")
def test_a_dagster_that_does_not_answer_is_down(dsn: str, postgres: EmbeddedPostgres) -> None:
    with serving_metrics(dsn, 0) as port, psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("drop database metrics_of_dagster with (force)")
        samples = scraped(port)
    assert {name for name, _ in samples if "dagster" in name} == {"millrace_dagster_up"}
    assert of(samples, "millrace_dagster_up") == 0
    assert of(samples, "millrace_up") == 1
