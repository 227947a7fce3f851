"""A schedule is run now, not at its time, and its run succeeds."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.walks.clicks import DONE_MS


def test_a_schedule_is_run_now_and_its_run_is_seen_to_succeed(page: Page, picture: Callable[[str], None]) -> None:
    page.get_by_role("link", name="Automation").click()
    page.get_by_role("link", name="report_event_store").click()
    expect(page.get_by_text("Every hour: the schema is current")).to_be_visible()

    page.get_by_role("button", name="Preview tick result").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Continue").click()
    launch = dialog.get_by_role("button", name="Launch all & commit tick result")
    expect(launch).to_be_enabled()
    expect(dialog).to_contain_text("apply_schema")
    picture("schedule-now")
    launch.click()

    # the UI goes to the list of runs, with the one that was launched
    expect(page.get_by_text("Run id is")).to_be_visible()
    expect(page.get_by_role("link", name="report_event_store")).to_be_visible()
    expect(page.get_by_text("Success", exact=True)).to_be_visible(timeout=DONE_MS)
