"""Opens event files, CSV, JSON Lines, XES and Parquet by their suffixes, and reads the rows of Parquet.

Rows come in constant memory, numbered from 1 in the order of the file. Values are JSON values. CSV gives text, and an
empty cell is null. The other formats keep their types; a number that a float would round, a decimal and a time are
exact text; not-a-number is null; bytes are base64.
"""

import base64
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.archive.bounded import require_small
from millrace.errors import ImportRefused
from millrace.importer.file_rows import ROW_LIMIT, EventFile, Format, Row, refuse_twins
from millrace.importer.text import open_csv, open_jsonl
from millrace.importer.xes import open_xes

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".xes": "xes",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def suffix_of(path: Path) -> str:
    """Return the suffix that determines a file's format; `.gz` may follow that of a text format."""
    return (Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix).lower()


def file_format(path: Path) -> Format:
    """Return a file's format by its name.

    Raises:
        ImportRefused: The suffix is unknown.
    """
    found = SUFFIXES.get(suffix_of(path))
    if found is None:
        raise ImportRefused(
            f"The name {path.name} does not tell the file's format.",
            detail=f"Known suffixes: {', '.join(SUFFIXES)}; all but Parquet also with .gz.",
            hint="Say it with --format csv, jsonl, xes or parquet.",
        )
    return found


@contextmanager
def open_event_file(path: Path, format_: Format | None = None, delimiter: str | None = None) -> Iterator[EventFile]:
    """Open a file for one pass over its rows.

    Args:
        path: The file.
        format_: By default the format of its suffix.
        delimiter: The text between the cells of CSV; by default a tab in `.tsv`, else a comma.

    Raises:
        ImportRefused: The file is missing, empty, damaged, or of another format. Reading the rows raises it, too.
    """
    format_ = format_ or file_format(path)
    if delimiter is not None and (format_ != "csv" or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ImportRefused(
            f"{delimiter!r} cannot be the delimiter of {path}.",
            detail=f"The file is {format_}; only CSV has a delimiter, which is one character and no quote or line break.",
            hint="Leave it out, or say another one, such as --delimiter ';' or --delimiter tab.",
        )
    if not path.is_file():
        raise ImportRefused(f"{path} is not a file." if path.exists() else f"There is no file {path}.")
    with ExitStack() as stack:
        with _damage(path):
            if path.stat().st_size == 0:
                raise ImportRefused(f"{path} is empty.")
            if format_ == "csv":
                file = open_csv(path, stack, delimiter or ("\t" if suffix_of(path) == ".tsv" else ","))
            else:
                file = _OPEN[format_](path, stack)
        yield replace(file, rows=_until_damage(path, file.rows))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise ImportRefused(f"{path} cannot be read.", detail=str(error)) from error


def _until_damage(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    with _damage(path):
        yield from rows


def _open_parquet(path: Path, stack: ExitStack) -> EventFile:
    file = stack.enter_context(pq.ParquetFile(path, pre_buffer=False))
    # other writers may make large row groups; their pages are small
    require_small(path, file.metadata)
    columns: list[str] = file.schema_arrow.names
    refuse_twins(path, columns)
    metadata = file.metadata
    stored_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    batch = max(1, min(1000, ROW_LIMIT * metadata.num_rows // max(1, stored_bytes)))
    rows_read = 0

    def rows() -> Iterator[Row]:
        nonlocal rows_read
        for records in file.iter_batches(batch_size=batch):
            size = records.nbytes // max(1, records.num_rows)
            for values in zip(*map(_values, records.columns), strict=True):
                rows_read += 1
                yield Row(rows_read, rows_read, "", size, dict(zip(columns, values, strict=True)))

    return EventFile(tuple(columns), rows(), lambda: rows_read, metadata.num_rows)


_OPEN = {"jsonl": open_jsonl, "xes": open_xes, "parquet": _open_parquet}


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):  # not UTF-8, or a time beyond Python's
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return cast(list[Any], column.cast(pa.string()).to_pylist())
        texts = column.cast(pa.large_binary()).to_pylist()
        return [text and text.decode("utf-8", "surrogateescape") for text in texts]
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return cast(list[Any], values)
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:  # noqa: ANN401 - Parquet has any type, JSON too
    """Return a value as JSON can hold it."""
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)
