"""The past of a read model: as of a moment beside a rebuild of the same events, a diff, a look at the whole store."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.event_store.bench import Database
from benchmarks.spark.bench import ORDERS, Bench, Measured, Memory, Result
from benchmarks.spark.drains import drained
from benchmarks.spark.failing import seconds_of
from benchmarks.spark.rebuilds import WARM, rebuild_cpu
from millrace.resources.consumption.as_of import build_as_of
from millrace.resources.consumption.diff import diff_with_serving
from millrace.resources.event_store import EventStore, LogMark
from millrace.resources.read_models.declared.words import last
from millrace.resources.read_models.stored.past import remove_now
from millrace.resources.verification.looks import Report, Watcher, look_at_log, look_at_views
from millrace.resources.verification.models import look_at_models

MOST = 1.05
CHANGED = replace(ORDERS, columns={**ORDERS.columns, "customer_id": last("data.customer_id")})


def of_a_model(bench: Bench) -> list[Result]:
    """CPU of all processes, and seconds on the clock."""
    results: list[Result] = []
    for events in bench.sizes:
        log = bench.log(events)
        drained(bench, log)
        with log.connect() as connection:
            mark = EventStore(connection).mark_log("a benchmark")
        measures = [partial(as_of_cpu, bench, log, mark), partial(rebuild_cpu, bench, log, events, None)]
        for _ in range(WARM):
            for measure in measures:
                measure()
        ours, rebuilt = bench.in_turn(*measures)
        what = f"as of a moment of {events:,} events; a rebuild"
        target = MOST if events == bench.sizes[-1] else None
        results.append(
            Result(what, ours, rebuilt, "CPU s", ratio=ours.value / rebuilt.value, target=target, at_most=True)
        )
        for name, work in (("diff", diff), ("verify", verify)):
            clock: list[float] = []
            (cpu,) = bench.in_turn(partial(timed_cpu, bench, partial(work, bench, log), clock))
            results += [
                Result(f"{name}, {events:,} events", cpu, unit="CPU s"),
                Result("  on the clock", Measured(median(clock), Memory()), unit="s"),
            ]
    return results


def as_of_cpu(bench: Bench, log: Database, mark: LogMark) -> float:
    """Build a model as of a moment and return for how many seconds all processes were on a CPU; then remove it."""
    before = seconds_of(bench)
    built = build_as_of(log.dsn, ORDERS, lambda: bench.spark, mark)
    seconds = seconds_of(bench).since(before).all
    with log.connect() as connection:
        remove_now(connection, built.name)
    return seconds


def timed_cpu(bench: Bench, work: Callable[[], object], clock: list[float]) -> float:
    """Do something and return for how many seconds all processes were on a CPU; note those on the clock."""
    before, began = seconds_of(bench), time.perf_counter()
    work()
    clock.append(time.perf_counter() - began)
    return seconds_of(bench).since(before).all


def diff(bench: Bench, log: Database) -> None:
    """Compare a declaration that changes rows of one column."""
    compared = diff_with_serving(log.dsn, CHANGED, lambda: bench.spark)
    with log.connect() as connection:
        remove_now(connection, compared.name)


def verify(bench: Bench, log: Database) -> None:
    """Look at the log, its views, and one log partition of the model."""
    report, watcher = Report(), Watcher()
    with log.connect() as connection:
        look_at_log(connection, report, watcher)
        look_at_views(connection, report, watcher)
        look_at_models(log.dsn, connection, [ORDERS], lambda: bench.spark, report, watcher, archive=Path("none"))
    if report.found or report.passed_over or report.models != 1:
        raise RuntimeError(f"Something is wrong: {report}")
