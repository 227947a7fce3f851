"""Declarations are broken, their drains turn red and say why; corrected, both ways of the UI lead back to green.

One read model is drained again from the page of its failed run. Of another one its own page rebuilds the log partitions
that failed.
"""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.support.running.deployment import FINISHED, Deployment, until
from tests.support.running.shop import PACKAGE, edit
from tests.walks.clicks import DONE_MS, open_read_model, open_sensor, reload_declarations, switch_sensor
from tests.walks.conftest import shop

# what is right, and what is wrong, in the declaration of each
SHIPMENTS = 'order_id = first("data.order_id")', 'order_id = first("data.order_id", type="bigint")'
CUSTOMERS = 'customer_id = field("data.customer_id")', 'customer_id = field("data.customer_id", type="bigint")'
BUILT = """
select
  (select count(*) from read_models.shipments)
    = (select count(distinct decider_id) from event_store.events where decider = 'shipment'),
  (select sum(orders) from read_models.customers)
    = (select count(*) from event_store.events where event = 'order_placed')
"""
PARTITIONS = """
query { assetNodeOrError(assetKey: {path: ["read_models", "customers"]}) {
  ... on AssetNode { partitionStats { numFailed numMaterialized numMaterializing numPartitions } } } }
"""
RUNS = """
query { runsOrError(filter: {tags: [{key: "dagster/partition", value: "customers"}]}) {
  ... on Runs { results { status } } } }
"""
MADE_GREEN = """
query { assetNodeOrError(assetKey: {path: ["read_models", "customers"]}) {
  ... on AssetNode { latestMaterializationByPartition(partitions: ["p00"]) { runOrError {
    ... on Run { status tags { key value } } } } } } }
"""


def test_broken_read_models_turn_red_and_what_failed_is_run_again(
    page: Page, platform: Deployment, picture: Callable[[str], None]
) -> None:
    declared = platform.home.parent / PACKAGE / "read_models"
    edit(declared / "shipments.py", *SHIPMENTS)
    edit(declared / "customers.py", *CUSTOMERS)
    reload_declarations(page, platform)
    shop(platform, 60)

    open_failed_run(page, "shipments", seen=lambda: picture("failed"))
    expect(page.get_by_text("made no progress").first).to_be_visible()
    expect(page.get_by_text("which is not exactly a bigint").first).to_be_visible()
    until(lambda: partitions(platform)["numFailed"], bool, DONE_MS / 1000)
    # a drain that begins after the correction would make green what is to be rebuilt by hand
    open_sensor(page, "poll_customers")
    switch_sensor(page, on=False)
    until(
        lambda: platform.ask(RUNS)["results"], lambda runs: {run["status"] for run in runs} <= FINISHED, DONE_MS / 1000
    )

    edit(declared / "shipments.py", *reversed(SHIPMENTS))
    edit(declared / "customers.py", *reversed(CUSTOMERS))
    reload_declarations(page, platform)
    open_failed_run(page, "shipments")
    page.get_by_role("button", name="Re-execute all").click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=DONE_MS)

    rebuild_what_failed(page, platform, seen=lambda: picture("failed-partitions"))
    open_sensor(page, "poll_customers")
    switch_sensor(page, on=True)
    assert platform.rows(BUILT) == [(True, True)]


def rebuild_what_failed(page: Page, platform: Deployment, seen: Callable[[], None]) -> None:
    """Launch a backfill of the log partitions that are red on a read model's page, and see that it turns them green."""
    red = partitions(platform)["numFailed"]
    assert red
    open_read_model(page, "customers")
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
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=DONE_MS)

    now = until(lambda: partitions(platform), lambda now: not now["numFailed"], DONE_MS / 1000)
    assert now["numMaterialized"] == now["numPartitions"]
    (newest,) = platform.ask(MADE_GREEN)["latestMaterializationByPartition"]
    assert "dagster/backfill" in {tag["key"] for tag in newest["runOrError"]["tags"]}
    open_read_model(page, "customers")
    page.get_by_role("tab", name="Partitions").click()
    expect(page.get_by_text("Materialized (16)")).to_be_visible()


def partitions(platform: Deployment) -> Any:  # noqa: ANN401 - JSON
    """Return how many log partitions of the read model are red, and how many green."""
    return platform.ask(PARTITIONS)["partitionStats"]


def open_failed_run(page: Page, view: str, seen: Callable[[], None] = lambda: None) -> None:
    """Open the newest run of a view that failed, once there is one in the list, and that is seen."""
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("tab", name="Failed").click()
    of_view = page.get_by_text(f"millrace/view: {view}").first
    expect(of_view).to_be_visible(timeout=DONE_MS)
    seen()
    # the list has no rows by their role: what is around both
    beside = of_view.locator("xpath=ancestor::*[.//a[starts-with(@href, '/runs/')]][1]")
    beside.get_by_role("link", name=re.compile("^run [0-9a-f]{8}$")).first.click()
    expect(page.get_by_text("Launched by poll_")).to_be_visible()
