"""One file of the archive: writes, reads and checks a range of one log partition in Parquet; its name is the range.

The same range of the same log gives the same content.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from millrace.archive.bounded import bounded_batches
from millrace.archive.fields import (
    MOST_FIELDS,
    NO_NUMBERS,
    VALUE_BYTES,
    Fields,
    FoundField,
    RangeFields,
    chosen_fields,
    with_columns,
)
from millrace.errors import ArchiveDamaged
from millrace.spark.log_source import COLUMNS, LogRange
from millrace.spark.log_source.reading import PLAN

_ARROW = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
# names, order and types of the source event_log; and numbers from 1, for readers that find columns by number
SCHEMA = pa.schema(
    [
        pa.field(name, _ARROW[type_], metadata={"PARQUET:field_id": str(number)})
        for number, (name, (type_, _)) in enumerate(COLUMNS.items(), 1)
    ]
)
# The fields of a range are chosen by one event in this many, those of a small range by every event. A prime number:
# events come in patterns, such as of four events a stream.
SAMPLE_STEP = 17
SMALL_RANGE = 5_000
# a few of these are in memory at once, or one event if that is larger
BATCH_BYTES = 8 * 1024 * 1024
_NAME = re.compile(r"p(\d{4,})-(\d{15,})-(\d{15,})\.parquet")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")

_RANGE = sql.SQL(
    'select {columns} from event_store.event_log l join event_store.events e using ("offset")'
    " where l.partition = {partition} and l.position >= {from_position} and l.position < {to_position}"
    " order by l.position"
)
# the top-level fields of data of some events, and whether each is a short scalar in all of them that have it; the row
# without a field stands for events with no fields in data, and says whether data is an array in one of them
_FIELDS = sql.SQL(
    """
    select
      f.key,
      bool_and(jsonb_typeof(f.value) not in ('object', 'array') and pg_column_size(f.value) <= {most_bytes}),
      bool_or(jsonb_typeof(e.data) = 'array') filter (where f.key is null)
    from generate_series({from_position}, {to_position} - 1, {step}) looked("position")
    join event_store.event_log l on l.partition = {partition} and l."position" = looked."position"
    join event_store.events e using ("offset")
    left join lateral jsonb_each(case jsonb_typeof(e.data) when 'object' then e.data end) f on true
    group by f.key order by f.key is not null, count(*) desc, f.key collate "C" limit {most}
    """
)
# an event's report of its fields that are not known, if there are any: see RangeFields.add
_UNKNOWN = sql.SQL(
    """
    case jsonb_typeof(e.data)
      when 'array' then 'null'
      when 'object' then
        case when e.data - {known}::text[] <> '{{}}' then
          (select jsonb_agg(f.key) from jsonb_object_keys(e.data - {known}::text[]) f(key))::text
        end
    end
    """
)


def path_of(log_range: LogRange) -> str:
    """Return the path of a range's file below the root; paths sort as ranges do."""
    folder = f"p{log_range.partition:04}"
    return f"{folder}/{folder}-{log_range.from_position:015}-{log_range.to_position:015}.parquet"


@dataclass(frozen=True)
class LogFile:
    """A file that was written and read back."""

    bytes: int
    checksum: str


def range_of(name: str) -> LogRange | None:
    """Return the range that a file's name states; None for a name that Millrace gives no file."""
    found = _NAME.fullmatch(name)
    return LogRange(*map(int, found.groups())) if found else None


def is_temporary(name: str) -> bool:
    """Return whether a name is a temporary one of `whole_file`; removing such a file stops its writer with an error."""
    return _TEMPORARY.fullmatch(name) is not None


def range_fields(cursor: Any, log_range: LogRange) -> RangeFields:  # noqa: ANN401 - ADBC has no types
    """Choose the fields of `data` that get a column in a range's file: always the same ones for the same range."""
    cursor.execute(PLAN)
    cursor.fetchall()
    step = SAMPLE_STEP if log_range.size > SMALL_RANGE else 1
    query = _FIELDS.format(step=step, most_bytes=VALUE_BYTES, most=MOST_FIELDS + 2, **vars(log_range))
    cursor.execute(query.as_string())
    rows = cursor.fetchall()
    found = [FoundField(name, short) for name, short, _ in rows if name is not None]
    return RangeFields(chosen_fields(found, arrays=any(arrays for name, _, arrays in rows if name is None)))


def read_range(cursor: Any, log_range: LogRange, fields: RangeFields | None = None) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
    """Read a range from Postgres in order, through an ADBC cursor within a transaction, a batch at a time.

    The columns of some fields of `data` come after the others; `fields` collects those that have no column.
    """
    from adbc_driver_postgresql import StatementOptions

    # by index and in its order, for any statistics: a range is a small part of the log
    cursor.execute(PLAN)
    cursor.fetchall()
    cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
    fields = fields or RangeFields(Fields())
    values: list[sql.Composable] = [sql.SQL(expression) for _, expression in COLUMNS.values()]
    # an array gives an element for a number, but takes twice the time
    values += [
        sql.SQL("e.data #>> {}::text[]").format(sql.Literal([name]))
        if any(character.isdigit() for character in name)
        else sql.SQL("e.data ->> {}").format(sql.Literal(name))
        for name in fields.columns
    ]
    known_fields = fields.known_fields
    if known_fields is not None:
        values.append(_UNKNOWN.format(known=sql.Literal(known_fields)))
    # by numbers: Postgres keeps only 63 bytes of a name
    columns = [sql.SQL("{} as {}").format(value, sql.Identifier(f"c{n}")) for n, value in enumerate(values)]
    # without bind parameters, because ADBC reads by COPY only then
    cursor.execute(_RANGE.format(columns=sql.SQL(", ").join(columns), **vars(log_range)).as_string())
    schema = with_columns(SCHEMA, fields.columns)
    for batch in cursor.fetch_record_batch():
        if known_fields is not None:
            fields.add(batch.column(len(schema)))
        yield batch.select(range(len(schema))).rename_columns(schema.names).cast(schema)


def read_file(path: Path, log_range: LogRange) -> Iterator[pa.RecordBatch]:
    """Read the part of a range that a file holds, in order, a batch at a time, without columns of fields.

    Raises:
        ArchiveDamaged: The file cannot be read.
    """
    try:
        for batch in bounded_batches(path):
            first = batch.column("position")[0].as_py()
            begin, end = max(log_range.from_position - first, 0), min(log_range.to_position - first, len(batch))
            if begin < end:
                yield batch.slice(begin, end - begin).select(SCHEMA.names).cast(SCHEMA)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"{path} cannot be read.", detail=str(error)) from error


def write_file(
    root: Path,
    log_range: LogRange,
    batches: Iterable[pa.RecordBatch],
    *,
    fields: RangeFields | None = None,
    numbers: Mapping[str, int] = NO_NUMBERS,
    ready: Callable[[], object] = bool,
) -> LogFile:
    """Write a range as a file below the root, sync it, and read it back.

    The new file replaces an older one of the range, as in `whole_file`. The batches have the columns of `fields`, which
    know the other fields after the last batch. Readers find columns by `numbers` in each file of an archive.

    Raises:
        ArchiveDamaged: The batches are not exactly the range, or the file reads back differently.
    """
    path = root / path_of(log_range)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(path, ready=ready) as sink:
        schema = with_columns(SCHEMA, fields.columns if fields else (), numbers)
        # Arrow's own copy of the schema would hide the footer's final metadata, and Parquet knows all of our types
        with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True, store_schema=False) as writer:
            for batch in _exactly(log_range, batches, str(path)):
                writer.write_batch(batch, row_group_size=len(batch))
            if fields is not None:
                writer.add_key_value_metadata(fields.stated.metadata)
        size = sink.tell()
    if path.stat().st_size != size:
        raise ArchiveDamaged(f"{path} has another size than was written.", hint="Is another program writing there?")
    require_range(path, log_range)
    return LogFile(size, file_checksum(path))


@contextmanager
def whole_file(path: Path, *, ready: Callable[[], object] = bool, new: bool = False) -> Iterator[BinaryIO]:
    """Write a file that is complete or absent, even after a kill or a power failure.

    The block writes under a temporary name, which readers ignore. After the block the content is synced, the file gets
    its name, and the folder is synced. If the block or `ready` raises, nothing has changed.

    Args:
        path: The file's name; its folder must exist.
        ready: Called when only the renaming is left.
        new: Refuse to replace a file of that name.

    Raises:
        FileExistsError: With `new`, such a file exists.
    """
    temporary = path.parent / f".{path.name}.{uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        ready()
        if new:
            path.hardlink_to(temporary)
        else:
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def require_range(path: Path, log_range: LogRange) -> None:
    """Read a file to its end: check the checksum of each page, and that each position occurs once, in order.

    Raises:
        ArchiveDamaged: The file is not whole.
    """
    for _ in _exactly(log_range, read_file(path, LogRange(log_range.partition, 0, 2**62)), str(path)):
        pass


def require_checksum(path: Path, size: int, checksum: str) -> None:
    """Check that a file has the size and the checksum that are recorded.

    Raises:
        ArchiveDamaged: The file is missing, or has another size or checksum.
    """
    try:
        found = path.stat().st_size
        fault = f"it has {found:,} bytes, not {size:,}" if found != size else None
        if fault is None and file_checksum(path) != checksum:
            fault = "its content has another checksum than was recorded"
    except OSError as error:
        fault = error.strerror or str(error)
    if fault is not None:
        raise ArchiveDamaged(
            f"{path} is not the file that was written: {fault}.",
            hint="Put the file back from a copy of this folder.",
        )


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlast a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exactly(log_range: LogRange, batches: Iterable[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    """Pass batches on as long as they are the range: of its log partition, each position once, in order, to the end."""
    following = log_range.from_position
    for batch in batches:
        expected = pa.array(np.arange(following, following + len(batch), dtype=np.int64))
        partitions = pa.repeat(pa.scalar(log_range.partition, pa.int32()), len(batch))
        if not (batch.column("position").equals(expected) and batch.column("partition").equals(partitions)):
            break
        following += len(batch)
        yield batch
    else:
        if following == log_range.to_position:
            return
    raise ArchiveDamaged(
        f"{what} would not hold positions {log_range.from_position} to {log_range.to_position} of log partition {log_range.partition}.",
        detail=f"Position {following} is missing, or is followed by others than these.",
        hint="Was the log shortened meanwhile? Run it again.",
    )
