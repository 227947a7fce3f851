"""Draining: a small batch onto a large model, a backlog, ten views at once. What is measured ends in committed rows."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count

from benchmarks.event_store.bench import Database
from benchmarks.spark.bench import ORDERS, Bench, Measured, Memory, Result, timed
from benchmarks.spark.reads import growth
from millrace.ops import ReadModel
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import DrainReport
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import reset_model

BATCH = 1000
FEW_ROWS = 1000
VIEWS = 10
ENOUGH_S = 3600.0


def small_batch(bench: Bench) -> list[Result]:
    """Drain a thousand events onto a model with a row per event of the largest log, and onto one of a thousand rows."""
    rows = bench.sizes[-1]
    numbers = count()
    databases = [bench.orders(number, events=1) for number in (rows, FEW_ROWS)]
    measures: list[Callable[[], float]] = []
    for database, known in zip(databases, (rows, FEW_ROWS), strict=True):
        drained(bench, database)
        database.run("vacuum analyze")
        measures.append(partial(batch_s, bench, database, known, numbers))
    for measure in measures:
        measure()  # what is new to the session and the cache is no matter of the model's size
    many, few = bench.in_turn(*measures)
    what = f"a batch of {BATCH:,} events onto {rows:,} rows against {FEW_ROWS:,}"
    return [Result(what, many, few, "s", ratio=many.value / few.value, target=1.5, at_most=True)]


def batch_s(bench: Bench, database: Database, rows: int, numbers: Iterator[int]) -> float:
    """Append a thousand events to orders that the model knows, all over it, and return how long their drain takes."""
    with database.connect() as connection:
        connection.execute(
            """
            select count(*) from event_store.append_events((
              select jsonb_agg(jsonb_build_object(
                'decider', 'order', 'decider_id', 'o-' || 1 + n * (%(rows)s / %(batch)s), 'event', 'order_line_added',
                'event_id', md5(%(label)s || n)::uuid, 'command_id', md5(%(label)s || n)::uuid,
                'data', jsonb_build_object('product', 'whisk', 'quantity', 1, 'amount', 9.95)
              ))
              from generate_series(0, %(batch)s - 1) n
            ))
            """,
            {"rows": rows, "batch": BATCH, "label": f"batch-{next(numbers)}-"},
        )
        EventStore(connection).sequence_events()
    with Consumer(database.dsn, ORDERS, lambda: bench.spark, "bench") as consumer:
        began = time.perf_counter()
        report = consumer.drain(budget_s=ENOUGH_S, idle_s=0)
        seconds = time.perf_counter() - began
    require_events(report, BATCH)
    return seconds


def backlog(bench: Bench) -> list[Result]:
    """One view with the whole log before it; warm."""
    results: list[Result] = []
    rates: list[Measured] = []
    target = Measured(100_000, Memory())
    for events in bench.sizes:
        log = bench.log(events)
        if not rates:
            drained(bench, log)  # warms up
        (ours,) = bench.in_turn(partial(drain_rate, bench, log, events))
        rates.append(ours)
        wanted = 1.0 if events == bench.sizes[-1] else None
        what = f"drain {events:,} pending events; target"
        results.append(Result(what, ours, target, ratio=ours.value / target.value, target=wanted))
    return [*results, *growth("drain", bench, rates)]


def drain_rate(bench: Bench, log: Database, events: int) -> float:
    """Forget what was built and drain everything; return the events per second."""
    with log.connect() as connection:
        reset_model(connection, ORDERS)
    with Consumer(log.dsn, ORDERS, lambda: bench.spark, "bench") as consumer:
        began = time.perf_counter()
        report = consumer.drain(budget_s=ENOUGH_S, idle_s=0)
        seconds = time.perf_counter() - began
    require_events(report, events)
    return events / seconds


def ten_views(bench: Bench) -> list[Result]:
    """Drain ten views on one log in one session, each by its own consumer; in total, the events of the largest log."""
    events = bench.sizes[-1] // VIEWS
    log = bench.log(events)
    models = [replace(ORDERS, name=f"orders_{n}", view=f"orders_{n}") for n in range(VIEWS)]
    with log.connect() as connection:
        reset_model(connection, ORDERS)
    (alone,) = bench.in_turn(lambda: events / all_s(bench, log, [ORDERS], events)[0])
    first: list[list[float]] = []
    ended: list[list[float]] = []

    def together() -> float:
        took, firsts, ends = all_s(bench, log, models, events)
        first.append(firsts)
        ended.append(ends)
        return VIEWS * events / took

    (ours,) = bench.in_turn(together)
    firsts, ends = first[-1], ended[-1]
    spread = Measured(max(ends), ours.memory), Measured(min(ends), ours.memory)
    return [
        Result(f"ten views of {events:,} events at once; one alone", ours, alone, ratio=ours.value / alone.value),
        Result("ten views: the last one has its first rows", Measured(max(firsts), ours.memory), unit="s"),
        Result("ten views: the last one is done; the first one", *spread, "s", ratio=max(ends) / min(ends)),
    ]


def all_s(
    bench: Bench, log: Database, models: Sequence[ReadModel], events: int
) -> tuple[float, list[float], list[float]]:
    """Drain views at once: the seconds until all are done, and of each until its first commit and until its end."""
    start = threading.Barrier(len(models) + 1)

    def one(model: ReadModel) -> tuple[float, float]:
        commits: list[float] = []

        def note(_: Commit) -> None:
            commits.append(time.perf_counter())

        with Consumer(log.dsn, model, lambda: bench.spark, f"bench {model.name}") as consumer:
            start.wait()
            began = time.perf_counter()
            require_events(
                consumer.drain(budget_s=ENOUGH_S, idle_s=0, on_commit=note, batch_events=events // 5), events
            )
        return commits[0] - began, time.perf_counter() - began

    with ThreadPoolExecutor(len(models)) as threads:
        running = [threads.submit(one, model) for model in models]
        start.wait()
        seconds = timed(lambda: [future.result() for future in running])
    with log.connect() as connection:
        for model in models:
            reset_model(connection, model)
    ends = [future.result() for future in running]
    return seconds, [first for first, _ in ends], [end for _, end in ends]


def drained(bench: Bench, database: Database) -> DrainReport:
    """Drain everything there is."""
    with Consumer(database.dsn, ORDERS, lambda: bench.spark, "bench") as consumer:
        return consumer.drain(budget_s=ENOUGH_S, idle_s=0)


def require_events(report: DrainReport, events: int) -> None:
    """Refuse to compare drains that did not do the same."""
    if report.events != events:
        raise RuntimeError(f"{report.events} events were drained, not {events}")
