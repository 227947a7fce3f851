"""Reads archived files in Spark's tasks: the wanted columns and fields, by Arrow, without Spark's Parquet reader.

A file that is missing or has another number of rows fails its task. Not here: the proof that a file is the listed one,
and files that Spark reads by itself (`whole_files`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.archive.fields import Fields, column_of
from millrace.archive.files import SCHEMA
from millrace.archive.listing import ArchivedFile
from millrace.spark.log_source import COLUMNS
from millrace.spark.log_source.options import by_event

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession

# as many as a task of the source reads
TASK_EVENTS = 100_000
NO_FIELDS = Fields()


class FileUnreadable(Exception):
    """An archived file is missing or differs from its listing."""


@dataclass(frozen=True)
class FilePart:
    """The part of a file that one task reads: rows in [begin, end) of the row groups that begin in [from_row, to_row).

    `rows` is the number of rows of the whole file, and `fields` are the fields of `data` that it is known to have.
    """

    path: str
    rows: int
    from_row: int
    to_row: int
    begin: int
    end: int
    fields: Fields = NO_FIELDS


@dataclass(frozen=True)
class RowSelection:
    """The wanted rows: of some deciders and events (None: all), with some columns, and fields of `data` by path.

    With `between`, row groups without an event appended in [first, second) are left out; rows of other times may still
    be returned. `upcasts` are those of `EventLogOptions`.
    """

    deciders: tuple[str, ...] | None
    events: tuple[str, ...] | None
    columns: tuple[str, ...]
    extract: tuple[tuple[str, tuple[str, ...]], ...]
    between: tuple[datetime, datetime] | None = None
    upcasts: str = "[]"

    @property
    def schema(self) -> Mapping[str, str]:
        """The rows' columns with their Spark types."""
        return {name: COLUMNS[name][0] for name in self.columns} | {name: "string" for name, _ in self.extract}


def shared(
    root: Path, files: Mapping[ArchivedFile, Fields], cuts: Mapping[int, tuple[int, int]], most: int = TASK_EVENTS
) -> list[list[FilePart]]:
    """Divide files among tasks of at most about `most` events, each row once; `cuts` bounds each log partition."""
    tasks: list[list[FilePart]] = []
    room = 0
    for file, fields in files.items():
        rows = file.range.size
        begin, end = (cut - file.range.from_position for cut in cuts[file.range.partition])
        begin, end = max(begin, 0), min(rows, end)
        for first in range(0, end, most):
            last = min(first + most, end)
            events = max(last - max(first, begin), 0)
            if not tasks or events > room:
                tasks.append([])
                room = most
            tasks[-1].append(FilePart(str(root / file.path), rows, first, last, begin, end, fields))
            room -= events
    return tasks


def archive_rows(spark: "SparkSession", tasks: Sequence[Sequence[FilePart]], selection: RowSelection) -> "DataFrame":
    """Read parts of files, in one Spark task for each list of parts."""
    ddl = ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in selection.schema.items())
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(reader(tasks, selection), ddl)


def reader(
    tasks: Sequence[Sequence[FilePart]], selection: RowSelection
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that turns numbers of tasks into their rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in tasks[number]:
                    yield from rows_of(part, selection)

    return read


def rows_of(part: FilePart, selection: RowSelection) -> Iterator[pa.RecordBatch]:
    """Read a part of a file.

    Raises:
        FileUnreadable: The file is missing or differs from its listing.
    """
    from millrace.archive.bounded import BoundedFile

    # data of an older version has to be moved, and no column holds a path of two keys
    held = {name: path[0] for name, path in selection.extract if selection.upcasts == "[]" and part.fields.hold(path)}
    needed = {*selection.columns, *(["data"] if len(held) < len(selection.extract) else [])}
    needed |= {column_of(field) for field in held.values() if field in part.fields.columns}
    needed |= {name for name, chosen in _filters(selection).items() if chosen is not None}
    if selection.upcasts != "[]" and "data" in needed:
        needed |= {"decider", "event", "event_version"}
    try:
        with BoundedFile(part.path) as file:
            if file.metadata.num_rows != part.rows:
                raise FileUnreadable(
                    f"event_log: {part.path} has {file.metadata.num_rows} events, and {part.rows} are listed"
                )
            first = 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if part.from_row <= first < part.to_row and may_have(file.metadata.row_group(group), selection.between):
                    row = first
                    for batch in file.batches(16_384, [group], sorted(needed)):
                        begin, end = max(part.begin - row, 0), min(part.end - row, len(batch))
                        if begin < end:
                            yield _chosen(batch.slice(begin, end - begin), selection, held)
                        row += len(batch)
                first += size
    except (OSError, pa.ArrowException) as error:
        # without its cause: of chained errors a driver sees the class of the first one
        raise FileUnreadable(f"event_log: {part.path} cannot be read: {error}") from None


def may_have(group: "pq.RowGroupMetaData", between: tuple[datetime, datetime] | None) -> bool:
    """Return whether a row group may have an event that was appended in [first, second); None for any time."""
    if between is None:
        return True
    times = group.column(SCHEMA.get_field_index("created_at")).statistics
    if times is None or not times.has_min_max:
        return True
    return bool(times.max >= between[0] and times.min < between[1])


def _chosen(batch: pa.RecordBatch, selection: RowSelection, held: Mapping[str, str]) -> pa.RecordBatch:
    """Return the wanted rows of a batch; the fields in `held` have columns of their own, or no event has them."""
    import pyarrow.compute as pc

    from millrace.archive.json_fields import fields
    from millrace.event_schemas.moves import moved

    for name, chosen in _filters(selection).items():
        if chosen is not None:
            matches = pc.is_in(batch.column(name), pa.array(chosen, pa.string()))
            # a filter that keeps all rows would only copy them
            if matches.false_count:
                batch = batch.filter(matches)
    columns = {name: batch.column(name) for name in selection.columns}
    data = None
    if "data" in batch.schema.names:
        data = batch.column("data")
        for (decider, event), upcasts in by_event(selection.upcasts).items():
            versions = batch.column("event_version")
            older = pc.and_(
                pc.and_(pc.equal(batch.column("decider"), decider), pc.equal(batch.column("event"), event)),
                pc.less(versions, upcasts[-1]["to_version"]),
            )
            rows = zip(data.filter(older).to_pylist(), versions.filter(older).to_pylist(), strict=True)
            texts = pa.array([moved(text, version, upcasts) for text, version in rows], data.type)
            if len(texts):
                data = pc.replace_with_mask(data, older, texts)
    if "data" in columns:
        columns["data"] = data
    parsed = {name: path for name, path in selection.extract if name not in held}
    found = dict(zip(parsed, fields(data, [*parsed.values()]), strict=True)) if parsed else {}
    for name, _ in selection.extract:
        if name in found:
            columns[name] = found[name].combine_chunks()
        else:
            column = column_of(held[name])
            has_column = column in batch.schema.names
            columns[name] = batch.column(column) if has_column else pa.nulls(len(batch), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _filters(selection: RowSelection) -> dict[str, tuple[str, ...] | None]:
    return {"decider": selection.deciders, "event": selection.events}
