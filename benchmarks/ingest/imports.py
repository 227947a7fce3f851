"""Importing a file by `millrace import`: rows per second beside the sequencer, and the cost of a row on both sides.

The file has the seven columns and the sizes of a real event log: overlapping streams of about twenty events.
"""

import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.workers import sequencing

ROWS = 262_200
TARGET = 20_000
HEADER = (
    "case:concept:name",
    "concept:name",
    "time:timestamp",
    "org:resource",
    "lifecycle:transition",
    "case:AMOUNT_REQ",
    "case:REG_DATE",
)
EVENTS_PER_STREAM = 20
OVERLAP = 40
COMMAND = "import sys; from millrace.platform_defs.cli import main; sys.argv[0] = 'millrace'; main()"


def rate(bench: Bench) -> list[Result]:
    """Measure imports of a whole log and of a tenth of it, each under a new name, into one store."""
    database = bench.ours()
    rows = bench.size(ROWS, 2000)
    costs = Costs(bench, database)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, sequencing(database):
        whole, tenth = Path(folder) / "whole.csv", Path(folder) / "tenth.csv"
        for file, number in ((whole, rows), (tenth, rows // 10)):
            write_log(file, number)
        speed, _ = bench.in_turn(partial(costs.imported, whole, rows), partial(costs.imported, tenth, rows // 10))
    client, server, memory = costs.median(rows)
    return [
        Result(f"millrace import of {rows:,} rows", speed, TARGET, "rows/s", speed / TARGET, 1),
        Result("  CPU of the client", client, unit="us/row"),
        Result("  CPU of the server, sequencing included", server, unit="us/row"),
        Result(
            f"  peak memory, {rows:,} rows against {rows // 10:,}",
            memory,
            small := costs.median(rows // 10)[2],
            "MB",
            small / memory,
            0.9,
        ),
    ]


class Costs:
    """A database that logs are imported into, and the cost of each import."""

    def __init__(self, bench: Bench, database: Database) -> None:
        self._bench = bench
        self._database = database
        self._names = count()
        self._costs: dict[int, list[tuple[float, float, float]]] = {}

    def imported(self, file: Path, rows: int) -> float:
        """Import a file under a new name, in a separate process; return the rows per second."""
        server = of_server(self._bench.server)
        began = time.perf_counter()
        usage = run_import(self._database.dsn, file, f"log-{next(self._names)}")
        seconds = time.perf_counter() - began
        server = of_server(self._bench.server) - server
        client = usage.ru_utime + usage.ru_stime
        self._costs.setdefault(rows, []).append((client / rows * 1e6, server / rows * 1e6, usage.ru_maxrss / 1024))
        return rows / seconds

    def median(self, rows: int) -> tuple[float, float, float]:
        """Return the CPU of client and server per row, in microseconds, and the megabytes of the client."""
        client, server, memory = (sorted(values)[len(values) // 2] for values in zip(*self._costs[rows], strict=True))
        return client, server, memory


def run_import(dsn: str, file: Path, source: str) -> resource.struct_rusage:
    """Run `millrace import`; return the resources that its process used, its start included."""
    columns = ["--stream", HEADER[0], "--event", HEADER[1], "--time", HEADER[2]]
    options = ["--decider", "permit", "--source", source, "--dsn", dsn]
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "import", str(file), *columns, *options], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"The import ended with {child.returncode}.")
    return usage


def write_log(file: Path, rows: int) -> None:
    """Write a log of `rows` rows, the same one each time."""
    random = Random(rows)
    at = datetime(2024, 3, 1, 9, tzinfo=UTC)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(HEADER)
        for row in range(rows):
            at += timedelta(milliseconds=random.randrange(60_000))
            case = row // EVENTS_PER_STREAM + random.randrange(OVERLAP)
            writer.writerow(
                (
                    f"case-{case}",
                    f"step {random.randrange(24)}",
                    str(at),
                    random.choice(("", "112", "10862", "10913")),
                    random.choice(("COMPLETE", "START", "SCHEDULE")),
                    case % 100 * 500,
                    "2024-02-28 00:38:44.546000+00:00",
                )
            )
