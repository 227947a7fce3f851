"""From the commit in the source to the event, while a capture drains; both times are of one machine's clock."""

import time
from functools import partial
from statistics import median

from benchmarks.event_store.bench import Result
from benchmarks.event_store.subscription import last_percent
from benchmarks.event_store.workers import Worked, begin, run_together
from benchmarks.ingest.bench import IngestBench
from benchmarks.ingest.sources import Pipeline, new_pipeline, require_all
from millrace.resources.capture.source.connection import connect_source

# transactions in a second, and changes of each
LOADS = ((20, 1), (200, 1), (200, 10), (2000, 1))
# without a change, until the capture ends
IDLE_S = 2.0


def delays(bench: IngestBench) -> list[Result]:
    """So many transactions per second of so many inserts; median and 99 %."""
    results = []
    for per_second, rows in LOADS:
        number = per_second * bench.size(20, 1)
        pipeline = new_pipeline(bench)
        run_together([partial(write, pipeline, number, per_second, rows), partial(capture, pipeline, number * rows)])
        found = [float(str(delay)) * 1000 for (delay,) in pipeline.store.run(DELAYS)]
        for what, part in (("median", median), ("99 %", last_percent)):
            results.append(
                Result(
                    f"commit to event, {per_second:,} transactions/s of {rows}, {what} of {len(found):,}",
                    part(found),
                    unit="ms",
                )
            )
    return results


DELAYS = """
select extract(epoch from created_at - (data ->> 'committed_at')::timestamptz)
from event_store.events
where decider = 'table:public.items'
"""


def write(pipeline: Pipeline, number: int, per_second: int, rows: int) -> Worked:
    """Commit so many transactions of so many inserts, so many in a second."""
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
    """Capture until nothing comes any more, as a drain of Dagster does."""
    with pipeline.capturing() as process:
        began = begin()
        require_all(process.drain(budget_s=600, idle_s=IDLE_S), number)
    return Worked(began, time.monotonic(), {})
