"""Rebuilding a read model: beside the other schema's per-event loop, and from the archive beside JDBC."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.event_store.bench import Database
from benchmarks.event_store.consumption import CHUNK, consumed_per_second, stream_and_ack
from benchmarks.spark.bench import ORDERS, Bench, Measured, Memory, Result, timed
from benchmarks.spark.drains import drained
from benchmarks.spark.failing import seconds_of
from benchmarks.spark.reads import growth, jdbc
from millrace.resources.archive.history import read_history
from millrace.resources.archive.writer import archive_partition
from millrace.resources.consumption.consumer import Consumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# the JVM compiles for some rounds
WARM = 2
# what the model needs of the log
LOG = """(
  select l.partition, e."offset", e.event, e.decider_id, e.data, e.created_at
  from event_store.event_log l join event_store.events e using ("offset")
  where e.decider = 'order'
) log"""
# the model's rows, as Spark's JDBC writes them: a plain table with the model's key
TABLE = """
create table bench_orders (
  order_id text collate "C" primary key, customer_id text, status text, lines bigint, total numeric, placed_at timestamptz
)
"""
ROWS = "select order_id, customer_id, status, lines, total, placed_at from {} order by order_id"


def from_postgres(bench: Bench) -> list[Result]:
    """Every log partition of a model, together, from the events in Postgres."""
    theirs = bench.theirs()
    numbers = count()
    few = min(500, bench.sizes[0] // 10)

    def loop(limit: int) -> float:
        label = f"rebuild-{next(numbers)}"
        return consumed_per_second(theirs, label, few, lambda connection: stream_and_ack(connection, "", limit))

    results: list[Result] = []
    rates = []
    for events in bench.sizes:
        log = bench.log(events)
        drained(bench, log)
        ours, single, chunks = bench.in_turn(
            partial(rebuild_rate, bench, log, events), lambda: loop(1), lambda: loop(CHUNK)
        )
        rates.append(ours)
        target = 100.0 if events == bench.sizes[-1] else None
        what = f"rebuild from {events:,} events"
        results += [
            Result(
                f"{what}; stream_events(1) + ack_event", ours, single, ratio=ours.value / single.value, target=target
            ),
            Result(f"{what}; stream_events({CHUNK}) + ack_event", ours, chunks, ratio=ours.value / chunks.value),
        ]
    return [*results, *growth("rebuild", bench, rates)]


def from_archive(bench: Bench) -> list[Result]:
    """Measure all log partitions of a model, together, from the archive; and reading and grouping alone, in one job.

    Beside it one Spark job makes the same rows without leases, checkpoints and comparisons: JDBC reads log and events,
    from_json takes the fields, and the aggregates are the same. Spark's JDBC writes the rows into an empty table with
    the same key, or nothing writes them.
    """
    results: list[Result] = []
    rates = []
    for events in bench.sizes:
        log = bench.log(events)
        drained(bench, log)
        log.run(TABLE)
        with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
            for partition in partitions_of(log):
                archive_partition(log.dsn, Path(folder), partition, tail=True)
            measures = (
                partial(rebuild_rate, bench, log, events, Path(folder)),
                partial(jdbc_rate, bench, log, events),
            )
            for measure in measures:
                measure()  # warms up
            require_same_rows(log)
            ours, theirs = bench.in_turn(*measures)
            built, built_theirs = bench.in_turn(
                partial(build_rate, events, partial(by_files, bench, log, Path(folder))),
                partial(build_rate, events, partial(by_jdbc, bench, log)),
            )
        rates.append(ours)
        target = 4.0 if events == bench.sizes[-1] else None
        what = f"{events:,} archived events; JDBC + from_json"
        results += [
            Result(f"rebuild from {what}", ours, theirs, ratio=ours.value / theirs.value, target=target),
            Result(f"the rows alone of {what}", built, built_theirs, ratio=built.value / built_theirs.value),
        ]
    return [*results, *growth("archive-rebuild", bench, rates)]


def cpu_from_archive(bench: Bench) -> list[Result]:
    """CPU of all processes for rebuilding all log partitions of a model from the archive, beside from Postgres."""
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


def rebuild_cpu(bench: Bench, log: Database, events: int, archive: Path | None) -> float:
    """Rebuild all log partitions and return for how many seconds all processes were on a CPU."""
    before = seconds_of(bench)
    rebuild_rate(bench, log, events, archive)
    return seconds_of(bench).since(before).all


def jdbc_rate(bench: Bench, log: Database, events: int) -> float:
    """Make the model's rows by JDBC and return the events per second."""
    log.run("truncate bench_orders")

    def build() -> None:
        options = {"dbtable": "bench_orders", "driver": "org.postgresql.Driver", "batchsize": "10000"}
        url = bench.jdbc_url(log) + "&reWriteBatchedInserts=true"
        by_jdbc(bench, log).write.format("jdbc").option("url", url).options(**options).mode("append").save()

    return events / timed(build)


def build_rate(events: int, frame: "Callable[[], DataFrame]") -> float:
    """Compute a frame that nobody has computed before, and return the events per second."""
    return events / timed(lambda: frame().write.format("noop").mode("overwrite").save())


def by_files(bench: Bench, log: Database, archive: Path) -> "DataFrame":
    """Make the model's rows from the archive, in one job."""
    from pyspark.sql import functions as f

    columns = ["offset", "event", "decider_id", "created_at"]
    fields = {"customer_id": ["customer_id"], "amount": ["amount"]}
    events = read_history(bench.spark, log.dsn, archive, deciders=["order"], columns=columns, extract=fields)
    return orders(events.withColumn("amount", f.col("amount").cast("decimal(18,2)")))


def by_jdbc(bench: Bench, log: Database) -> "DataFrame":
    """Make the model's rows by JDBC and from_json, in one job."""
    from pyspark.sql import functions as f

    fields = f.from_json("data", "customer_id string, amount decimal(18,2)").alias("data")
    events = jdbc(bench, log, LOG).select("decider_id", "offset", "event", "created_at", fields)
    return orders(events.select("*", "data.*"))


def orders(events: "DataFrame") -> "DataFrame":
    """Compute the rows of `Orders`, as one would write them by hand."""
    from pyspark.sql import functions as f

    placed, line = f.col("event") == "order_placed", f.col("event") == "order_line_added"
    return events.groupBy(f.col("decider_id").alias("order_id")).agg(
        f.max_by(f.when(placed, f.col("customer_id")), f.when(placed, f.col("offset"))).alias("customer_id"),
        f.max_by("event", "offset").alias("status"),
        f.count_if(line).alias("lines"),
        f.sum(f.when(line, f.col("amount"))).alias("total"),
        f.min("created_at").alias("placed_at"),
    )


def require_same_rows(log: Database) -> None:
    """Refuse to compare what makes different rows."""
    with log.connect() as connection:
        ours, theirs = (
            connection.execute(ROWS.format(table).encode()).fetchall()
            for table in ("read_models.orders", "bench_orders")
        )
    if not ours or ours != theirs:
        raise RuntimeError(f"The two sides give different rows: {len(ours)} and {len(theirs)}.")


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
    with Consumer(log.dsn, ORDERS, lambda: bench.spark, "bench", archive=archive) as consumer:
        began = time.perf_counter()
        built = consumer.rebuild(*partitions).events
        seconds = time.perf_counter() - began
    if built != events:
        raise RuntimeError(f"{built} events were rebuilt, not {events}")
    return events / seconds
