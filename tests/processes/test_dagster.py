"""What Dagster's own programs do to our definitions and our store's judgement: its daemon, and its command line."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.platform_defs import liveness
from millrace.platform_defs.loading import build_defs
from millrace.platform_defs.local.surroundings import PROGRAMS
from millrace.platform_defs.standing import KINDS, DagsterStanding
from millrace.resources.alerts.findings import Finding
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.stored.versions import ensure_version
from millrace.resources.settings import PROJECT
from tests.support.elsewhere import postgres_at
from tests.support.factories import register_shop_without_schemas
from tests.support.patience import patience, wait_until
from tests.support.running.dagster_instance import instance

__all__ = ["instance"]

ORDERS = replace(declared("millrace.examples.shop", ["read_models"]).models["orders"], lookups={})
DEFINED = """
import dagster as dg

@dg.sensor(name="poll_orders", minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def poll_orders(context):
    raise ValueError("no such table")

@dg.job
def nothing():
    pass

defs = dg.Definitions(sensors=[poll_orders], jobs=[nothing])
"""


def found(standing: DagsterStanding) -> dict[tuple[str, str], Finding]:
    return {(finding.kind, finding.subject): finding for finding in standing.found()}


def test_a_sensor_that_fails_a_daemon_that_dies_and_a_queue_that_stands_are_found(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = DagsterStanding(instance)
    # nobody has ever started one
    assert found(standing) == {}

    def wrong_from(kind: str, number: float) -> None:
        monkeypatch.setitem(KINDS, kind, KINDS[kind]._replace(wrong_from=number))

    wrong_from("sensor", 1)
    (tmp_path / "defined.py").write_text(DEFINED)
    daemon = subprocess.Popen(
        [str(PROGRAMS / "dagster-daemon"), "run", "-f", str(tmp_path / "defined.py")],
        cwd=tmp_path,
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    key = ("sensor", "the sensor poll_orders")
    try:
        wait_until(lambda: daemon.poll() is not None or key in found(standing), "the sensor fails")
        seen = found(standing)
    finally:
        os.killpg(daemon.pid, 9)
        daemon.wait()
    assert seen[key].cause.endswith("no such table")
    assert "failed in a row" in seen[key].cause
    assert "daemon" not in {kind for kind, _ in seen}
    wrong_from("daemon", -1)
    seen = found(standing)
    assert "SENSOR for" in seen["daemon", "daemon"].cause
    # it is told of once, and not each of its sensors
    assert set(seen) == {("daemon", "daemon")}
    wrong_from("daemon", 300)
    # its heart beat a moment ago, and its sensor ticks no more, as where its declarations do not load
    wrong_from("location", 0)
    monkeypatch.setattr(liveness, "SENSOR_GONE_S", 0)

    def silent() -> list[Finding]:
        return [finding for finding in found(standing).values() if finding.kind == "location"]

    wait_until(silent, "no sensor has ticked for a while")
    assert "None of its sensors has ticked for" in silent()[0].cause
    assert key in found(standing)
    # it was taken away: neither it nor its sensor is told of
    monkeypatch.setattr(liveness, "LOCATION_GONE_S", -1)
    assert {kind for kind, _ in found(standing)} == set()
    # a sensor that ticks seldom is gone later
    monkeypatch.setattr(liveness, "INTERVALS", 1000)
    assert set(found(standing)) == {key}
    # nobody starts what is asked for now
    launch = [str(PROGRAMS / "dagster"), "job", "launch", "-f", str(tmp_path / "defined.py"), "-j", "nothing"]
    subprocess.run(launch, cwd=tmp_path, capture_output=True, check=True)
    assert "queue" not in {kind for kind, _ in found(standing)}
    wrong_from("queue", -1)
    assert "of nothing" in found(standing)["queue", "queue"].cause


def turn_off(sensor: str) -> None:
    """Do what somebody does who turns a sensor off, in the instance of the test."""
    command = [str(PROGRAMS / "dagster"), "sensor", "stop", sensor, "-m", "millrace.platform_defs.definitions"]
    env = {**os.environ, "MILLRACE_DECLARATIONS": "millrace.examples.shop"}
    subprocess.run(command, env=env, cwd=PROJECT, check=True, capture_output=True, timeout=2 * patience())


def sensor_tick(instance: dg.DagsterInstance, dsn: str) -> dg.SensorResult:
    resources = {"postgres": postgres_at(dsn)}
    defs = build_defs(declarations=Declarations(models={"orders": ORDERS}), resources=resources)
    context = dg.build_sensor_context(instance, definitions=defs, resources=resources)
    result = defs.resolve_sensor_def("poll_read_models")(context)
    assert isinstance(result, dg.SensorResult)
    return result


def test_a_view_whose_sensor_is_turned_off_wakes_no_drain(
    instance: dg.DagsterInstance, dsn: str, store: EventStore
) -> None:
    register_shop_without_schemas(store)
    ensure_version(store.connection, ORDERS)
    store.append_events([NewEvent("order", "o-1", "order_placed", uuid4(), {}, uuid4())])
    assert sensor_tick(instance, dsn).run_requests
    turn_off("poll_orders")
    assert "of 1, 1 are due" in str(sensor_tick(instance, dsn).skip_reason)


def test_the_workspace_validates_without_any_setting() -> None:
    done = subprocess.run(
        [PROGRAMS / "dagster", "definitions", "validate"],
        env={k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "MILLRACE_", "SPARK_"))},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=2 * patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr
