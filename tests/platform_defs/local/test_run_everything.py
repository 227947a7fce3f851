"""`millrace up` as a newcomer sees it: the real servers, the real UI, one run of everything from start to Ctrl-C."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psutil
import psycopg
import pytest

from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.accounts.other_account import ROWS, look
from tests.support.running.deployment import MILLRACE, READY_S, RUN_S, Deployment, started, until
from tests.support.scrapes import of, scraped

LAUNCH = """
mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
RERUN = """
mutation($run: String!) { launchRunReexecution(
  reexecutionParams: {parentRunId: $run, strategy: ALL_STEPS}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"
RUNNING = """
query($tag: String!, $value: String!) { runsOrError(filter: {statuses: [STARTED], tags: [{key: $tag, value: $value}]}) {
  ... on Runs { results { runId } } } }
"""
TICKS = """
query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { sensorState { status ticks(limit: 5) { status } } } } }
"""
PARTITIONS = """
query { assetNodeOrError(assetKey: {path: ["read_models", "orders"]}) {
  ... on AssetNode { assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } } } } }
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="millrace-up-") as directory:
        yield Path(directory)


@pytest.mark.timeout(600)
def test_from_an_empty_folder_to_a_stop_and_on_again(home: Path) -> None:
    with started(home) as deployment:
        read_models_fill(deployment)
        another_account_gets_what_the_page_says(deployment)
        sensors_tick(deployment)
        one_run_drains_all_views(deployment)
        metrics_are_served(deployment)
        captured_customers_follow_their_database(deployment)
        second_one_in_the_same_folder_is_refused(deployment)
        terminating_a_run_releases_its_leases(deployment)
        a_failing_log_partition_shows_red_and_its_rerun_green(deployment)
        events = deployment.rows("select count(*) from event_store.events")[0][0]
        assert f"Dagster   {deployment.url}" in deployment.stop()

    with started(home) as again:
        # it goes on where it was: the simulator appends to the same log, drains move on in the same read models
        until(lambda: again.rows("select count(*) from event_store.events")[0][0], lambda n: n > events, RUN_S)
        read_models_fill(again)
        again.stop()


def read_models_fill(deployment: Deployment) -> None:
    for model in ("orders", "shipments", "customers", "crm_customers", "crm_customer_history"):
        until(lambda: deployment.rows(f"select count(*) from read_models.{model}")[0][0], bool, READY_S)  # noqa: B023


def another_account_gets_what_the_page_says(deployment: Deployment) -> None:
    """Compare with the list that docs/who_may_do_what.md is made of."""
    # nobody else may run a program under another account; the tests of other accounts say so
    if os.geteuid() == 0:
        port = int(deployment.url.rpartition(":")[2])
        assert look(deployment.home, psutil.Process(deployment.process.pid), port) == ROWS


def sensors_tick(deployment: Deployment) -> None:
    for name in ("poll_orders", "poll_crm"):
        sensor = {"repositoryName": "__repository__", "repositoryLocationName": "millrace", "sensorName": name}
        state = until(
            lambda: deployment.ask(TICKS, sensor=sensor)["sensorState"],  # noqa: B023
            lambda state: len(state["ticks"]) > 1,
            RUN_S,
        )
        assert state["status"] == "RUNNING"
        assert {tick["status"] for tick in state["ticks"]} <= {"SUCCESS", "SKIPPED", "STARTED"}


def one_run_drains_all_views(deployment: Deployment) -> None:
    (run,) = until(
        lambda: deployment.ask(RUNNING, tag="millrace/drain", value="together")["results"],
        lambda runs: len(runs) == 1,
        RUN_S,
    )
    attached = f"select count(*) from event_store.attached_views('{run['runId']}')"
    until(lambda: deployment.rows(attached)[0][0], lambda views: views == 5, RUN_S)
    for view in ("orders", "shipments", "customers", "crm_customers", "crm_customer_history"):
        assert deployment.ask(RUNNING, tag="millrace/view", value=view)["results"] == []


def metrics_are_served(deployment: Deployment) -> None:
    samples = until(
        lambda: scraped(int(deployment.env["MILLRACE_METRICS_PORT"])),
        lambda samples: of(samples, "millrace_dagster_up") == 1,
        RUN_S,
    )
    assert of(samples, "millrace_sequencer_idle_seconds") < 30
    assert of(samples, "millrace_view_consumers", view="orders", mode="bulk") == 1
    assert of(samples, "millrace_capture_leased", capture="crm") in {0, 1}
    assert of(samples, "millrace_dagster_sensor_failures", sensor="poll_orders") == 0
    assert of(samples, "millrace_dagster_daemon_idle_seconds", daemon="SENSOR") < 120


def captured_customers_follow_their_database(deployment: Deployment) -> None:
    named = f"somebody {uuid4()}"
    with psycopg.connect(EmbeddedPostgres(deployment.home / "postgres").dsn("crm"), autocommit=True) as crm:
        crm.execute("insert into customers (name) values (%s)", (named,))
    # not in crm_customers: the simulated clerks may have deleted it by then
    row = f"select count(*) from read_models.crm_customer_history where name = '{named}'"
    until(lambda: deployment.rows(row)[0][0], bool, RUN_S)


def second_one_in_the_same_folder_is_refused(deployment: Deployment) -> None:
    second = subprocess.run(
        [MILLRACE, "up"], env=deployment.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert "Millrace already runs in" in second.stderr + second.stdout


def terminating_a_run_releases_its_leases(deployment: Deployment) -> None:
    for kind, name, leased in (("drain", "together", "checkpoints"), ("capture", "crm", "captures")):
        (run,) = until(
            lambda: deployment.ask(RUNNING, tag=f"millrace/{kind}", value=name)["results"],  # noqa: B023
            lambda runs: len(runs) == 1,
            RUN_S,
        )
        # whatever it holds at this moment, leases or none
        deployment.ask(TERMINATE, run=run["runId"])
        assert deployment.finished(run["runId"]) == "CANCELED"
        held = deployment.rows(f"select count(*) from event_store.{leased} where lease_owner = '{run['runId']}'")
        assert held == [(0,)]


def a_failing_log_partition_shows_red_and_its_rerun_green(deployment: Deployment) -> None:
    # somebody else takes the log partition and keeps it
    until(
        lambda: deployment.rows("select * from event_store.claim_partition('orders', 3, 'somebody', 3600)"), bool, RUN_S
    )
    params = {
        "selector": {
            "repositoryName": "__repository__",
            "repositoryLocationName": "millrace",
            "pipelineName": "rebuild",
            "assetSelection": [{"path": ["read_models", "orders"]}],
        },
        "runConfigData": {"ops": {"read_models__orders": {"config": {"wait_s": 0}}}},
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "p03"}]},
    }
    red = deployment.ask(LAUNCH, params=params)
    assert red["__typename"] == "LaunchRunSuccess", red
    assert deployment.finished(red["run"]["runId"]) == "FAILURE"
    assert deployment.ask(PARTITIONS)["assetPartitionStatuses"]["failedPartitions"] == ["p03"]

    deployment.rows("select event_store.release_owner('somebody')")

    # the rerun of the UI; with wait_s 0 it may meet the drain's own lease
    def rerun() -> str:
        green = deployment.ask(RERUN, run=red["run"]["runId"])
        assert green["__typename"] == "LaunchRunSuccess", green
        return deployment.finished(green["run"]["runId"])

    until(rerun, lambda status: status == "SUCCESS", 2 * RUN_S)
    statuses = deployment.ask(PARTITIONS)["assetPartitionStatuses"]
    assert statuses["failedPartitions"] == []
    # others turn green as soon as a drain has events for them
    assert "p03" in statuses["materializedPartitions"]
