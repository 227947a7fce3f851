"""Builds a batch of a read model in Spark: events of leased ranges → partial rows → the staging table.

Belongs here: Spark's plan and what its tasks write. Not here: leases and commits (`consumer`), merging (`read_model_tables`).

A task's rows are stamped with the batch and the task's attempt, and nothing is committed by Spark: a failed, speculative or
zombie attempt leaves rows that no commit reads.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from resources.columns import ORDER, Column, KeyColumn, typed
from resources.event_store import Lease
from resources.read_model import ReadModel
from resources.read_model_tables import SCHEMA, StagedRows

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def read_events(spark: "SparkSession", dsn: str, model: ReadModel, ranges: Sequence[Lease]) -> "DataFrame":
    """The events of some ranges that the model takes, with the columns and fields that it needs."""
    needed = {"partition", ORDER, "event"} | (model.sources - set(model.extracted))
    reader = (
        spark.read.format("event_log")
        .option("dsn", dsn)
        .option("startingOffsets", json.dumps({str(r.partition): r.from_offset for r in ranges}))
        .option("endingOffsets", json.dumps({str(r.partition): r.to_offset for r in ranges}))
        .option("columns", json.dumps(sorted(needed)))
        .option("extract", json.dumps(model.extracted))
    )
    if model.deciders is not None:
        reader = reader.option("deciders", json.dumps(model.deciders))
    if model.events is not None:
        reader = reader.option("events", json.dumps(model.events))
    return reader.load()


def partial_rows(events: "DataFrame", model: ReadModel) -> "DataFrame":
    """One row per log partition and key: the columns of the model's state.

    Raises, when it runs, Spark's error for a value that its column's type does not hold exactly.
    """
    from pyspark.sql import functions as f

    def value(column: Column | KeyColumn) -> "SparkColumn":
        if column.source is None:
            return f.lit(1)
        source = f.col("`{}`".format(column.source.replace("`", "``")))
        return typed(source, column.source, column.type) if column.source in model.extracted else source

    def wanted(column: Column) -> "SparkColumn":
        # only after this: what a column does not look at must not fail its cast
        return value(column) if column.events is None else f.when(f.col("event").isin(*column.events), value(column))

    keyed = events.select("*", *(value(key).alias(f"key {name}") for name, key in model.keys.items()))
    for name in model.keys:
        keyed = keyed.where(f.col(f"`key {name}`").isNotNull())
    grouped = keyed.groupBy("partition", *(f.col(f"`key {name}`").alias(name) for name in model.keys))
    return grouped.agg(
        *(
            state.partial(wanted(column), f.col(ORDER)).alias(state.name)
            for name, column in model.columns.items()
            for state in column.state(name)
        )
    )


def stage_batch(
    spark: "SparkSession", dsn: str, model: ReadModel, ranges: Sequence[Lease], batch: int
) -> list[StagedRows]:
    """Build the partial rows of some ranges and stage them; return what each winning task attempt wrote."""
    rows = partial_rows(read_events(spark, dsn, model, ranges), model)
    reports = rows.mapInArrow(stager(dsn, f"{model.name}_staging", batch), "attempt bigint, rows bigint").collect()
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
