"""Proves that archived files are the listed ones, and reads whole ones by Spark's own Parquet reader.

Spark's reader takes a third of our reader's time, but it trusts a file, which may decode to any number of gigabytes or
have fewer rows. So it gets only files that are, byte for byte, those that our writer wrote, read back and listed. Not
here: files that are read in part, or that lack a column of a wanted field (`spark_reader`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.archive.fields import Fields, column_of, stated_fields
from millrace.archive.files import path_of, require_checksum
from millrace.archive.listing import ArchivedFile
from millrace.archive.spark_reader import FileUnreadable, RowSelection
from millrace.errors import ArchiveDamaged
from millrace.spark.log_source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# bytes of files that a task of the proof reads, which takes a twentieth of a second; and the most tasks
TASK_BYTES = 64 * 2**20
MOST_TASKS = 256
# These override Spark's configuration: every file is read, and times are read as written.
_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "true",  # no columns are made of the names of folders
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
_GLOB = frozenset("{}[]*?\\")


def spark_reads(root: Path) -> bool:
    """Return whether Spark's reader takes files below a folder: not if a path with a colon needs an escape."""
    whole = str(root.absolute())
    return ":" not in whole or _GLOB.isdisjoint(whole)


def proven_fields(spark: "SparkSession", root: Path, files: Sequence[ArchivedFile]) -> dict[ArchivedFile, Fields]:
    """Check in Spark's tasks that files are the listed ones; return the fields that have columns in each.

    Raises, as an error of Spark's, FileUnreadable: A file is missing or differs from its listing.
    """
    if not files:
        return {}
    tasks = 1 + sum(file.bytes for file in files) // TASK_BYTES
    numbers = spark.range(0, len(files), 1, min(len(files), tasks, MOST_TASKS))
    rows = numbers.mapInArrow(prover(root, files), "number bigint, columns string, others string").collect()
    found = {row["number"]: row for row in rows}
    fields = {}
    for number, file in enumerate(files):
        columns, others = json.loads(found[number]["columns"]), json.loads(found[number]["others"])
        fields[file] = Fields(tuple(columns), None if others is None else tuple(others))
    return fields


def prover(root: Path, files: Sequence[ArchivedFile]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that turns numbers of files into the fields that these state."""

    def prove(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            found = [fields_of(root, files[number]) for number in numbers]
            yield pa.RecordBatch.from_pydict(
                {
                    "number": pa.array(numbers, pa.int64()),
                    "columns": pa.array([json.dumps(each.columns) for each in found], pa.string()),
                    "others": pa.array([json.dumps(each.others) for each in found], pa.string()),
                }
            )

    return prove


def fields_of(root: Path, file: ArchivedFile) -> Fields:
    """Check that a file is the listed one; return the fields that have columns in it.

    Raises:
        FileUnreadable: It is missing or differs from its listing.
    """
    import pyarrow.parquet as pq

    path = root / file.path
    try:
        if file.path != path_of(file.range):
            raise ArchiveDamaged(f"{path} has not the name of positions {file.range.from_position} and on.")
        require_checksum(path, file.bytes, file.checksum)
        with pq.ParquetFile(path) as opened:
            return stated_fields(opened.schema_arrow)
    except (OSError, pa.ArrowException, ArchiveDamaged, IndexError, TypeError) as error:
        # without its cause: of chained errors a driver sees the class of the first one
        raise FileUnreadable(f"event_log: {path} cannot be read: {error}") from None


def whole_rows(spark: "SparkSession", paths: Sequence[Path], selection: RowSelection) -> "DataFrame":
    """Read all events of proven files that have columns of all wanted fields."""
    from pyspark.sql import functions as f

    filters = {"decider": selection.deciders, "event": selection.events}
    types = {name: COLUMNS[name][0] for name in COLUMNS if name in selection.columns or filters.get(name) is not None}
    types |= {column_of(path[0]): "string" for _, path in selection.extract}
    ddl = ", ".join(f"{_quoted(name)} {type_}" for name, type_ in types.items())
    # paths of the local file system, in which no character is a pattern
    uris = ["file:" + "".join(f"\\{c}" if c in _GLOB else c for c in path.absolute().as_posix()) for path in paths]
    rows = spark.read.schema(ddl).options(**_OPTIONS).parquet(*uris)
    for name, chosen in filters.items():
        if chosen is not None:
            rows = rows.where(f.col(name).isin(*chosen) if chosen else f.lit(False))
    columns = [f.col(_quoted(name)) for name in selection.columns]
    return rows.select(*columns, *(f.col(_quoted(column_of(path[0]))).alias(name) for name, path in selection.extract))


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
