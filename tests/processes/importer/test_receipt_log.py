"""A real log as a new user takes it: imported by the command, then own read models, built by drains that get killed.

What the read models must hold is computed from the file by Python's csv module.
"""

import csv
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import psycopg

from millrace import count, field, last, max_, min_, read_model, stream_id
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.settings import PROJECT
from millrace.resources.spark import spark_session
from tests.support.factories import Connect, rows, value
from tests.support.patience import patience, wait_until

EVENTS, STREAMS, KINDS = 8_577, 1_434, 27
COLUMNS = (
    "--stream",
    "case:concept:name",
    "--event",
    "concept:name",
    "--time",
    "time:timestamp",
    "--decider",
    "permit",
)
BATCH_EVENTS = 1_000
LEASE_S = 2
# longer than the lease of a killed drain, so that the last one takes it over
IDLE_S = 3 * LEASE_S
DRAIN = "import sys; from tests.processes.importer.test_receipt_log import drain; drain(sys.argv[1])"


@read_model(view="receipt_cases", deciders=["permit"], key=["case_id"])
class ReceiptCases:
    """One row per permit application: how long it took and where it stands."""

    case_id = stream_id()
    events = count()
    begun_at = min_("data.time:timestamp", type="timestamp")
    ended_at = max_("data.time:timestamp", type="timestamp")
    status = last("event")
    handled_by = last("data.org:group")


@read_model(view="receipt_events", deciders=["permit"], key=["event"])
class ReceiptEvents:
    """One row per kind of event, over all applications."""

    event = field("event")
    occurrences = count()


# mypy does not see that the decorator makes it another type
MODELS = cast("tuple[ReadModel, ...]", (ReceiptCases, ReceiptEvents))


def drain(dsn: str) -> None:
    """Drain both models at once until nothing is left; runs in a process of its own."""
    with spark_session() as spark:

        def one(number: int) -> None:
            with Consumer.open(
                dsn, MODELS[number], lambda: spark, f"process {os.getpid()}", lease_s=LEASE_S
            ) as consumer:
                consumer.drain(budget_s=patience(), idle_s=IDLE_S, batch_events=BATCH_EVENTS)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(MODELS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def import_log(dsn: str, log: Path) -> dict[str, int]:
    """Import by the installed command and return the counts that it reports."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "millrace"), "import", str(log), *COLUMNS],
        env={**os.environ, "MILLRACE_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.strip(): int(n.replace(",", "")) for name, n in re.findall(r"│ ([a-z ]+) +│ +([\d,]+) │", done.stdout)}


def test_read_models_of_the_log_are_right_after_drains_that_were_killed(
    dsn: str, receipt_log: Path, connect: Connect, spark_remote: str
) -> None:
    imported = import_log(dsn, receipt_log)
    assert (imported["rows"], imported["appended"], imported["rejected"]) == (EVENTS, EVENTS, 0)
    assert (imported["streams that begin here"], imported["kinds of events"]) == (STREAMS, KINDS)
    observer = connect()
    dice = random.Random(1)
    whole = EVENTS * len(MODELS)
    for threshold in sorted(dice.randrange(whole // 20, whole * 9 // 10) for _ in range(3)):
        with start_drain(dsn, spark_remote) as process:
            wait_for_progress(observer, threshold, process)
            # anywhere in a batch, not only right after the commit that was waited for
            time.sleep(dice.uniform(0, 1))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    assert progress(observer) < whole
    with start_drain(dsn, spark_remote) as process:
        assert process.wait(patience()) == 0
    assert progress(observer) == whole
    cases = rows(observer, "select * from read_models.receipt_cases")
    assert Counter(cases) == Counter(expected_cases(receipt_log))
    assert Counter(rows(observer, "select * from read_models.receipt_events")) == Counter(expected_events(receipt_log))


def start_drain(dsn: str, spark_remote: str) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "SPARK_REMOTE": spark_remote}
    return subprocess.Popen([sys.executable, "-c", DRAIN, dsn], cwd=PROJECT, env=env)


def progress(observer: psycopg.Connection) -> int:
    """Return how many positions both views have behind them."""
    return int(value(observer, "select coalesce(sum(position), 0) from event_store.checkpoints"))


def wait_for_progress(observer: psycopg.Connection, threshold: int, process: "subprocess.Popen[bytes]") -> None:
    def is_there() -> bool:
        assert process.poll() is None, "the drain ended by itself"
        return progress(observer) >= threshold

    wait_until(is_there, f"the drain comes to {threshold}")


def read(log: Path) -> list[dict[str, str]]:
    with log.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def expected_cases(log: Path) -> list[tuple[Any, ...]]:
    cases: dict[str, list[dict[str, str]]] = {}
    for row in read(log):
        cases.setdefault(row["case:concept:name"], []).append(row)
    return [
        (
            case,
            len(own),
            min(datetime.fromisoformat(row["time:timestamp"]) for row in own),
            max(datetime.fromisoformat(row["time:timestamp"]) for row in own),
            own[-1]["concept:name"],
            next((row["org:group"] for row in reversed(own) if row["org:group"]), None),
        )
        for case, own in cases.items()
    ]


def expected_events(log: Path) -> list[tuple[Any, ...]]:
    return list(Counter(row["concept:name"] for row in read(log)).items())
