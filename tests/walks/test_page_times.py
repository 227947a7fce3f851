"""How long the pages take that an operator looks at most; the run prints it, and asserts nothing of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from playwright.sync_api import Page, expect

PAGES = {
    "lineage": ("/asset-groups", "read_models"),
    "an asset with 16 partitions": ("/assets/read_models/orders?view=partitions", "p15"),
    "ticks of a sensor": ("/locations/__repository__@millrace/sensors/poll_orders", "View logs"),
    "runs": ("/runs", "drain_views"),
}


@pytest.mark.parametrize("what", PAGES)
def test_a_page_shows_what_it_is_opened_for(
    what: str, page: Page, timed: Callable[[str], AbstractContextManager[None]]
) -> None:
    path, content = PAGES[what]
    with timed(what):
        page.goto(path)
        expect(page.get_by_text(content, exact=True).first).to_be_visible()
