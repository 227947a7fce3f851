"""Rebuilding a read model: from the archive against from Postgres."""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.event_store.bench import Database
from benchmarks.rebuild.bench import ORDERS, Bench, Measured, Memory, Result, seconds_of
from millrace.archive.writer import archive_partition
from millrace.drain.view_drain import ViewDrain

if TYPE_CHECKING:
    pass

# in the first rounds the JVM still compiles
WARM = 2
ENOUGH_S = 3600.0


def cpu_from_archive(bench: Bench) -> list[Result]:
    """Measure the CPU of all processes to rebuild all log partitions of a model, from the archive and from Postgres."""
    results: list[Result] = []
    for events in bench.sizes:
        log = bench.log(events)
        drained(bench, log)
        with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
            before = seconds_of(bench)
            for partition in partitions_of(log):
                archive_partition(log.dsn, Path(folder), partition, tail=True)
            writing = Measured(seconds_of(bench).since(before).all, Memory())
            measures = [partial(rebuild_cpu, bench, log, events, archive) for archive in (Path(folder), None)]
            for _ in range(WARM):
                for measure in measures:
                    measure()
            ours, live = bench.in_turn(*measures)
        target = 0.5 if events == bench.sizes[-1] else None
        what = f"rebuild from {events:,} archived events; from Postgres"
        results += [
            Result(what, ours, live, "CPU s", ratio=ours.value / live.value, target=target, at_most=True),
            Result(f"  writing the archive of {events:,} events", writing, unit="CPU s"),
        ]
    return results


def drained(bench: Bench, database: Database) -> None:
    """Drain all events."""
    with ViewDrain(database.dsn, ORDERS, lambda: bench.spark, "bench") as consumer:
        consumer.drain(budget_s=ENOUGH_S, idle_s=0)


def rebuild_cpu(bench: Bench, log: Database, events: int, archive: Path | None) -> float:
    """Rebuild all log partitions and return the seconds of CPU of all processes."""
    before = seconds_of(bench)
    rebuild_rate(bench, log, events, archive)
    return seconds_of(bench).since(before).all


def partitions_of(log: Database) -> list[int]:
    """Return the log's partitions, in order."""
    with log.connect() as connection:
        return [
            partition
            for (partition,) in connection.execute("select partition from event_store.partitions order by 1").fetchall()
        ]


def rebuild_rate(bench: Bench, log: Database, events: int, archive: Path | None = None) -> float:
    """Rebuild all log partitions and return the events per second."""
    partitions = partitions_of(log)
    with ViewDrain(log.dsn, ORDERS, lambda: bench.spark, "bench", archive=archive) as consumer:
        began = time.perf_counter()
        built = consumer.rebuild(*partitions).events
        seconds = time.perf_counter() - began
    if built != events:
        raise RuntimeError(f"{built} events were rebuilt, not {events}")
    return events / seconds
