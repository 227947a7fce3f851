"""The page with a live table, in a real Chromium: `EventSource` alone."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from tests.streams.support import Rows, token_of
from tests.support.browsing.browser import found_chromium
from tests.support.factories import Connect
from tests.support.patience import patience


@pytest.fixture
def page() -> Iterator[Page]:
    """Open an empty page in the Chromium that is installed."""
    program = found_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 420, "height": 800}, color_scheme="dark")
        browser.close()


def test_the_page_shows_rows_as_they_come_change_and_are_replaced(page: Page, dsn: str, connect: Connect) -> None:
    expect.set_options(timeout=patience() * 1000)
    rows = Rows(connect())
    with serving_streams(Followers(dsn), "127.0.0.1", 0) as port:
        page.goto(f"http://127.0.0.1:{port}/#by_day")
        page.get_by_placeholder("token").fill("mrs_nonsense")
        page.get_by_role("button").click()
        expect(page.get_by_role("status")).to_contain_text("millrace streams token add")
        page.get_by_placeholder("token").fill(token_of(dsn))
        page.get_by_role("button").click()
        expect(page.get_by_role("row")).to_have_count(2)
        hostile = "<img src=x onerror=alert(1)>"
        for day in ("mon", hostile, "mon"):
            rows.merge(day)
            rows.sequence()
        expect(page.get_by_role("row", name="mon")).to_contain_text("6")
        expect(page.get_by_text(hostile)).to_be_visible()
        rows.replace()
        rows.sequence()
        expect(page.get_by_role("row", name="replaced")).to_have_count(3)
        expect(page.get_by_role("status")).to_contain_text("3 rows")
        page.get_by_placeholder("read model").fill("no_such")
        page.get_by_role("button").click()
        expect(page.get_by_role("status")).to_contain_text("may not select from a read model 'no_such'")
