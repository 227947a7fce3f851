"""Captured changes per second against pg_recvlogical, which discards them, and the cost of a large transaction."""

import resource
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import psycopg

from benchmarks.event_store.bench import Result
from benchmarks.ingest.bench import Costs, IngestBench
from benchmarks.ingest.sources import (
    Pipeline,
    change,
    new_pipeline,
    new_source,
    received,
    require_all,
    slot_copy,
    streamed,
    timed,
)
from millrace.capture.drain import CaptureDrain

TARGET = 45_000
BACKFILL_TARGET = 88_000
TRANSACTION = 100
UNIT = "changes/s"


def rate(bench: IngestBench) -> list[Result]:
    """Measure transactions of a hundred changes: the whole capture, and its parts, each over the same changes."""
    changes = bench.size(100_000, 1000)
    whole = new_pipeline(bench)
    parts = new_pipeline(bench, whole.source)
    costs, copy_costs = Costs(bench, changes), Costs(bench, changes)
    with ExitStack() as stack:
        process = stack.enter_context(parts.capturing())
        copies = ExitStack()
        stack.callback(copies.close)

        def drained() -> float:
            # from the round before
            copies.close()
            change(whole.source, changes, TRANSACTION)
            for name in ("received", "streamed", "decoded"):
                copies.enter_context(slot_copy(whole, name))
            return changes / whole.drain(changes, costs.of)

        drain, copy, receive, stream, decode, store, emit = bench.in_turn(
            drained,
            lambda: changes / copied(whole, changes, copy_costs),
            lambda: changes / received(whole, "received"),
            lambda: changes / streamed(whole, "streamed", decoding=False),
            lambda: changes / streamed(whole, "decoded", decoding=True),
            lambda: changes / timed(lambda: store_all(process)),
            lambda: changes / timed(process.emit),
        )
        require_all(process.report, changes * bench.rounds)
    return [
        Result("capture, slot to events, against pg_recvlogical", drain, receive, UNIT, drain / receive, 0.25),
        Result("capture, slot to events, against the target", drain, TARGET, UNIT, drain / TARGET, 1),
        Result("capture, slot to events, against COPY of the events", drain, copy, UNIT, drain / copy, 0.4),
        Result("capture: stream", stream, receive, UNIT, stream / receive),
        Result("capture: stream and decode", decode, receive, UNIT, decode / receive),
        Result("capture: stream, decode and store", store, receive, UNIT, store / receive),
        Result("capture: emit", emit, receive, UNIT, emit / receive),
        *costs.results("capture, slot to events", "us/change"),
        *copy_costs.results("COPY of the events", "us/change"),
    ]


def backfill(bench: IngestBench) -> list[Result]:
    """Measure the backfill of existing rows as events: many at once, with six columns."""
    number = bench.size(400_000, 1000)
    costs, copy_costs = Costs(bench, number), Costs(bench, number)
    pipelines: list[Pipeline] = []

    def read() -> float:
        pipelines.append(Pipeline(new_source(bench), bench.ours()))
        return number / backfilled(pipelines[-1], number, costs)

    found, copy = bench.in_turn(read, lambda: number / copied(pipelines[-1], number, copy_costs))
    what = f"capture, backfill of {number:,} rows"
    return [
        Result(f"{what}, against COPY of the events", found, copy, "rows/s", found / copy, 0.4),
        Result(f"{what}, against the target", found, BACKFILL_TARGET, "rows/s", found / BACKFILL_TARGET, 1),
        *costs.results("capture, backfill", "us/row"),
        *copy_costs.results("COPY of the events", "us/row"),
    ]


def backfilled(pipeline: Pipeline, number: int, costs: Costs) -> float:
    """Backfill `number` rows into a new store; return the seconds since the claim."""
    with psycopg.connect(pipeline.source, autocommit=True) as connection:
        connection.execute(
            "insert into items select n, 'customer-' || n %% 1000, n / 100.0, false, null, clock_timestamp()"
            " from generate_series(1, %s) n",
            (number,),
        )
        connection.execute("checkpoint")
    with pipeline.capturing() as process:
        seconds = costs.of(lambda: process.drain(budget_s=3600, idle_s=0))
        if process.report.backfilled != number:
            raise RuntimeError(f"{process.report.backfilled} rows were read, {number} are there.")
    return seconds


def copied(pipeline: Pipeline, number: int, costs: Costs) -> float:
    """Copy the last `number` events into a table with the same columns and indexes; return the seconds."""
    query = f'copy (select * from event_store.events order by "offset" desc limit {number}) to stdout'
    with pipeline.store.connect() as connection, connection.cursor() as cursor:
        with cursor.copy(query.encode()) as reading:
            events = b"".join(bytes(part) for part in reading)
        cursor.execute("drop table if exists copied_events")
        cursor.execute("create table copied_events (like event_store.events including all)")

        def write() -> None:
            with cursor.copy("copy copied_events from stdin") as writing:
                writing.write(events)

        return costs.of(write)


def transaction_sizes(bench: IngestBench) -> list[Result]:
    """Measure the same changes in transactions of several sizes; then a large transaction and its memory."""
    changes = bench.size(100_000, 1000)
    sizes = [size for size in (1, 10, 1000, 100_000) if size <= changes]
    pipeline = new_pipeline(bench)
    rates = bench.in_turn(*(partial(captured_per_second, pipeline, changes, size) for size in sizes))
    base = rates[sizes.index(10)]
    results = [
        Result(f"capture, transactions of {size:,} against 10", found, base, UNIT, found / base)
        for size, found in zip(sizes, rates, strict=True)
    ]
    large, less = bench.size(1_000_000, 10_000), bench.size(10_000, 1000)
    # no rounds: the large one takes a minute or two
    (base_s, base_mb), (seconds, mb) = (captured_alone(pipeline, number) for number in (less, large))
    what = f"capture, one transaction of {large:,} against {less:,}"
    return [
        *results,
        Result(f"{what}: rate", large / seconds, less / base_s, UNIT, large / seconds / (less / base_s)),
        Result(f"{what}: duration", seconds, base_s, "s", seconds / base_s),
        Result(f"{what}: peak memory", mb, base_mb, "MB", mb / base_mb),
    ]


def store_all(process: CaptureDrain) -> None:
    """Store all changes that the slot holds."""
    while process.store():
        pass


def captured_per_second(pipeline: Pipeline, changes: int, of_transaction: int) -> float:
    """Capture `changes` changes in transactions of `of_transaction` each; return the changes per second."""
    return changes / pipeline.drained(changes, of_transaction)


def captured_alone(pipeline: Pipeline, changes: int) -> tuple[float, float]:
    """Capture one transaction in a separate process; return the seconds and its peak memory in MB."""
    change(pipeline.source, changes, changes)
    # a fork would start with this process's memory
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(seconds_and_memory, pipeline, changes).result()


def seconds_and_memory(pipeline: Pipeline, changes: int) -> tuple[float, float]:
    """Capture, and return the seconds and the peak memory of this process in MB."""
    return pipeline.drain(changes), peak_mb()


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # on Linux ru_maxrss is at least the parent's
        return float(status.read_text().partition("VmHWM:")[2].split()[0]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
