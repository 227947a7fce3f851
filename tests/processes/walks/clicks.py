"""What several walks click on."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.patience import patience
from tests.support.running.deployment import Deployment, until

LOADED = "{ locationStatusesOrError { ... on WorkspaceLocationStatusEntries { entries { updateTimestamp } } } }"


def done_ms() -> float:
    """Return how long a page may take to show the end of a run, or of a loading of code, in milliseconds."""
    return 3000.0 * patience()


def open_read_model(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("button", name="Search").click()
    page.get_by_placeholder("Search assets").fill(name)
    page.get_by_role("link", name=f"read_models / {name} Asset").click()
    expect(page.get_by_role("tab", name="Partitions")).to_be_visible()


def reload_declarations(page: Page, platform: Deployment) -> None:
    """Reload the code location, and wait until what is declared now is loaded."""
    loaded = platform.ask(LOADED)
    page.get_by_role("link", name="Deployment").click()
    page.get_by_role("button", name=re.compile("Reload$")).click()
    # the page says it with the time of the loading, which is no text of its own
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
    """Open the newest run of a view that failed, once there is one in the list, and that is seen."""
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("tab", name="Failed").click()
    of_view = page.get_by_text(f"millrace/view: {view}").first
    expect(of_view).to_be_visible(timeout=done_ms())
    seen()
    # the list has no rows by their role: what is around both
    beside = of_view.locator("xpath=ancestor::*[.//a[starts-with(@href, '/runs/')]][1]")
    beside.get_by_role("link", name=re.compile("^run [0-9a-f]{8}$")).first.click()
    expect(page.get_by_text("Launched by poll_")).to_be_visible()
