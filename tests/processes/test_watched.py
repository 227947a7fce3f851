"""Each process of a whole `millrace up` is killed and paused under appends, and recovers by itself."""

import json
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import alive
from tests.support.running.deployment import Deployment, started, until

OURS = ("spark", "sequence", "code", "web", "daemon")
# Spark's timeouts of minutes take seconds here: a longer pause is like one of a night.
SHORT = """
spark.network.timeout 3s
spark.network.timeoutInterval 1s
spark.executor.heartbeatInterval 1s
spark.rpc.askTimeout 120s
"""
PAUSE_S = 8
# services without a `ready` function
SIMULATORS = ("unpaid", "simulate", "crm")
# compared with the model in both directions, at one moment: appends continue until the simulators end
MODELS = {
    "orders": """
        select decider_id, count(*) filter (where event = 'order_line_added'),
          coalesce(sum((data->>'amount')::numeric(18,2)) filter (where event = 'order_line_added'), 0), min(created_at),
          (array_agg(event order by "offset" desc))[1]
        from event_store.events where decider = 'order' group by decider_id
        """,
    "shipments": """
        select decider_id, (array_agg(data->>'order_id' order by "offset"))[1], bool_or(final), max(created_at)
        from event_store.events where decider = 'shipment' group by decider_id
        """,
    "customers": """
        select coalesce(data->>'customer_id', decider_id), max(data->>'name'),
          count(*) filter (where event = 'order_placed'),
          coalesce(sum((data->>'amount')::numeric(18,2)) filter (where event = 'payment_received'), 0), max(created_at)
        from event_store.events where decider = 'customer' or decider in ('order', 'payment') and data ? 'customer_id'
        group by 1
        """,
    "crm_customer_history": """
        select decider_id, "offset", event, data->'record'->>'name'
        from event_store.events where decider = 'table:public.customers'
        """,
}
COLUMNS = {
    "orders": "order_id, lines, total, placed_at, status",
    "shipments": "shipment_id, order_id, delivered, changed_at",
    "customers": "customer_id, name, orders, paid, last_seen_at",
    "crm_customer_history": "record_key, seq, action, name",
}


@pytest.fixture
def home() -> Iterator[Path]:
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-watched-") as folder:
        yield Path(folder) / "home"


@pytest.mark.timeout(1800)
def test_whatever_is_killed_or_paused_comes_back_and_no_row_is_wrong(home: Path) -> None:
    home.mkdir()
    (home / "spark-defaults.conf").write_text(SHORT)
    with started(home, more={"SPARK_CONF_DIR": str(home)}) as platform:
        wait_until_drained(platform, ())
        killed = [*services(home).values(), server(home)]
        for process in killed:
            process.kill()
        wait_until_drained(platform, killed)
        # as a laptop sleeps: every process with all its children is paused
        up = psutil.Process(platform.process.pid)
        asleep = [up, *up.children(recursive=True), server(home), *server(home).children()]
        spark = services(home)["spark"]
        for process in asleep:
            send(process, signal.SIGSTOP)
        began = time.monotonic()
        until(time.monotonic, lambda now: now > began + PAUSE_S)
        for process in asleep:
            send(process, signal.SIGCONT)
        wait_until_drained(platform, ())
        # Spark continues by itself, still warm
        assert services(home)["spark"] == spark
        # now none recovers by itself; of the code server the child with the definitions is dead, and its proxy lives
        given_up = [*(services(home)[name] for name in OURS), server(home)]
        code = services(home)["code"]
        (definitions,) = [each for each in code.children() if "grpc" in each.cmdline()]
        definitions.kill()
        for process in given_up:
            if process != code:
                send(process, signal.SIGSTOP)
        wait_until_drained(platform, given_up)
        for name in SIMULATORS:
            send(services(home)[name], signal.SIGSTOP)
        for model in MODELS:
            assert until(lambda: wrong_rows(platform, model), lambda wrong: wrong == []) == []  # noqa: B023
        platform.stop()


def services(home: Path) -> dict[str, psutil.Process]:
    found = {}
    for state in json.loads((home / "services.json").read_text())["services"]:
        # a process that just ended may still be listed
        with suppress(psutil.NoSuchProcess):
            if state["state"] == "ready":
                found[state["name"]] = psutil.Process(state["pid"])
    return found


def server(home: Path) -> psutil.Process:
    pid = EmbeddedPostgres(home / "postgres").pid()
    assert pid is not None
    return psutil.Process(pid)


def wait_until_drained(platform: Deployment, ended: Collection[psutil.Process]) -> None:
    """Wait until these have ended, all services are up, and an event that is then appended is in a read model."""
    until(lambda: [process for process in ended if alive(process)], lambda living: not living)
    until(
        lambda: services(platform.home),
        lambda ready: set(ready) == {*OURS, *SIMULATORS} and not {*ready.values()} & {*ended},
    )
    newest = until(lambda: platform.rows("select max(created_at) from event_store.events")[0][0], bool)
    until(
        lambda: platform.rows("select max(placed_at) from read_models.orders")[0][0],
        lambda seen: seen is not None and seen > newest,
    )


def wrong_rows(platform: Deployment, model: str) -> list[tuple[Any, ...]]:
    shown, expected = f"select {COLUMNS[model]} from read_models.{model}", MODELS[model]
    return platform.rows(f"(({shown}) except all ({expected})) union all (({expected}) except all ({shown}))")


def send(process: psutil.Process, what: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(what)
