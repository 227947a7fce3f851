"""The delay from the commit in the source to the event, while a capture drains; both times are of one clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
from threading import Event

import psycopg

from benchmarks.event_store.bench import Result
from benchmarks.event_store.workers import Worked, begin, run_together
from benchmarks.ingest.bench import Costs, IngestBench
from benchmarks.ingest.sources import Pipeline, new_pipeline, require_all
from millrace.capture.drain import CaptureReport
from millrace.capture.source.connection import connect_source

# transactions per second, and changes of each
LOADS = ((20, 1), (200, 1), (200, 10), (2000, 1))
# loads that also run beside an open transaction on the source, and the rows of that transaction
BESIDE = ((200, 1), (2000, 1))
OPEN_ROWS = 700_000
# seconds without a change until the capture gives up
IDLE_S = 60.0


def delays(bench: IngestBench) -> list[Result]:
    """Measure each load of transactions per second: median and 99 % of the delay, and all CPU per change."""
    results = []
    for (per_second, rows), beside in [*((load, 0) for load in LOADS), *((load, OPEN_ROWS) for load in BESIDE)]:
        number = per_second * bench.size(20, 1)
        pipeline = new_pipeline(bench)
        costs = Costs(bench, number * rows)
        with opened(pipeline, bench.size(beside, beside // 100)):
            costs.of(
                partial(
                    run_together,
                    [partial(write, pipeline, number, per_second, rows), partial(capture, pipeline, number * rows)],
                )
            )
        found = [float(str(delay)) * 1000 for (delay,) in pipeline.store.run(DELAYS)]
        load = f"{per_second:,} transactions/s of {rows}" + (f" beside an open one of {beside:,}" if beside else "")
        for what, part in (("median", median), ("99 %", last_percent)):
            results.append(Result(f"commit to event, {load}, {what} of {len(found):,}", part(found), unit="ms"))
        results += costs.results(f"commit to event, {load}", "us/change")
    return results


def last_percent(values: list[float]) -> float:
    """Return the value that 99 % of the values do not exceed."""
    return quantiles(values, n=100, method="inclusive")[98]


@contextmanager
def opened(pipeline: Pipeline, rows: int) -> Iterator[None]:
    """Keep a transaction with `rows` rows of an uncaptured table open on the source."""
    with psycopg.connect(pipeline.source) as connection:
        connection.execute("create table others (n int, text text)")
        connection.commit()
        connection.execute("insert into others select n, repeat('x', 100) from generate_series(1, %s) n", (rows,))
        yield
        connection.rollback()


DELAYS = """
select extract(epoch from created_at - (data ->> 'committed_at')::timestamptz)
from event_store.events
where decider = 'table:public.items'
"""


def write(pipeline: Pipeline, number: int, per_second: int, rows: int) -> Worked:
    """Commit `number` transactions of `rows` inserts each, `per_second` in a second."""
    with connect_source(pipeline.source) as connection:
        began = begin()
        for n in range(number):
            time.sleep(max(0.0, began + n / per_second - time.monotonic()))
            connection.execute(
                "insert into items select %s + n, 'customer-17', 19.90, false, null, clock_timestamp() from generate_series(1, %s) n",
                (n * rows, rows),
            )
    return Worked(began, time.monotonic(), {})


def capture(pipeline: Pipeline, number: int) -> Worked:
    """Capture until all changes came, even if the writer is late."""
    all_came = Event()

    def check(report: CaptureReport) -> None:
        if report.emitted >= number:
            all_came.set()

    with pipeline.capturing() as process:
        began = begin()
        require_all(process.drain(budget_s=600, idle_s=IDLE_S, stop=all_came, on_step=check), number)
    return Worked(began, time.monotonic(), {})
