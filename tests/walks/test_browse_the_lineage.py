"""From the start page over the lineage to a read model: what it is made of, and what each column is computed from."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

GROUPS = ("archive", "change_capture", "consumption", "event_store", "read_models", "reports", "sources")
COLUMNS = {
    "customer_id": "last of data.customer_id in order_placed",
    "total": "sum of data.amount in order_line_added",
}


def test_the_lineage_leads_to_a_read_model_and_what_its_columns_are_computed_from(
    page: Page, picture: Callable[[str], None]
) -> None:
    page.get_by_role("link", name="Lineage").click()
    expect(page.get_by_text("Global asset lineage")).to_be_visible()
    for group in GROUPS:
        expect(page.get_by_text(group, exact=True).first).to_be_visible()
    picture("lineage")

    # the box of the group, not its line in the list beside it
    page.get_by_text("read_models", exact=True).last.click()
    page.get_by_text("orders", exact=True).last.click()
    expect(page.get_by_role("heading", name="read_models / orders")).to_be_visible()
    page.get_by_role("link", name="View in Asset Catalog").click()

    expect(page.get_by_text("One row per order: where it stands and what it is worth.")).to_be_visible()
    for column, said in COLUMNS.items():
        expect(page.get_by_role("row", name=column).get_by_role("cell", name=said)).to_be_visible()
    picture("read-model")

    page.get_by_role("tab", name="Lineage").click()
    for upstream in ("view_events", "event_log"):
        expect(page.get_by_text(upstream, exact=True).first).to_be_visible()
