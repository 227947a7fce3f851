"""Reading the log: the source `event_log` beside Spark's JDBC source, of the same rows."""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.event_store.bench import Database
from benchmarks.spark.bench import Bench, Measured, Result, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

FETCH = 10_000
TASKS = 4
# the rows of `event_log` with all their columns
LOG = """(
  select l.partition, l.position, e."offset", e.event, e.event_id, e.event_version, e.decider, e.decider_id, e.data,
    e.command_id, e.previous_id, e.final, e.created_at
  from event_store.event_log l join event_store.events e using ("offset")
) log"""
EVENTS = "event_store.events"
FIELDS = '(select "offset", event, data from event_store.events) events'


def whole_log(bench: Bench) -> list[Result]:
    """Every event with every column."""

    def ours(database: Database) -> "DataFrame":
        return bench.spark.read.format("event_log").option("dsn", database.dsn).load()

    def written(frame: "DataFrame") -> None:
        frame.write.format("noop").mode("overwrite").save()

    results = []
    rates = []
    for events in bench.sizes:
        log = bench.log(events)
        sides = (partial(ours, log), partial(jdbc, bench, log, LOG), partial(jdbc, bench, log, EVENTS))
        require_rows(events, *(frame() for frame in sides))
        a, b, c = bench.in_turn(*(partial(rate, events, frame, written) for frame in sides))
        rates.append(a)
        target = 1.2 if events == bench.sizes[-1] else None
        results += [
            Result(f"read {events:,} events; JDBC, same rows", a, b, ratio=a.value / b.value, target=target),
            Result(f"read {events:,} events; JDBC, table events alone", a, c, ratio=a.value / c.value),
        ]
    return [*results, *growth("read", bench, rates)]


def two_fields(bench: Bench) -> list[Result]:
    """Two fields of the data of one kind of event, grouped by one and the other one added up.

    Spark pushes the filter to JDBC by itself; our source has an option for it.
    """
    from pyspark.sql import functions as f

    wanted = "order_line_added"
    fields = {"customer_id": ["customer_id"], "amount": ["amount"]}

    def grouped(frame: "DataFrame") -> "DataFrame":
        amounts = frame.groupBy("customer_id")
        return amounts.agg(f.count("*").alias("lines"), f.sum(f.col("amount").cast("decimal(18,2)")).alias("worth"))

    def ours(database: Database) -> "DataFrame":
        reader = bench.spark.read.format("event_log").option("dsn", database.dsn).option("columns", '["offset"]')
        return grouped(reader.option("events", json.dumps([wanted])).option("extract", json.dumps(fields)).load())

    def theirs(database: Database) -> "DataFrame":
        chosen = jdbc(bench, database, FIELDS).where(f.col("event") == wanted)
        return grouped(
            chosen.select(f.from_json("data", "customer_id string, amount decimal(18,2)").alias("data")).select(
                "data.*"
            )
        )

    def collected(frame: "DataFrame") -> "list[Row]":
        return sorted(frame.collect())

    results = []
    rates = []
    for events in bench.sizes:
        log = bench.log(events)
        sides = (partial(ours, log), partial(theirs, log))
        if collected(sides[0]()) != collected(sides[1]()):
            raise RuntimeError("The two sides give different rows.")
        a, b = bench.in_turn(*(partial(rate, events, frame, collected) for frame in sides))
        rates.append(a)
        target = 2.0 if events == bench.sizes[-1] else None
        what = f"extract two fields of {events:,} events; JDBC + from_json"
        results.append(Result(what, a, b, ratio=a.value / b.value, target=target))
    return [*results, *growth("extract", bench, rates)]


def rate(events: int, frame: Callable[[], "DataFrame"], action: "Callable[[DataFrame], object]") -> float:
    """Return the events per second of an action on a new DataFrame: on an old one, Spark reuses an earlier shuffle."""
    made = frame()
    return events / timed(lambda: action(made))


def jdbc(bench: Bench, database: Database, table: str) -> "DataFrame":
    """Read a table by Spark's JDBC source, in tasks of even ranges of offsets."""
    (bounds,) = database.run('select min("offset"), max("offset") + 1 from event_store.events')
    reader = bench.spark.read.format("jdbc").option("url", bench.jdbc_url(database)).option("dbtable", table)
    options = {"partitionColumn": "offset", "lowerBound": bounds[0], "upperBound": bounds[1], "numPartitions": TASKS}
    return reader.options(fetchsize=FETCH, driver="org.postgresql.Driver", **options).load()  # type: ignore[arg-type]


def require_rows(events: int, *frames: "DataFrame") -> None:
    """Refuse to compare reads of different logs; warms everybody up, too."""
    for frame in frames:
        found = frame.count()
        if found != events:
            raise RuntimeError(f"{found} rows were read, not {events}")


def growth(what: str, bench: Bench, rates: list[Measured]) -> list[Result]:
    """How much of the rate of the smallest log is left with the largest."""
    if len(rates) < 2:
        return []
    few, many = rates[0], rates[-1]
    label = f"{what}: {bench.sizes[-1]:,} events against {bench.sizes[0]:,}"
    return [Result(label, many, few, ratio=many.value / few.value)]
