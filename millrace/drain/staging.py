"""Writes the rows that Spark makes of leased events into the staging table.

A task stamps its rows with the batch and its attempt: no commit reads rows of a failed, speculative or late attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.drain.failing_streams import Failure, Part, Stream
from millrace.drain.limits import DEFAULTS, Limits
from millrace.drain.misread import MisreadEvent, misread_event
from millrace.postgres.connecting import lasting
from millrace.read_models.built.fold_task import MISREAD
from millrace.read_models.built.plans import Events, columns_read, state_rows
from millrace.read_models.declared.columns import ORDER
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.fold import STREAM
from millrace.read_models.stored.merge import StagedRows
from millrace.read_models.stored.tables import SCHEMA
from millrace.spark.log_source import in_utf8
from millrace.spark.log_source.arrow import NO_LIMITS_IN_TRANSACTION
from millrace.spark.workers import spare_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# a task reports at most this many misread events
MOST_MISREAD = 10_000
REPORT = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("misread", pa.list_(pa.string()))])


def events_of_part(part: Part, events: "DataFrame") -> "DataFrame":
    """Return the events of a part."""
    from pyspark.sql import functions as f

    if part.hashes is not None:
        first, end = part.hashes
        # up to the last hash: the interval's end may be no bigint
        events = events.where(f.xxhash64("decider", "decider_id").between(first, end - 1))
    if part.streams is not None:
        matches = [(f.col("decider") == s.decider) & (f.col("decider_id") == s.decider_id) for s in part.streams]
        events = events.where(reduce(or_, matches, f.lit(False)))
    if part.up_to is not None:
        events = events.where(f.col(ORDER) <= part.up_to)
    return events


def without_failing(events: "DataFrame", failing: Sequence[Failure]) -> "DataFrame":
    """Return events without those of failing streams from their failing event on."""
    from pyspark.sql import functions as f

    if not failing:
        return events
    left_out = pa.table(
        {
            "_decider": [one.stream.decider for one in failing],
            "_decider_id": [one.stream.decider_id for one in failing],
            "_from": [one.offset for one in failing],
        }
    )
    return events.join(
        f.broadcast(events.sparkSession.createDataFrame(left_out)),
        (f.col("decider") == f.col("_decider"))
        & (f.col("decider_id") == f.col("_decider_id"))
        & (f.col(ORDER) >= f.col("_from")),
        "left_anti",
    )


def streams_at(events: "DataFrame", offsets: Sequence[int]) -> list[tuple[int, str, str, int]]:
    """Return log partition, decider, decider_id and offset of the events at some offsets."""
    from pyspark.sql import functions as f

    places = f.broadcast(events.sparkSession.createDataFrame(pa.table({"_at": offsets})))
    found = events.join(places, f.col(ORDER) == f.col("_at"), "left_semi").select(*STREAM, ORDER)
    return [(row[0], row[1], row[2], row[3]) for row in found.collect()]


def count_streams(events: "DataFrame") -> int:
    """Return about how many streams some events belong to, accurate to a few percent."""
    from pyspark.sql import functions as f

    (row,) = events.select(f.approx_count_distinct(f.xxhash64("decider", "decider_id"))).collect()
    return int(row[0])


def list_streams(events: "DataFrame", limit: int) -> list[Stream]:
    """Return the streams of some events, `limit` at most."""
    return [
        Stream(*row) for row in events.select("partition", "decider", "decider_id").distinct().limit(limit).collect()
    ]


def list_offsets(events: "DataFrame", limit: int = 1000) -> Sequence[int]:
    """Return the offsets of events, rising; of `limit` or more events, all numbers from the first to the last."""
    from pyspark.sql import functions as f

    offsets = [row[0] for row in events.select(ORDER).orderBy(ORDER).limit(limit).collect()]
    if len(offsets) < limit:
        return offsets
    (row,) = events.select(f.max(ORDER)).collect()
    return range(offsets[0], row[0] + 1)


def stage_events(
    events: Events, dsn: str, model: ReadModel, begun: frozenset[int], batch: int, limits: Limits = DEFAULTS
) -> tuple[list[StagedRows], list[MisreadEvent]]:
    """Build and stage the rows of some events; streams of the log partitions in `begun` continue from their rows.

    Returns the rows of each winning task attempt that staged some, and the misread events, which are in no row. Each
    task reports `MOST_MISREAD` at most, and the next build others.
    """
    rows = state_rows(events, model, dsn, begun, limits.live_readers, limits.plan_s)
    # a task has one connection at a time, and of few tasks this changes nothing
    rows = rows.coalesce(limits.staging_connections)
    reports = rows.mapInArrow(
        stager(dsn, model.staging_table, batch, MOST_MISREAD), "attempt bigint, rows bigint, misread array<string>"
    ).collect()
    columns = columns_read(model)
    misread = [misread_event(text, columns) for report in reports for text in report["misread"]]
    return [StagedRows(one["attempt"], one["rows"]) for one in reports if one["rows"]], misread


def stager(
    dsn: str, table: str, batch: int, most_misread: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that copies rows into a staging table and yields a report once.

    The report has the attempt's number, its rows, and MISREAD of at most `most_misread` of the rows that it left out.
    """

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from adbc_driver_postgresql import dbapi
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        misread: list[str] = []
        filled = (one for unchecked in batches if (one := well_read(unchecked, misread, most_misread)).num_rows)
        first = next(filled, None)
        rows = 0

        def stamped(first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for one in chain([first], filled):
                rows += one.num_rows
                yield _stamp(one, batch, attempt)

        if first is not None:
            schema = _stamp(first.slice(0, 0), batch, attempt).schema
            with dbapi.connect(in_utf8(lasting(dsn))) as connection, connection.cursor() as cursor:
                cursor.execute(NO_LIMITS_IN_TRANSACTION)
                cursor.fetchall()
                reader = pa.RecordBatchReader.from_batches(schema, stamped(first))
                cursor.adbc_ingest(table, reader, mode="append", db_schema_name=SCHEMA)
                connection.commit()
        spare_imports()
        if rows or misread:
            yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows], "misread": [misread]}, REPORT)

    return stage


def well_read(rows: pa.RecordBatch, misread: list[str], most: int) -> pa.RecordBatch:
    """Return the rows without a MISREAD, and append the MISREAD of the others to the list, up to `most` in all."""
    if MISREAD not in rows.schema.names:
        return rows
    misread_texts = rows.column(MISREAD)
    if misread_texts.null_count < len(misread_texts):
        misread += misread_texts.drop_null().slice(0, most - len(misread)).to_pylist()
        rows = rows.filter(misread_texts.is_null())
    return rows.drop_columns([MISREAD])


def _stamp(rows: pa.RecordBatch, batch: int, attempt: int) -> pa.RecordBatch:
    for name, number in (("batch", batch), ("attempt", attempt)):
        rows = rows.append_column(name, pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows))
    return rows
