"""Builds a batch of a read model in Spark: events of leased ranges → partial rows → the staging table.

Belongs here: Spark's plan and what its tasks write. Not here: leases and commits (`consumer`), merging (`read_model_tables`).

A task's rows are stamped with the batch and the task's attempt, and nothing is committed by Spark: a failed, speculative or
zombie attempt leaves rows that no commit reads.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.resources.archive.history import LogHistory, history_frame
from millrace.resources.consumption.failing_streams import Part, Source, Stream
from millrace.resources.event_store import Lease, LockedPartition
from millrace.resources.read_models.columns import ORDER
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.merge import StagedRows
from millrace.resources.read_models.plans import state_rows
from millrace.resources.read_models.tables import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# a task costs a tenth of a second apart from its events, and there is a core for each of some tasks
TASK_EVENTS = 125_000


def read_events(
    spark: "SparkSession",
    dsn: str,
    model: ReadModel,
    ranges: Sequence[Lease],
    locked: Sequence[LockedPartition] = (),
    of: Source = "all",
    *,
    streams: bool = False,
    history: LogHistory | None = None,
) -> "DataFrame":
    """What some leases deliver of the events that the model takes, with the columns and fields that it needs.

    `locked` says where streams have locks: these are left out, and those that a lease tries again are read instead. Without
    any, and in a rebuild, it is plain ranges, which `history` takes from the archive. `streams`: the columns that name a stream, too.
    """
    from pyspark.sql import functions as f

    needed = {"partition", ORDER, "event"} | (model.sources - set(model.extracted))
    if streams:
        needed |= {"decider", "decider_id"}
    positions = sum(r.to_position - r.from_position for r in ranges)
    tasks = 1 + positions // TASK_EVENTS
    if history is not None:
        events = history_frame(
            spark,
            dsn,
            history,
            deciders=model.deciders,
            events=model.events,
            columns=sorted(needed),
            extract=model.extracted,
            min_partitions=tasks,
        )
        return events.where(~f.col(ORDER).isin(*history.given_up)) if history.given_up else events
    starts = {str(r.partition): r.to_position if of == "retries" else r.from_position for r in ranges}
    retried = {lock.partition for lock in locked if lock.retries and of != "range"}
    reader = (
        spark.read.format("event_log")
        .option("dsn", dsn)
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps({str(r.partition): r.to_position for r in ranges}))
        .option("columns", json.dumps(sorted(needed)))
        .option("extract", json.dumps(model.extracted))
        .option("minPartitions", str(tasks))
    )
    if model.deciders is not None:
        reader = reader.option("deciders", json.dumps(model.deciders))
    if model.events is not None:
        reader = reader.option("events", json.dumps(model.events))
    if locked:
        tokens = {str(r.partition): r.lease_token for r in ranges if r.partition in retried}
        reader = reader.option("view", model.view).option("leaseTokens", json.dumps(tokens))
    return reader.load()


def events_of(part: Part, events: "DataFrame") -> "DataFrame":
    """The events of a part."""
    from pyspark.sql import functions as f

    if part.hashes is not None:
        first, end = part.hashes
        # the last number of the interval: its end may be no bigint
        events = events.where(f.xxhash64("decider", "decider_id").between(first, end - 1))
    if part.streams is not None:
        named = [(f.col("decider") == s.decider) & (f.col("decider_id") == s.decider_id) for s in part.streams]
        events = events.where(reduce(or_, named, f.lit(False)))
    if part.up_to is not None:
        events = events.where(f.col(ORDER) <= part.up_to)
    return events


def count_streams(events: "DataFrame") -> int:
    """About how many streams some events are of, to a few in a hundred."""
    from pyspark.sql import functions as f

    (row,) = events.select(f.approx_count_distinct(f.xxhash64("decider", "decider_id"))).collect()
    return int(row[0])


def list_streams(events: "DataFrame", limit: int) -> list[Stream]:
    """The streams that some events are of, `limit` at most."""
    return [
        Stream(*row) for row in events.select("partition", "decider", "decider_id").distinct().limit(limit).collect()
    ]


def list_offsets(events: "DataFrame", limit: int = 1000) -> Sequence[int]:
    """The offsets of events, rising; where they are more than `limit`, all numbers from the first to the last."""
    from pyspark.sql import functions as f

    offsets = [row[0] for row in events.select(ORDER).orderBy(ORDER).limit(limit).collect()]
    if len(offsets) < limit:
        return offsets
    (row,) = events.select(f.max(ORDER)).collect()
    return range(offsets[0], row[0] + 1)


def stage_batch(
    spark: "SparkSession",
    dsn: str,
    model: ReadModel,
    ranges: Sequence[Lease],
    batch: int,
    locked: Sequence[LockedPartition] = (),
    history: LogHistory | None = None,
) -> list[StagedRows]:
    """Build the rows of what some leases deliver and stage them; return what each winning task attempt wrote."""
    return stage_events(read_events(spark, dsn, model, ranges, locked, history=history), dsn, model, ranges, batch)


def stage_events(
    events: "DataFrame", dsn: str, model: ReadModel, ranges: Sequence[Lease], batch: int
) -> list[StagedRows]:
    """Build the rows of some events of leased ranges and stage them; return what each winning task attempt wrote."""
    rows = state_rows(events, model, dsn, ranges)
    reports = rows.mapInArrow(stager(dsn, model.staging_table, batch), "attempt bigint, rows bigint").collect()
    return [StagedRows(report["attempt"], report["rows"]) for report in reports]


def stager(dsn: str, table: str, batch: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` that copies its rows into a staging table and yields (attempt, rows) once."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from adbc_driver_postgresql import dbapi
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        head = next((b for b in batches if b.num_rows), None)
        if head is None:
            return
        rows = 0

        def stamped() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            yield stamp(head)
            for following in batches:
                if following.num_rows:
                    yield stamp(following)

        def stamp(unstamped: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal rows
            rows += unstamped.num_rows
            size = unstamped.num_rows
            return unstamped.append_column("batch", pa.repeat(pa.scalar(batch, pa.int64()), size)).append_column(
                "attempt", pa.repeat(pa.scalar(attempt, pa.int64()), size)
            )

        schema = head.schema.append(pa.field("batch", pa.int64())).append(pa.field("attempt", pa.int64()))
        with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
            reader = pa.RecordBatchReader.from_batches(schema, stamped())
            cursor.adbc_ingest(table, reader, mode="append", db_schema_name=SCHEMA)
            connection.commit()
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows]})

    return stage
