"""The whole log as one Spark DataFrame: the files of the archive, and from Postgres what lies above them, each event once.

Belongs here: putting the two together. Not here: writing files (`archive`), reading Postgres (`event_log_source`).

Columns, types, filters and `extract` are those of the source `event_log`. Spark's tasks read the files themselves: the folder must
be there by the same path where they run.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from resources.archive import ArchivedPartition, grouped, require_folder
from resources.errors import MillraceError
from resources.event_log_source import COLUMNS
from resources.event_store import EventStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class LogIncomplete(MillraceError):
    """Archive and log together do not hold every event; the text says which are missing."""


def read_log_frame(
    spark: "SparkSession",
    dsn: str,
    root: Path,
    *,
    partitions: Sequence[int] | None = None,
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    columns: Sequence[str] = tuple(COLUMNS),
    extract: Mapping[str, Sequence[str]] | None = None,
    min_partitions: int = 1,
) -> "DataFrame":
    """Read the log from its first event up to its high-water marks of this moment, each event once, in no order.

    Args:
        spark: The session; it knows the source `event_log`.
        dsn: The event store; the role must be `event_store_reader`.
        root: The folder of the archive; where nothing is listed, it need not be there.
        partitions: The log partitions, None for all.
        deciders: The deciders, None for all.
        events: The events, None for all.
        columns: Some of `COLUMNS`, in this order.
        extract: New columns: fields of `data` by path, as text.
        min_partitions: How many tasks read the tail at least.

    Raises:
        LogIncomplete: Events below the earliest offset of the log are in no listed file.
        ForeignArchive: The folder is not this store's archive.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        held = grouped(EventStore(connection).archive_state())
    wanted = [each for each in held if partitions is None or each.partition in partitions]
    paths = [str(root / file.path) for each in wanted for file in each.files]
    if paths:
        require_folder(root, held[0].archive_id)
    for each in wanted:
        require_whole(each)

    filters = {"deciders": deciders, "events": events}
    options = {
        "dsn": dsn,
        "columns": json.dumps(list(columns)),
        "extract": json.dumps({name: list(path) for name, path in (extract or {}).items()}),
        "startingOffsets": json.dumps({str(each.partition): each.end for each in wanted}),
        "endingOffsets": json.dumps({str(each.partition): each.high_water_mark for each in wanted}),
        "minPartitions": str(min_partitions),
    } | {name: json.dumps(list(chosen)) for name, chosen in filters.items() if chosen is not None}
    tail = spark.read.format("event_log").options(**options).load()
    if not paths:
        return tail
    ddl = ", ".join(f"`{name}` {type_}" for name, (type_, _) in COLUMNS.items())
    files = spark.read.schema(ddl).parquet(*paths)
    for name, chosen in (("decider", deciders), ("event", events)):
        if chosen is not None:
            files = files.where(files[name].isin(list(chosen)))
    return _extracted(files, columns, extract or {}).unionByName(tail)


def require_whole(held: ArchivedPartition) -> None:
    """Refuse a log partition of which events are neither in a file nor in the log.

    Raises:
        LogIncomplete: The text says which.
    """
    following = 0
    for from_offset, to_offset in (
        *((file.range.from_offset, file.range.to_offset) for file in held.files),
        (max(held.end, held.earliest_offset), held.high_water_mark),
    ):
        if from_offset > following:
            raise LogIncomplete(
                "Archive and log together do not hold every event.",
                detail=f"log partition {held.partition}: offsets {following} to {from_offset} are in no listed file,"
                f" and the log begins at {held.earliest_offset}",
                hint="They were purged before there was an archive. Nothing can be built from the first event on.",
            )
        following = to_offset


def _extracted(files: "DataFrame", columns: Sequence[str], extract: Mapping[str, Sequence[str]]) -> "DataFrame":
    if not extract:
        return files.select(*columns)
    types = {name: COLUMNS[name][0] for name in columns} | dict.fromkeys(extract, "string")
    schema = ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in types.items())
    read = dict.fromkeys([*columns, "data"])
    fields = partial(_with_fields, columns=tuple(columns), paths={name: tuple(path) for name, path in extract.items()})
    return files.select(*read).mapInArrow(fields, schema)


def _with_fields(
    batches: "Iterable[pa.RecordBatch]", *, columns: tuple[str, ...], paths: Mapping[str, tuple[str, ...]]
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    from resources.json_fields import field, parsed

    for batch in batches:
        values = [parsed(text) for text in batch.column("data").to_pylist()]
        found = {name: pa.array([field(value, path) for value in values], pa.string()) for name, path in paths.items()}
        yield pa.RecordBatch.from_pydict({name: batch.column(name) for name in columns} | found)
