"""Reads the events that leases deliver to a read model, in Spark's tasks: from Postgres, and from the archive.

A task reads as a stream, and builds from what it reads: it holds no more of a range than one batch.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.archive.history import file_tasks
from millrace.archive.spark_reader import FilePart, RowSelection, rows_of
from millrace.drain.commit import Work
from millrace.drain.limits import DEFAULTS, Limits
from millrace.event_store import Lease
from millrace.postgres.connecting import lasting
from millrace.read_models.built.plans import Run, arrow_schema
from millrace.read_models.declared.columns import ORDER
from millrace.read_models.declared.upcasts import as_option
from millrace.spark.log_source import COLUMNS, EventLogOptions, LogRange
from millrace.spark.log_source.ranges import held_ranges, split
from millrace.spark.log_source.reading import read_ranges, read_retries
from millrace.spark.parallelism import task_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Part:
    """The input of a task: slices of the log, the retries of leases, and parts of files."""

    slices: tuple[LogRange, ...] = ()
    retries: tuple[Lease, ...] = ()
    files: tuple[FilePart, ...] = ()


@dataclass(frozen=True)
class LeasedEvents:
    """The events of a read model that some tasks read; `Events` of `plans`.

    Attributes:
        spark: The session.
        reader: What each task reads, and how.
        given_up: Offsets of events that are read only for the keys that they carry.
    """

    spark: "SparkSession"
    reader: "Reader"
    given_up: frozenset[int]

    @property
    def frame(self) -> "DataFrame":
        """The events."""

        def as_they_are(events: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
            for batch in events:
                yield from batch.to_batches()

        return self.through(as_they_are, self.reader.schema)

    def through(self, run: Run, schema: pa.Schema) -> "DataFrame":
        """Return the result of a function of the events, in the tasks that read them, with this schema."""
        from pyspark.sql.pandas.types import from_arrow_schema

        tasks = max(len(self.reader.parts), 1)
        read = self.reader

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            numbers = (number for batch in batches for number in batch.column(0).to_pylist())
            return run(table for number in numbers for table in read.tables(number))

        return self.spark.range(0, tasks, 1, tasks).mapInArrow(work, from_arrow_schema(schema))


@dataclass(frozen=True)
class Reader:
    """The input of tasks, and how they read it.

    Attributes:
        options: The columns, fields and filters.
        schema: The columns that are read.
        parts: The input of each task, by its number.
        view: Streams with a lock of this view are left out of the log's ranges; None leaves out none.
        left_out: Offsets of events that are left out.
    """

    options: EventLogOptions
    schema: pa.Schema
    parts: tuple[Part, ...]
    view: str | None
    left_out: frozenset[int]

    def tables(self, task: int) -> Iterator[pa.Table]:
        """Read the input of a task, in batches."""
        import pyarrow.compute as pc

        if task >= len(self.parts):
            return
        part, options = self.parts[task], self.options
        held = partial(held_ranges, fail_on_data_loss=True)
        extract = tuple(options.extract.items())
        selection = RowSelection(options.deciders, options.events, options.columns, extract, upcasts=options.upcasts)
        # each begins when the one before has ended
        batches = chain(
            read_ranges(options, self.schema, part.slices, held, self.view) if part.slices else (),
            *(
                read_retries(options, self.schema, str(self.view), one.partition, one.lease_token, one.to_position)
                for one in part.retries
            ),
            *(rows_of(file, selection) for file in part.files),
        )
        left_out = pa.array(self.left_out, pa.int64())
        for batch in batches:
            events = pa.Table.from_batches([batch.rename_columns(self.schema.names)]).cast(self.schema)
            if len(left_out):
                events = events.filter(pc.invert(pc.is_in(events.column(ORDER), left_out)))
            yield events


def leased_events(
    spark: "SparkSession",
    dsn: str,
    work: Work,
    limits: Limits = DEFAULTS,
    *,
    new: bool = True,
    retries: bool = True,
    streams: bool = False,
) -> LeasedEvents:
    """Return the events of claimed work that its model takes, with the columns and fields that the model needs.

    Locked streams are left out, except those that a lease retries. A rebuild reads all streams.

    Args:
        spark: The session.
        dsn: The event store.
        work: The claimed work.
        limits: How much runs side by side.
        new: Whether to read events of the leased ranges.
        retries: Whether to read the events of retried streams.
        streams: Whether to read the columns that name a stream, too.
    """
    model, ranges, history = work.model, work.ranges, work.history
    needed = {"partition", ORDER, "event"} | (model.sources - set(model.extracted))
    if streams or model.carried is not None:
        needed |= {"decider", "decider_id"}
    columns = sorted(needed)
    options = {"dsn": lasting(dsn), "upcasts": as_option(model.seen_upcasts)} | {
        name: json.dumps(value)
        for name, value in (
            ("columns", columns),
            ("extract", model.extracted),
            ("deciders", model.deciders),
            ("events", model.events),
        )
        if value is not None
    }
    tried = [lock.partition for lock in work.locked if lock.retries and retries]
    again = tuple(lease for lease in ranges if lease.partition in tried)
    files = [] if history is None else file_tasks(spark, history)
    tails = {r.partition: (r.from_position, r.to_position) for r in ranges} if history is None else history.tails
    slices = [LogRange(p, first, end) for p, (first, end) in sorted(tails.items()) if new and first < end]
    positions = sum(one.size for one in slices)
    tasks = min(task_number(spark, positions, limits.cores), limits.live_readers - bool(again))
    parts = [Part(slices=task) for task in split(slices, max(positions, 1), max(tasks, 1))]
    parts += [Part(files=tuple(task)) for task in files]
    if again and len(parts) >= limits.live_readers and parts[0].slices:
        parts[0] = replace(parts[0], retries=again)
    elif again:
        parts.append(Part(retries=again))
    schema = arrow_schema({name: COLUMNS[name][0] for name in columns} | dict.fromkeys(model.extracted, "string"))
    # an event that is given up carries keys, too
    left_out = work.given_up - work.carrying
    reader = Reader(
        EventLogOptions.read(options, "batch"), schema, tuple(parts), model.view if work.locked else None, left_out
    )
    return LeasedEvents(spark, reader, work.carrying)
