"""Three log partitions of a read model are rebuilt in one run, which its page starts."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.running.deployment import Deployment
from tests.walks.clicks import DONE_MS, open_read_model

RUNS = """
query { runsOrError(filter: {tags: [{key: "dagster/asset_partition_range_start", value: "p03"}]}) {
  ... on Runs { results { status tags { key value } } } } }
"""


def test_three_log_partitions_are_rebuilt_in_one_run(
    page: Page, platform: Deployment, picture: Callable[[str], None]
) -> None:
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
    expect(page.get_by_text("Success", exact=True)).to_be_visible(timeout=DONE_MS)

    (run,) = platform.ask(RUNS)["results"]
    assert run["status"] == "SUCCESS"
    assert {"key": "dagster/asset_partition_range_end", "value": "p05"} in run["tags"]
