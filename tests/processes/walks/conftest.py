"""One platform and one browser for all walks, a page for each, and the pictures that they take."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import cast
from uuid import uuid4

import psycopg
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from millrace import EventStore, NewEvent
from millrace.examples.shop.simulator import simulate
from millrace.examples.shop.subscriptions.unpaid_orders import UnpaidOrders
from millrace.handlers.declaration import Subscription
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.testing import given
from tests.support.browsing.browser import found_chromium
from tests.support.patience import patience
from tests.support.running.deployment import Deployment, started, until
from tests.support.running.shop import PACKAGE, own_shop

MODELS = ("orders", "payments", "revenue", "shipments", "customers", "crm_customers", "crm_customer_history")
SIZE: ViewportSize = {"width": 1280, "height": 800}
# the example of docs/your_own_repository.md
SUNDAYS = """
import dagster as dg


@dg.schedule(job_name="rebuild", cron_schedule="0 5 * * 0", description="All read models, on Sundays.")
def rebuild_on_sundays():
    all_of_them = {"dagster/asset_partition_range_start": "p00", "dagster/asset_partition_range_end": "p15"}
    return dg.RunRequest(tags=all_of_them)
"""
TIMES = pytest.StashKey[dict[str, float]]()
CLICKS = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        metavar="DIR",
        type=Path,
        help="keep the pictures of the walks in DIR; otherwise they go with the other temporary files",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TIMES] = {}
    config.stash[CLICKS] = Counter()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for what, seconds in config.stash[TIMES].items():
        terminalreporter.write_line(f"{seconds:6.2f} s  {what}")
    for walk, clicks in config.stash[CLICKS].items():
        terminalreporter.write_line(f"{clicks:3} clicks  {walk}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the Chromium that is installed; skip without one, before anything else is started."""
    program = found_chromium()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def pictures(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = pytestconfig.getoption("screenshots", None) or tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def project() -> Iterator[Path]:
    """Make a folder with the shop as a user's own package, which has a schedule."""
    with TemporaryDirectory(prefix="millrace-walks-") as folder:
        schedules = own_shop(Path(folder)) / "defs"
        (schedules / "sundays.py").write_text(SUNDAYS)
        yield Path(folder)


@pytest.fixture(scope="session")
def platform(project: Path) -> Iterator[Deployment]:
    """Run `millrace up` in that folder, with some orders and customers; stop it at the end."""
    declared = {"MILLRACE_DECLARATIONS": PACKAGE, "MILLRACE_SIMULATE": "off"}
    with started(project / ".millrace", folder=project, more=declared) as deployment:
        shop(deployment, 300)
        new_customer(deployment)
        hear(deployment)
        for model in MODELS:
            rows = f"select count(*) from read_models.{model}"
            until(lambda: deployment.rows(rows)[0][0], bool)  # noqa: B023
        yield deployment
        deployment.stop()


@pytest.fixture
def page(browser: Browser, platform: Deployment, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open the start page, as a first visitor does, and count the clicks."""
    clicks = request.config.stash[CLICKS]
    with browser.new_context(base_url=platform.url, viewport=SIZE) as context:
        context.expose_function("clicked", lambda: clicks.update([request.node.name]))
        context.add_init_script("addEventListener('click', clicked, true)")
        seen_ms = 1000 * patience()
        expect.set_options(timeout=seen_ms)
        context.set_default_timeout(seen_ms)
        page = context.new_page()
        page.goto("/")
        # once it knows the jobs, the start page redirects here, even after a click elsewhere
        expect(page.get_by_role("tab", name="Timeline")).to_be_visible()
        yield page


@pytest.fixture
def picture(page: Page, pictures: Path) -> Callable[[str], None]:
    def take(name: str) -> None:
        # the mouse points at nothing
        page.mouse.move(0, 0)
        page.screenshot(path=pictures / f"{name}.png", animations="disabled")

    return take


@pytest.fixture
def timed(pytestconfig: pytest.Config) -> Callable[[str], object]:
    """Return a context that measures a duration; the run prints it at the end."""

    @contextmanager
    def note(what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        pytestconfig.stash[TIMES][what] = time.perf_counter() - began

    return note


def shop(deployment: Deployment, events: int) -> None:
    simulate(deployment.dsn, rate=None, events=events, stop=Event())


def hear(deployment: Deployment) -> None:
    """Let the shop's process hear the orders, and one of them wait for its payment for longer than the walks take."""
    given(dsn=deployment.dsn).when(cast("Subscription", UnpaidOrders))
    with psycopg.connect(deployment.dsn, autocommit=True) as connection:
        waits = NewEvent("payment_overdue")
        EventStore(connection).schedule("process:unpaid_orders", "o", waits, name="pay", after=timedelta(days=1))


def new_customer(deployment: Deployment) -> str:
    """Add a customer to the database that is captured, and return its name."""
    name = f"somebody {uuid4()}"
    with psycopg.connect(EmbeddedPostgres(deployment.home / "postgres").dsn("crm"), autocommit=True) as crm:
        crm.execute("insert into customers (name) values (%s)", (name,))
    return name
