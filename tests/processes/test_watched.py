"""Each process of a whole `millrace up` is killed and paused under appends, and all of it comes back by itself.

Not here: the supervisor's own cases (`platform_defs/local/test_supervisor.py`).
"""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from millrace.platform_defs.local.supervisor import services_down
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.processes import alive
from tests.support.patience import wait_until
from tests.support.running.deployment import Deployment, started, until

OURS = ("spark", "sequence", "code", "web", "daemon", "simulate", "crm")
# rows that one has and the other has not, in both directions; of one moment, for appends go on until the simulators end
MODELS = {
    "orders": """
        select decider_id, count(*) filter (where event = 'order_line_added'),
          sum((data->>'amount')::numeric(18,2)) filter (where event = 'order_line_added'), min(created_at),
          (array_agg(event order by "offset" desc))[1]
        from event_store.events where decider = 'order' group by decider_id
        """,
    "shipments": """
        select decider_id, (array_agg(data->>'order_id' order by "offset"))[1], bool_or(final), max(created_at)
        from event_store.events where decider = 'shipment' group by decider_id
        """,
    "customers": """
        select data->>'customer_id', count(*) filter (where event = 'order_placed'),
          sum((data->>'amount')::numeric(18,2)) filter (where event = 'payment_received'), max(created_at)
        from event_store.events where decider in ('order', 'payment') and data ? 'customer_id' group by 1
        """,
    "crm_customer_history": """
        select decider_id, "offset", event, data->'record'->>'name'
        from event_store.events where decider = 'table:public.customers'
        """,
}
COLUMNS = {
    "orders": "order_id, lines, total, placed_at, status",
    "shipments": "shipment_id, order_id, delivered, changed_at",
    "customers": "customer_id, orders, paid, last_seen_at",
    "crm_customer_history": "record_key, seq, action, name",
}


@pytest.fixture
def home() -> Iterator[Path]:
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-watched-") as folder:
        yield Path(folder) / "home"


@pytest.mark.timeout(1800)
def test_whatever_is_killed_or_paused_comes_back_and_no_row_is_wrong(home: Path) -> None:
    with started(home) as platform:
        wait_until_drained(platform)
        for name in OURS:
            leader = leaders(home)[name]
            leader.kill()
            wait_until(lambda: not alive(leader), f"{name} is dead")  # noqa: B023
        # what holds the definitions, and its proxy lives
        until(lambda: [*services_down(home)], lambda down: not down)
        (child,) = [each for each in leaders(home)["code"].children() if "grpc" in each.cmdline()]
        child.kill()
        (postgres := server(home)).kill()
        wait_until(lambda: not alive(postgres), "Postgres is dead")
        wait_until(lambda: not alive(leaders(home).get("code", child)), "the code server is given up")
        wait_until_drained(platform)
        # as when a laptop sleeps: each process as it is just now, runs and all that they started
        up = psutil.Process(platform.process.pid)
        tree = [up, *up.children(recursive=True), server(home), *server(home).children()]
        for process in tree:
            pause(process)
        for process in tree:
            resume(process)
        wait_until_drained(platform)
        # and never resumed: each is ended
        hung = [*leaders(home).values(), server(home)]
        for process in hung:
            pause(process)
        for process in hung:
            wait_until(lambda: not alive(process), f"{process} is ended")  # noqa: B023
        wait_until_drained(platform)
        for name in ("simulate", "crm"):
            leaders(home)[name].suspend()
        for model in MODELS:
            assert until(lambda: wrong_rows(platform, model), lambda wrong: wrong == []) == []  # noqa: B023
        platform.stop()


def leaders(home: Path) -> dict[str, psutil.Process]:
    """Return the first process of each service that runs."""
    found = {}
    for record in (home / "run").glob("*.json"):
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            found[record.stem] = psutil.Process(json.loads(record.read_text())["pid"])
    return found


def server(home: Path) -> psutil.Process:
    pid = EmbeddedPostgres(home / "postgres").pid()
    assert pid is not None
    return psutil.Process(pid)


def wait_until_drained(platform: Deployment) -> None:
    """Wait until all services are up, and an event that is appended from now on is in a read model."""
    until(lambda: services_down(platform.home), lambda down: not down)
    newest = until(lambda: platform.rows("select max(created_at) from event_store.events")[0][0], bool)
    until(
        lambda: platform.rows("select max(placed_at) from read_models.orders")[0][0],
        lambda seen: seen is not None and seen > newest,
    )


def wrong_rows(platform: Deployment, model: str) -> list[tuple[Any, ...]]:
    shown, expected = f"select {COLUMNS[model]} from read_models.{model}", MODELS[model]
    return platform.rows(f"(({shown}) except all ({expected})) union all (({expected}) except all ({shown}))")


def pause(process: psutil.Process) -> None:
    send(process, signal.SIGSTOP)


def resume(process: psutil.Process) -> None:
    send(process, signal.SIGCONT)


def send(process: psutil.Process, what: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(what)
