"""The metrics of Dagster in a scrape."""

import json
import time
from typing import Any

import dagster as dg
import psycopg
import pytest

from millrace.platform_defs.metrics.serve import serving_metrics
from millrace.platform_defs.standing import KINDS
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.patience import patience
from tests.support.running.dagster_instance import DATABASE, instance
from tests.support.scrapes import Samples, of, scraped

__all__ = ["instance"]


@dg.asset
def greeting() -> None:
    pass


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
    assert 0 < of(samples, "millrace_dagster_start_seconds") < patience()


def stored(form: str, **values: object) -> Any:  # noqa: ANN401 - these classes have no public name
    """Make an object of Dagster from its stored form."""
    return dg.deserialize_value(json.dumps({"__class__": form, **values}))


def switched(
    instance: dg.DagsterInstance, place: str, name: str, status: str, failures: int, kind: str = "Sensor"
) -> None:
    """Make a sensor or a schedule of a code location have a number of failures in a row, and be on or off."""
    target = {"__class__": "LoadableTargetOrigin", "python_file": f"{place}.py"}
    location = {
        "__class__": "ManagedGrpcPythonEnvRepositoryLocationOrigin",
        "loadable_target_origin": target,
        "location_name": place,
    }
    repository = {
        "__class__": "ExternalRepositoryOrigin",
        "repository_location_origin": location,
        "repository_name": "defs",
    }
    type_of = {"__enum__": f"InstigatorType.{kind.upper()}"}
    cron = {"cron_schedule": "0 0 * * *"} if kind == "Schedule" else {}
    state = stored(
        "InstigatorState",
        origin={"__class__": "ExternalJobOrigin", "external_repository_origin": repository, "job_name": name},
        job_type=type_of,
        job_specific_data={"__class__": f"{kind}InstigatorData", **cron},
        status={"__enum__": f"InstigatorStatus.{status}"},
    )
    instance.add_instigator_state(state)
    tick = stored(
        "TickData",
        job_origin_id=state.instigator_origin_id,
        job_name=name,
        job_type=type_of,
        selector_id=state.selector_id,
        status={"__enum__": "TickStatus.FAILURE"},
        timestamp=time.time(),
        consecutive_failure_count=failures,
        error={"__class__": "SerializableErrorInfo", "message": "no such table", "stack": [], "cls_name": "KeyError"},
    )
    instance.create_tick(tick)


def test_sensors_that_are_off_do_not_fail_and_one_name_has_one_figure(dsn: str, instance: dg.DagsterInstance) -> None:
    switched(instance, "here", "poll_orders", "RUNNING", 2)
    switched(instance, "there", "poll_orders", "RUNNING", 7)
    switched(instance, "beyond", "poll_orders", "RUNNING", 1)
    switched(instance, "here", "poll_mails", "STOPPED", 9)
    with serving_metrics(dsn, 0) as port:
        samples = scraped(port)
    failures = {labels: number for (name, labels), number in samples.items() if name.endswith("sensor_failures")}
    assert failures == {frozenset({("sensor", "poll_orders")}): 7}
    assert names_of(samples) == {"the sensor poll_orders"}


def test_what_is_wrong_has_a_figure_for_how_long_while_it_is(dsn: str, instance: dg.DagsterInstance) -> None:
    def beat(seconds_ago: float) -> None:
        at = time.time() - seconds_ago
        instance.add_daemon_heartbeat(stored("DaemonHeartbeat", timestamp=at, daemon_type="SENSOR", daemon_id=None))

    switched(instance, "here", "poll_orders", "RUNNING", 4)
    switched(instance, "here", "poll_mails", "RUNNING", 5)
    switched(instance, "here", "nightly", "RUNNING", 1, "Schedule")
    sensors = {"the sensor poll_mails", "the schedule nightly"}
    with serving_metrics(dsn, 0) as port:
        assert names_of(scraped(port)) == sensors
    # the state of a sensor is known only while its daemon lives
    beat(KINDS["daemon"].wrong_from + 1)
    with serving_metrics(dsn, 0) as port:
        samples = scraped(port)
    assert names_of(samples) == {"daemon"}
    seconds = of(samples, "millrace_dagster_standing_seconds", kind="daemon", severity="page")
    assert 0 < seconds - KINDS["daemon"].wrong_from < patience()
    beat(0)
    with serving_metrics(dsn, 0) as port:
        assert names_of(scraped(port)) == sensors


def names_of(samples: Samples) -> set[str]:
    return {dict(labels)["name"] for metric, labels in samples if metric == "millrace_dagster_standing_seconds"}


def test_a_daemon_that_nobody_asks_for_any_more_is_not_dead(dsn: str, instance: dg.DagsterInstance) -> None:
    for daemon in ("SENSOR", "GONE"):
        instance.add_daemon_heartbeat(
            stored("DaemonHeartbeat", timestamp=time.time() - 3600, daemon_type=daemon, daemon_id=None)
        )
    with serving_metrics(dsn, 0) as port:
        samples = scraped(port)
    assert of(samples, "millrace_dagster_daemon_idle_seconds", daemon="SENSOR") > 3000
    assert not [labels for name, labels in samples if name.endswith("daemon_idle_seconds") and "GONE" in str(labels)]


@pytest.mark.usefixtures("instance")
def test_a_dagster_that_does_not_answer_is_down(dsn: str, postgres: EmbeddedPostgres) -> None:
    with serving_metrics(dsn, 0) as port, psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"drop database {DATABASE} with (force)".encode())
        samples = scraped(port)
    assert {name for name, _ in samples if "dagster" in name} == {"millrace_dagster_up"}
    assert of(samples, "millrace_dagster_up") == 0
    assert of(samples, "millrace_up") == 1
