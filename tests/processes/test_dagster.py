"""Dagster's own programs, daemon and command line, with our definitions and our findings."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

import dagster as dg
import psutil
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.assets.rounds import ALL_VIEWS
from millrace.event_store.platform import PlatformStore
from millrace.operations.alerts.findings import Finding
from millrace.platform_defs import liveness
from millrace.platform_defs.cli.new.command import make_repository
from millrace.platform_defs.dagster_internals.foreign import WHY_OFF
from millrace.platform_defs.local.services import free_port
from millrace.platform_defs.local.surroundings import PROGRAMS
from millrace.platform_defs.standing import KINDS, DagsterStanding
from millrace.processes import wait_ended
from millrace.read_models.stored.versions import ensure_version
from tests.support.factories import register_shop_without_schemas
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.running.dagster_instance import instance
from tests.support.running.deployment import Deployment, until
from tests.support.running.ending import ending_with_us
from tests.support.running.in_process import reason, tick
from tests.support.running.programs import ran
from tests.support.sql_calls import BatchEvent, append_events

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
FRESH = """
import dagster as dg
from millrace.examples.shop.defs.daily_orders import daily_orders

defs = dg.Definitions([dg.AssetSpec("report", freshness_policy=daily_orders.get_asset_spec().freshness_policy)])
"""


@contextmanager
def daemon(folder: Path, defined: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Dagster's daemon over definitions, and kill it."""
    (folder / "defined.py").write_text(defined)
    running = subprocess.Popen(
        [str(PROGRAMS / "dagster-daemon"), "run", "-f", str(folder / "defined.py")],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        os.killpg(running.pid, 9)
        running.wait()


def found(standing: DagsterStanding) -> dict[tuple[str, str], Finding]:
    return {(finding.kind, finding.subject): finding for finding in standing.found()}


def test_a_standstill_is_found(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = DagsterStanding(instance)
    # no daemon has ever been started
    assert found(standing) == {}

    def wrong_from(kind: str, number: float) -> None:
        monkeypatch.setitem(KINDS, kind, KINDS[kind]._replace(wrong_from=number))

    wrong_from("sensor", 1)
    key = ("sensor", "the sensor poll_orders")
    with daemon(tmp_path, DEFINED) as running:
        wait_until(lambda: running.poll() is not None or key in found(standing), "the sensor fails")
        seen = found(standing)
    assert seen[key].cause.endswith("no such table")
    assert "failed in a row" in seen[key].cause
    assert "daemon" not in {kind for kind, _ in seen}
    wrong_from("daemon", -1)
    seen = found(standing)
    assert "SENSOR for" in seen["daemon", "daemon"].cause
    # one finding for the daemon, and none for each of its sensors
    assert set(seen) == {("daemon", "daemon")}
    wrong_from("daemon", 300)
    # a recent heartbeat, but the sensor ticks no more, as when its declarations do not load
    wrong_from("location", 0)
    monkeypatch.setattr(liveness, "SENSOR_GONE_S", 0)

    def silent() -> list[Finding]:
        return [finding for finding in found(standing).values() if finding.kind == "location"]

    wait_until(silent, "no sensor has ticked for a while")
    assert "None of its sensors has ticked for" in silent()[0].cause
    assert key in found(standing)
    # the location was removed: no finding for it or its sensor
    monkeypatch.setattr(liveness, "LOCATION_GONE_S", -1)
    assert {kind for kind, _ in found(standing)} == set()
    # a sensor with a long interval counts as gone later
    monkeypatch.setattr(liveness, "INTERVALS", 1000)
    assert set(found(standing)) == {key}
    # no daemon starts this requested run
    ran(PROGRAMS / "dagster", "job", "launch", "-f", tmp_path / "defined.py", "-j", "nothing", cwd=tmp_path)
    assert "queue" not in {kind for kind, _ in found(standing)}
    wrong_from("queue", -1)
    assert "of nothing" in found(standing)["queue", "queue"].cause


def test_the_daemon_judges_freshness_as_it_is_set_up(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    report = dg.AssetKey("report")
    instance.report_runless_asset_event(dg.AssetMaterialization(report))

    def states() -> list[str]:
        return [each.freshness_state.value for each in instance.get_freshness_state_records([report]).values()]

    with daemon(tmp_path, FRESH) as running:
        wait_until(lambda: running.poll() is not None or states(), "the daemon judged the report")
    assert states() == ["PASS"]


def turn_off(sensor: str) -> None:
    """Turn a sensor off in the test's instance, as an operator does."""
    env = {**os.environ, "MILLRACE_DECLARATIONS": "millrace.examples.shop"}
    program = "millrace.platform_defs.definitions"
    ran(PROGRAMS / "dagster", "sensor", "stop", sensor, "-m", program, env=env, cwd=PROJECT)


def test_a_view_with_its_sensor_off_wakes_no_drain(
    instance: dg.DagsterInstance, dsn: str, store: PlatformStore
) -> None:
    register_shop_without_schemas(store)
    ensure_version(store.connection, ORDERS)
    append_events(store, [BatchEvent("order", "o-1", "order_placed", uuid4(), {}, uuid4())])
    found = Declarations(models={"orders": ORDERS})
    assert tick(instance, dsn, found, "poll_read_models").run_requests
    turn_off("poll_orders")
    assert "orders 1 due" in reason(tick(instance, dsn, found, "poll_read_models"))


def test_the_workspace_validates_without_any_setting() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "MILLRACE_", "SPARK_"))}
    done = ran(PROGRAMS / "dagster", "definitions", "validate", env=env, cwd=PROJECT)
    assert "All code locations passed validation" in done.stdout + done.stderr


def test_dg_lists_and_checks_what_is_declared(tmp_path: Path) -> None:
    make_repository(made := tmp_path / "our_platform")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "MILLRACE_", "SPARK_"))}
    env |= {"PYTHONPATH": f"{made}{os.pathsep}{PROJECT}", "MILLRACE_HOME": str(tmp_path / "home")}
    for folder, asset_key in ((PROJECT, "event_store/events"), (made, "read_models/orders")):
        listed = json.loads(ran(PROGRAMS / "dg", "list", "defs", "--json", env=env, cwd=folder).stdout)
        assert asset_key in {asset["asset_key"] for asset in listed["assets"]}
        assert "poll_views" in {sensor["name"] for sensor in listed["sensors"]}
        ran(PROGRAMS / "dg", "check", "defs", env=env, cwd=folder)
    (made / "our_platform" / "read_models" / "broken.py").write_text("def\n")
    refused = ran(PROGRAMS / "dg", "check", "defs", env=env, cwd=made, code=1)
    assert "read_models/broken.py:1: SyntaxError" in refused.stdout + refused.stderr


AWAKE = """
import dagster as dg

@dg.sensor(minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def awake():
    return dg.SkipReason("somebody turned it on")
"""
STATES = """
{ repositoriesOrError { ... on RepositoryConnection { nodes {
  sensors { name description sensorState { status ticks(limit: 5) { timestamp } } }
  schedules { name description scheduleState { status } }
  allTopLevelResourceDetails { name configFields { name } configuredValues { key } } } } } }
"""
RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
START = "mutation($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"


@contextmanager
def dg_dev(folder: Path, env: dict[str, str]) -> Iterator[Deployment]:
    """Run `dg dev` in a folder; terminated, it ends all its processes."""
    port = free_port()
    with TemporaryFile() as log:
        command = ending_with_us([PROGRAMS / "dg", "dev", "--port", str(port)])
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
        running = Deployment(process, folder, f"http://127.0.0.1:{port}", env, log)
        try:
            yield running
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait(patience())
            assert wait_ended(children, patience()) == [], running.said()


def test_dg_dev_starts_nothing_beside_the_platform(tmp_path: Path, store: PlatformStore, dsn: str) -> None:
    make_repository(made := tmp_path / "our_platform")
    (made / "our_platform" / "defs" / "awake.py").write_text(AWAKE)
    store.connection.execute((made / "first_events.sql").read_bytes())
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER_", "MILLRACE_", "SPARK_"))}
    env |= {"PYTHONPATH": str(PROJECT), "MILLRACE_DSN": dsn, "MILLRACE_HOME": str(tmp_path / "home")}
    with dg_dev(made, env) as dev:

        def ticks() -> dict[str, Any]:
            (location,) = dev.ask(STATES)["nodes"]
            return {each["name"]: each["sensorState"]["ticks"] for each in location["sensors"]}

        (location,) = until(lambda: dev.ask(STATES)["nodes"], bool)
        automations = [*location["sensors"], *location["schedules"]]
        assert {"poll_orders", "poll_read_models", "report_event_store", "awake"} <= {
            each["name"] for each in automations
        }
        for each in automations:
            assert (each.get("sensorState") or each["scheduleState"])["status"] == "STOPPED", each
            assert each["description"].startswith(WHY_OFF)
        # resources have no setting that the page could show
        assert not any(
            each["configFields"] or each["configuredValues"] for each in location["allTopLevelResourceDetails"]
        )
        whose = {"repositoryLocationName": "our_platform", "repositoryName": "__repository__", "sensorName": "awake"}
        dev.ask(START, sensor=whose)
        # the daemon looks at all sensors in each of its turns
        seen = until(ticks, lambda seen: len(seen["awake"]) >= 3)
        assert {name for name, found in seen.items() if found} == {"awake"}
        assert dev.ask(RUNS)["results"] == []
    assert store.view_info() == []
    assert all(state.since_s is None for state in store.drain_states("orders", ALL_VIEWS).values())
