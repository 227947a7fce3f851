"""Measures how soon a row has a rare event on a whole platform: `millrace new`, `millrace up`, an event now and then.

Prints the seconds from an append to its row, for rare events and for one each second, and the platform's CPU and memory
while nothing happens. With several views each one consumes every event; the row is that of the first one.

    python -m benchmarks fresh [--events 20] [--pause 45] [--idle 60] [--views 1]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg

from millrace.platform_defs.local.services import free_port
from millrace.postgres.embedded import EmbeddedPostgres

PROGRAMS = Path(sys.executable).parent
PATIENCE_S = 300
GLANCE_S = 0.01
TRICKLE = 60
APPEND = "select event_store.append_event('order_placed', %s, 'order', %s, %s, %s, null, v_expected_version => -1)"


def up(folder: Path, views: int) -> subprocess.Popen[bytes]:
    """Make a repository with copies of its read model, and start its platform."""
    subprocess.run([PROGRAMS / "millrace", "new", folder], check=True, capture_output=True)
    model = folder / folder.name / "read_models" / "orders.py"
    for number in range(2, views + 1):
        text = model.read_text().replace('"orders"', f'"orders_{number}"').replace("Orders", f"Orders{number}")
        model.with_stem(f"orders_{number}").write_text(text)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")},
        "MILLRACE_PORT": str(free_port()), "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([PROGRAMS / "millrace", "up"], cwd=folder, env=env, stdout=log, stderr=log)


def connected(folder: Path, process: subprocess.Popen[bytes], views: int) -> psycopg.Connection:
    """Wait until the store answers and each read model has a drain; return a connection."""
    dsn = EmbeddedPostgres(folder / ".millrace" / "postgres").dsn("millrace")
    deadline = time.monotonic() + PATIENCE_S
    attached = (
        "select count(distinct view) from event_store.consumers, event_store.deciders"
        " where view like 'orders%' and event = 'order_placed'"
    )
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(psycopg.Error):
            connection = psycopg.connect(dsn, autocommit=True)
            if connection.execute(attached).fetchall() == [(views,)]:
                return connection
            connection.close()
        time.sleep(1)
    raise RuntimeError(f"No drain of all read models began: {(folder / 'log').read_text()[-2000:]}")


def seconds_to_row(connection: psycopg.Connection) -> float:
    """Append an event of a new stream; return the seconds until its row can be read."""
    order = f"order-{uuid4()}"
    data = json.dumps({"channel": "web"})
    connection.execute(APPEND, (uuid4(), order, data, uuid4()))
    began = time.monotonic()
    while not connection.execute("select from read_models.orders where order_id = %s", (order,)).fetchall():
        if time.monotonic() - began > PATIENCE_S:
            raise RuntimeError("The row did not come.")
        time.sleep(GLANCE_S)
    return time.monotonic() - began


def cost(process: psutil.Process) -> tuple[float, float]:
    """Return the seconds of CPU of a platform so far, and the megabytes of its processes (PSS)."""
    cpu = megabytes = 0.0
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            cpu += times.user + times.system
            megabytes += one.memory_full_info().pss / 1e6
    return cpu, megabytes


def main() -> None:
    """Print each line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=20, help="how many rare events")
    options.add_argument("--pause", type=float, default=45, help="seconds between two of them")
    options.add_argument("--idle", type=float, default=60, help="seconds of rest in which the cost is measured")
    options.add_argument("--views", type=int, default=1, help="how many read models")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-fresh-") as made:
        folder = Path(made) / "fresh_platform"
        process = up(folder, given.views)
        try:
            with connected(folder, process, given.views) as connection:
                time.sleep(given.pause)
                print(
                    f"first event, {given.pause:.0f} s after the start: {seconds_to_row(connection):.2f} s", flush=True
                )
                for name, number, pause_s in [("rare", given.events, given.pause), ("trickle", TRICKLE, 1.0)]:
                    times = []
                    for _ in range(number):
                        time.sleep(pause_s)
                        times.append(seconds_to_row(connection))
                    print(
                        f"{name}, one event each {pause_s:.0f} s: median {statistics.median(times):.2f} s,"
                        f" worst of {number} {max(times):.2f} s",
                        flush=True,
                    )
                before, _ = cost(psutil.Process(process.pid))
                time.sleep(given.idle)
                after, megabytes = cost(psutil.Process(process.pid))
                print(f"nothing to do: {(after - before) / given.idle:.3f} cores, {megabytes:.0f} MB", flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


if __name__ == "__main__":
    main()
