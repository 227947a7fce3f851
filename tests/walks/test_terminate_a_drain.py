"""A drain that waits is terminated on its page, and the leases that it held are free at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from playwright.sync_api import Page, TimeoutError, expect  # noqa: A004 - its own

from tests.support.running.deployment import RUN_S, Deployment, until
from tests.walks.clicks import DONE_MS
from tests.walks.conftest import shop

RUNNING = """
query { runsOrError(filter: {statuses: [STARTED], tags: [{key: "millrace/view", value: "shipments"}]}) {
  ... on Runs { results { runId } } } }
"""

AT_ONCE_S = 15


@contextmanager
def table_in_use(platform: Deployment) -> Iterator[None]:
    """Keep everybody from writing into the table of a read model, as a long transaction of somebody else may."""
    with psycopg.connect(platform.dsn) as other:
        other.execute("lock table read_models.shipments in exclusive mode")
        yield
        other.rollback()


def test_a_terminated_drain_gives_its_leases_back_at_once(
    page: Page, platform: Deployment, picture: Callable[[str], None]
) -> None:
    with table_in_use(platform):
        shop(platform, 200)
        page.get_by_role("link", name="Runs").click()
        # the drain of all views leaves this one, which gets a run of its own
        expect(page.get_by_text("millrace/view: shipments").first).to_be_visible(timeout=DONE_MS)
        (run,) = until(lambda: platform.ask(RUNNING)["results"], lambda runs: len(runs) == 1, RUN_S)
        leases = f"select count(*) from event_store.checkpoints where lease_owner = '{run['runId']}'"
        until(lambda: platform.rows(leases)[0][0], bool, RUN_S)

        page.get_by_role("link", name=run["runId"][:8]).click()
        page.get_by_role("button", name="Terminate").click()
        dialog = page.get_by_role("dialog")
        picture("terminate")
        dialog.get_by_role("button", name="Terminate 1 run").click()
        # the page draws itself anew when the run ends, and may close the dialog by itself
        with suppress(TimeoutError):
            dialog.get_by_role("button", name="Done").click(timeout=5000)
        expect(page.get_by_text("Canceled", exact=True).first).to_be_visible()
        # the table is in use as before; the page may say it before the process has gone, and a lease lasts a minute
        until(lambda: platform.rows(leases)[0][0], lambda held: held == 0, AT_ONCE_S)
