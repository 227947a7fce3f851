"""One running platform, as a newcomer sees it: its servers, and walks through its UI in a real browser.

A walk clicks on visible elements, by role and text, and waits for the page to show the result. It asks Dagster's
interface or the store only to verify the effect, or to keep other work away meanwhile. All tests share one platform,
in the state that the previous test left: the tests without a browser come first.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest
from playwright.sync_api import Page, TimeoutError, expect  # noqa: A004 - its own

from millrace.patience import REST_S
from tests.processes.walks.conftest import MODELS, SUNDAYS, new_customer, shop
from tests.support.accounts.other_account import ROWS, look
from tests.support.patience import patience, wait_until
from tests.support.running.deployment import FINISHED, Deployment, until
from tests.support.running.shop import PACKAGE, edit
from tests.support.scrapes import of, scraped

# the first test may have to wait for the platform, and any test for runs on a busy machine
pytestmark = pytest.mark.timeout(1800)
SIMULATORS = {"service crm", "service simulate", "service unpaid"}
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"
STARTED = """
query($tag: String!, $value: String!) { runsOrError(filter: {statuses: [STARTED], tags: [{key: $tag, value: $value}]}) {
  ... on Runs { results { runId } } } }
"""
TICKS = """
query($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { sensorState { id status ticks(limit: 5) { timestamp status } } } } }
"""
STOP = "mutation($id: String!) { stopSensor(id: $id) { __typename } }"
START = "mutation($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"
RANGE = """
query { runsOrError(filter: {tags: [{key: "dagster/asset_partition_range_start", value: "p03"}]}) {
  ... on Runs { results { status tags { key value } } } } }
"""
# the sensors that may start a drain of a view, or of all views
DRAINING = ("poll_read_models", *(f"poll_{model}" for model in MODELS))
# the right and the wrong line of each declaration
SHIPMENTS = 'order_id = first("data.order_id")', 'order_id = first("data.order_id", type="bigint")'
PAYMENTS = 'method = last("data.method")', 'method = last("data.method", type="bigint")'
BUILT = """
select
  (select count(*) from read_models.shipments)
    = (select count(distinct decider_id) from event_store.events where decider = 'shipment'),
  (select count(*) from read_models.payments)
    = (select count(distinct decider_id) from event_store.events where decider = 'payment')
"""
PAYMENTS_STATE = """
query { assetNodeOrError(assetKey: {path: ["read_models", "payments"]}) { ... on AssetNode {
  partitionStats { numFailed numMaterialized numMaterializing numPartitions }
  latestMaterializationByPartition { runOrError { ... on Run { status tags { key value } } } } } } }
"""
RUNS = "query { runsOrError { ... on Runs { results { status } } } }"
METADATA = """
query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { metadataEntries { label
  ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { assetKey { path } columnName } } } } } } }
"""
OBSERVED = """
query ($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetObservations(limit: 1) { metadataEntries { label } } } } }
"""
LOADED = "{ locationStatusesOrError { ... on WorkspaceLocationStatusEntries { entries { updateTimestamp } } } }"
GROUPS = ("archive", "change_capture", "consumption", "event_store", "read_models", "reports", "sources")
COLUMNS = {"customer_id": "last of data.customer_id in order_placed", "total": "sum of data.amount in order_line_added"}
# the run prints the times of these pages, but asserts nothing of them
PAGES = {
    "lineage": ("/asset-groups", "read_models"),
    "an asset with 16 partitions": ("/assets/read_models/orders?view=partitions", "p15"),
    "ticks of a sensor": ("/locations/__repository__@millrace/sensors/poll_orders", "View logs"),
    "runs": ("/runs", "drain_views"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can run a program under another account: run this as root.")
def test_another_account_gets_what_the_page_says(platform: Deployment) -> None:
    """Verify docs/who_may_do_what.md; here no simulator runs."""
    port = int(platform.url.rpartition(":")[2])
    expected = {kind: {k: gets for k, gets in rows.items() if k not in SIMULATORS} for kind, rows in ROWS.items()}
    assert look(platform.home, psutil.Process(platform.process.pid), port) == expected


def test_sensors_tick(platform: Deployment) -> None:
    for name in ("poll_orders", "poll_crm"):
        state = until(partial(sensor, platform, name), lambda state: len(state["ticks"]) > 1)
        assert state["status"] == "RUNNING"
        assert {tick["status"] for tick in state["ticks"]} <= {"SUCCESS", "SKIPPED", "STARTED"}


def sensor(platform: Deployment, name: str) -> Any:  # noqa: ANN401 - JSON
    return platform.ask(TICKS, sensor=selector(name))["sensorState"]


def selector(name: str) -> dict[str, str]:
    return {"repositoryName": "__repository__", "repositoryLocationName": "millrace", "sensorName": name}


def working(platform: Deployment, kind: str, name: str) -> str:
    """Return the run that drains or captures, once there is one; give it work until then."""

    def runs() -> list[dict[str, str]]:
        shop(platform, 5)
        new_customer(platform)
        return list(platform.ask(STARTED, tag=f"millrace/{kind}", value=name)["results"])

    (run,) = until(runs, lambda runs: len(runs) == 1)
    return run["runId"]


def test_one_run_drains_all_views(platform: Deployment) -> None:
    run = working(platform, "drain", "together")
    attached = f"select count(*) from event_store.consumers where consumer = '{run}'"
    until(lambda: platform.rows(attached)[0][0], lambda views: views == len(MODELS))
    for view in MODELS:
        assert platform.ask(STARTED, tag="millrace/view", value=view)["results"] == []


def test_dagsters_own_interface_answers_with_the_lineage(platform: Deployment) -> None:
    entries = platform.ask(METADATA, key={"path": ["read_models", "orders"]})["metadataEntries"]
    (lineage,) = [each["lineage"] for each in entries if each["label"] == "dagster/column_lineage"]
    columns = {each["columnName"]: each["columnDeps"] for each in lineage}
    assert columns["customer_id"] == [
        {"assetKey": {"path": ["event_store", "events"]}, "columnName": "data.customer_id"},
        {"assetKey": {"path": ["events", "order"]}, "columnName": "order_placed.customer_id"},
    ]


def test_metrics_are_served(platform: Deployment) -> None:
    samples = until(
        lambda: scraped(int(platform.env["MILLRACE_METRICS_PORT"])),
        lambda samples: of(samples, "millrace_dagster_up") == 1,
    )
    assert of(samples, "millrace_sequencer_idle_seconds") < patience()
    assert of(samples, "millrace_view_consumers", view="orders", mode="bulk") == 1
    assert of(samples, "millrace_capture_leased", capture="crm") in {0, 1}
    assert of(samples, "millrace_dagster_sensor_failures", sensor="poll_orders") == 0
    assert of(samples, "millrace_dagster_daemon_idle_seconds", daemon="SENSOR") < 2 * patience()


def test_terminating_a_run_releases_its_leases(platform: Deployment) -> None:
    for kind, name, leased in (("drain", "together", "checkpoints"), ("capture", "crm", "captures")):
        run = working(platform, kind, name)
        # at any moment, with or without leases
        platform.ask(TERMINATE, run=run)
        assert platform.finished(run) == "CANCELED"
        held = platform.rows(f"select count(*) from event_store.{leased} where lease_owner = '{run}'")
        assert held == [(0,)]


def done_ms() -> float:
    """Return the time limit for a page to show the end of a run, or of a code reload, in milliseconds."""
    return 3000.0 * patience()


def open_read_model(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("button", name="Search").click()
    page.get_by_placeholder("Search assets").fill(name)
    page.get_by_role("link", name=f"read_models / {name} Asset").click()
    expect(page.get_by_role("tab", name="Partitions")).to_be_visible()


def reload_declarations(page: Page, platform: Deployment) -> None:
    """Reload the code location, and wait until the current declarations are loaded."""
    loaded = platform.ask(LOADED)
    page.get_by_role("link", name="Deployment").click()
    page.get_by_role("button", name=re.compile("Reload$")).click()
    # the page shows the time of the reload, which is no separate text
    until(lambda: platform.ask(LOADED), lambda now: now != loaded)


def open_automation(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Automation").click()
    page.get_by_role("link", name=name).click()


def switch_automation(page: Page, *, on: bool) -> None:
    running = page.get_by_role("row", name="Running")
    expect(running.get_by_role("checkbox")).to_be_checked(checked=not on)
    running.get_by_role("img").click()
    expect(running.get_by_role("checkbox")).to_be_checked(checked=on)


def open_failed_run(page: Page, view: str, seen: Callable[[], None] = lambda: None) -> None:
    """Open the newest failed run of a view, once it is visible in the list."""
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("tab", name="Failed").click()
    of_view = page.get_by_text(f"millrace/view: {view}").first
    expect(of_view).to_be_visible(timeout=done_ms())
    seen()
    # the list's rows have no role: find the element around both
    beside = of_view.locator("xpath=ancestor::*[.//a[starts-with(@href, '/runs/')]][1]")
    beside.get_by_role("link", name=re.compile("^run [0-9a-f]{8}$")).first.click()
    expect(page.get_by_text("Launched by poll_")).to_be_visible()


def test_the_lineage_leads_to_what_columns_are_made_of(page: Page, picture: Callable[[str], None]) -> None:
    # an icon of another link has a name with the same word
    page.get_by_role("link", name=re.compile("Lineage$")).click()
    expect(page.get_by_text("Global asset lineage")).to_be_visible()
    for group in GROUPS:
        expect(page.get_by_text(group, exact=True).first).to_be_visible()
    picture("lineage")

    # in the list beside the graph: the page has only the part of the graph that fits
    page.get_by_text("read_models", exact=True).first.click()
    page.keyboard.press("ArrowRight")
    page.get_by_text("orders", exact=True).first.click()
    expect(page.get_by_role("heading", name="read_models / orders")).to_be_visible()
    page.get_by_role("link", name="View in Asset Catalog").click()

    expect(page.get_by_text("One row per order: whose it is, where it stands and what it is worth.")).to_be_visible()
    for column, said in COLUMNS.items():
        expect(page.get_by_role("row", name=column).get_by_role("cell", name=said)).to_be_visible()
    picture("read-model")

    page.get_by_role("tab", name="Lineage").click()
    for upstream in ("view_events", "event_log"):
        expect(page.get_by_text(upstream, exact=True).first).to_be_visible()


@pytest.mark.parametrize("what", PAGES)
def test_a_page_shows_its_content(what: str, page: Page, timed: Callable[[str], AbstractContextManager[None]]) -> None:
    path, content = PAGES[what]
    with timed(what):
        page.goto(path)
        expect(page.get_by_text(content, exact=True).first).to_be_visible()


def test_partitions_are_rebuilt_in_one_run(page: Page, platform: Deployment, picture: Callable[[str], None]) -> None:
    open_read_model(page, "orders")
    page.get_by_role("tab", name="Partitions").click()
    expect(page.get_by_text("16 Partitions Selected")).to_be_visible()

    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
    dialog.get_by_text("Select a partition").click()
    for log_partition in ("p03", "p04", "p05"):
        page.get_by_role("menuitem", name=log_partition).click()
    dialog.get_by_text("Launch runs to materialize").click()
    expect(dialog).to_contain_text("3 partitions")
    picture("rebuild")
    dialog.get_by_role("button", name="Launch backfill").click()

    page.get_by_role("link", name="View", exact=True).click()
    page.get_by_role("tab", name="Runs").click()
    expect(page.get_by_text("Success", exact=True)).to_be_visible(timeout=done_ms())

    (run,) = platform.ask(RANGE)["results"]
    assert run["status"] == "SUCCESS"
    assert {"key": "dagster/asset_partition_range_end", "value": "p05"} in run["tags"]


def test_broken_models_turn_red_and_go_green(page: Page, platform: Deployment, picture: Callable[[str], None]) -> None:
    declared = platform.home.parent / PACKAGE / "read_models"
    edit(declared / "shipments.py", *SHIPMENTS)
    edit(declared / "payments.py", *PAYMENTS)
    reload_declarations(page, platform)
    shop(platform, 60)

    open_failed_run(page, "shipments", seen=lambda: picture("failed"))
    expect(page.get_by_text("made no progress").first).to_be_visible()
    expect(page.get_by_text("which is not exactly a bigint").first).to_be_visible()
    until(lambda: partitions(platform)["numFailed"], bool)
    # a drain of all views would also turn green the partitions to be rebuilt by hand
    with no_drain_begins(platform):
        edit(declared / "shipments.py", *reversed(SHIPMENTS))
        edit(declared / "payments.py", *reversed(PAYMENTS))
        reload_declarations(page, platform)
        open_failed_run(page, "shipments")
        page.get_by_role("button", name="Re-execute all").click()
        expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=done_ms())

        rebuild_what_failed(page, platform, seen=lambda: picture("failed-partitions"))
    assert platform.rows(BUILT) == [(True, True)]


@contextmanager
def no_drain_begins(platform: Deployment) -> Iterator[None]:
    """Wait for all drains to end, and let none begin by itself inside the block."""
    try:
        for name in DRAINING:
            platform.ask(STOP, id=sensor(platform, name)["id"])
        newest = sensor(platform, "poll_views")["ticks"][0]["timestamp"]
        # by the second tick of another sensor, Dagster has reread which sensors are on
        until(lambda: sensor(platform, "poll_views")["ticks"][1]["timestamp"], lambda second: second > newest)
        for name in DRAINING:
            until(
                partial(sensor, platform, name),
                lambda state: state["status"] == "STOPPED" and state["ticks"][0]["status"] != "STARTED",
            )
        # the drain of all views lives on until it is terminated
        for run in platform.ask(STARTED, tag="millrace/drain", value="together")["results"]:
            platform.ask(TERMINATE, run=run["runId"])
        until(lambda: platform.ask(RUNS)["results"], lambda runs: {run["status"] for run in runs} <= FINISHED)
        yield
    finally:  # later walks use the same platform
        started = [platform.ask(START, sensor=selector(name))["__typename"] for name in DRAINING]
        assert set(started) == {"Sensor"}


def rebuild_what_failed(page: Page, platform: Deployment, seen: Callable[[], None]) -> None:
    """Launch a backfill of the red log partitions on a read model's page, and assert that it turns them green."""
    red = partitions(platform)["numFailed"]
    assert red
    open_read_model(page, "payments")
    page.get_by_role("tab", name="Partitions").click()
    expect(page.get_by_text("16 Partitions Selected")).to_be_visible()
    expect(page.get_by_text(f"Failed ({red})")).to_be_visible()
    seen()

    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
    dialog.get_by_role("button", name="Failed", exact=True).click()
    expect(dialog).to_contain_text(f"{red} partitions")
    dialog.get_by_role("button", name="Launch backfill").click()
    page.get_by_role("link", name="View", exact=True).click()
    page.get_by_role("tab", name="Runs").click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=done_ms())

    # if the red partitions are not all adjacent, there are several runs
    until(lambda: partitions(platform), lambda now: now["numMaterialized"] == now["numPartitions"])
    newest = platform.ask(PAYMENTS_STATE)["latestMaterializationByPartition"]
    assert "dagster/backfill" in {tag["key"] for each in newest for tag in each["runOrError"]["tags"]}
    open_read_model(page, "payments")
    page.get_by_role("tab", name="Partitions").click()
    expect(page.get_by_text("Materialized (16)")).to_be_visible()


def partitions(platform: Deployment) -> Any:  # noqa: ANN401 - JSON
    return platform.ask(PAYMENTS_STATE)["partitionStats"]


@pytest.mark.parametrize(
    ("schedule", "said", "job"),
    [
        ("report_event_store", "Every hour: the schema is current", "apply_schema"),
        ("rebuild_on_sundays", "All read models, on Sundays.", "rebuild"),
    ],
)
def test_a_schedule_is_run_now(schedule: str, said: str, job: str, page: Page, picture: Callable[[str], None]) -> None:
    open_automation(page, schedule)
    expect(page.get_by_text(said)).to_be_visible()
    own = "own-" if schedule in SUNDAYS else ""
    if own:
        switch_automation(page, on=True)
        picture("own-schedule")

    page.get_by_role("button", name="Preview tick result").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Continue").click()
    launch = dialog.get_by_role("button", name="Launch all & commit tick result")
    expect(launch).to_be_enabled()
    expect(dialog).to_contain_text(job)
    picture(f"{own}schedule-now")
    launch.click()

    # the UI opens the list of runs, with the launched one
    expect(page.get_by_text("Run id is")).to_be_visible()
    expect(page.get_by_role("link", name=schedule)).to_be_visible()
    expect(page.get_by_text("Success", exact=True)).to_be_visible(timeout=done_ms())


@contextmanager
def table_in_use(platform: Deployment) -> Iterator[None]:
    """Block all writes into the table of a read model, as another program's long transaction may."""
    with psycopg.connect(platform.dsn) as other:
        other.execute("lock table read_models.shipments in exclusive mode")
        yield
        other.rollback()


def test_a_stopped_drain_gives_leases_back(page: Page, platform: Deployment, picture: Callable[[str], None]) -> None:
    with table_in_use(platform):
        shop(platform, 200)
        page.get_by_role("link", name="Runs").click()
        # the drain of all views drops this view, which gets its own run
        expect(page.get_by_text("millrace/view: shipments").first).to_be_visible(timeout=done_ms())
        (run,) = until(
            lambda: platform.ask(STARTED, tag="millrace/view", value="shipments")["results"],
            lambda runs: len(runs) == 1,
        )
        leases = f"select count(*) from event_store.checkpoints where lease_owner = '{run['runId']}'"
        until(lambda: platform.rows(leases)[0][0], bool)

        page.get_by_role("link", name=run["runId"][:8]).click()
        page.get_by_role("button", name="Terminate").click()
        dialog = page.get_by_role("dialog")
        picture("terminate")
        dialog.get_by_role("button", name="Terminate 1 run").click()
        # the page redraws when the run ends, and may close the dialog by itself
        with suppress(TimeoutError):
            dialog.get_by_role("button", name="Done").click(timeout=5000)
        expect(page.get_by_text("Canceled", exact=True).first).to_be_visible()
        # the table is still in use; the page may show the end before the process has ended
        until(lambda: platform.rows(leases)[0][0], lambda held: held == 0)


def test_a_sensor_is_turned_off_and_on(page: Page, platform: Deployment, picture: Callable[[str], None]) -> None:
    def status() -> str:
        return str(sensor(platform, "poll_orders")["status"])

    open_automation(page, "poll_orders")
    expect(page.get_by_text("Says how orders stands")).to_be_visible()
    switch_automation(page, on=False)
    wait_until(lambda: status() == "STOPPED", "the sensor is off")  # the switch moves before Dagster answers

    ticks = page.get_by_role("row").filter(has_text="View logs")
    newest = ticks.first.get_by_role("cell").first
    before = newest.inner_text()
    switch_automation(page, on=True)
    wait_until(lambda: status() == "RUNNING", "the sensor is on")
    expect(newest).not_to_have_text(before)

    ticks.first.get_by_role("button", name="requested").click()
    expect(page.get_by_role("dialog")).to_contain_text("orders: ")
    picture("sensor-tick")


def test_a_process_shows_what_it_hears_and_its_timers(
    page: Page, platform: Deployment, picture: Callable[[str], None]
) -> None:
    waiting = "timers_waiting.pay"
    process = partial(platform.ask, OBSERVED, key={"path": ["subscriptions", "unpaid_orders"]})
    # the sensor may have looked at the moment before the process began
    until(process, lambda seen: waiting in str(seen["assetObservations"]), REST_S)
    page.goto("/assets/subscriptions/unpaid_orders")
    expect(page.get_by_text("Cancels an order that is not paid in time.").first).to_be_visible()
    for label in ("hears", "commands", waiting, "lag"):
        expect(page.get_by_text(label, exact=True).first).to_be_visible()
    picture("process")
    page.get_by_role("tab", name="Lineage").click()
    expect(page.get_by_text("event_log", exact=True).first).to_be_visible()
