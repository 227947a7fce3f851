"""What a scrape says of Dagster."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pytest

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


@pytest.mark.usefixtures("instance")
def test_a_dagster_that_does_not_answer_is_down(dsn: str, postgres: EmbeddedPostgres) -> None:
    with serving_metrics(dsn, 0) as port, psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("drop database metrics_of_dagster with (force)")
        samples = scraped(port)
    assert {name for name, _ in samples if "dagster" in name} == {"millrace_dagster_up"}
    assert of(samples, "millrace_dagster_up") == 0
    assert of(samples, "millrace_up") == 1
