"""Reads Parquet that another program may have written, in bounded memory.

A column that repeats one value has it once in the file: some kilobytes decode to any number of gigabytes. So texts are
read as their dictionary has them, and the sizes in the footer and in each page's header are judged before anything is
decoded.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.archive.page_headers import UnreadableHeader, page_sizes

# the most bytes of a column in one row group: files that Millrace writes have about 8 MiB, or one row
CHUNK_BYTES = 256 * 2**20
# the most bytes of a value: an event, a result or a state may have values of a sixteenth of this size
VALUE_BYTES = 16 * 2**20
# bytes of a batch's texts when decoded, or one row
BATCH_BYTES = 16 * 2**20


class TooLarge(pa.ArrowException):  # type: ignore[misc]  # pyarrow has no types
    """A value, or a column of a row group, is larger than any that Millrace writes."""


class BoundedFile:
    """A file that is read in batches, each page checked by its checksum; to be closed in the end.

    Raises:
        pa.ArrowException: It cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        with pq.ParquetFile(path) as file:
            self.metadata, self._schema = file.metadata, file.schema_arrow
        texts = [field.name for field in self._schema if pa.types.is_string(field.type)]
        self._file = pq.ParquetFile(
            path, metadata=self.metadata, page_checksum_verification=True, read_dictionary=texts
        )

    def batches(
        self, batch_size: int, row_groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read some row groups (None: all) and columns (None: all), at most `batch_size` rows at once.

        Raises:
            TooLarge: There is a larger value, or a larger column, than Millrace writes.
            pa.ArrowException: It cannot be read.
        """
        require_small(self._path, self.metadata, column_bytes=CHUNK_BYTES, row_groups=row_groups, columns=columns)
        for batch in self._file.iter_batches(batch_size, row_groups=row_groups, columns=columns):
            schema = pa.schema([self._schema.field(name) for name in batch.schema.names])
            sizes = np.zeros(len(batch), dtype=np.int64)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if not pa.types.is_dictionary(column.type):
                    continue
                lengths = pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0)
                if len(lengths) and (longest := pc.max(lengths).as_py()) > VALUE_BYTES:
                    raise TooLarge(f"A value of column {name} has {longest:,} bytes.")
                sizes += lengths.to_numpy(zero_copy_only=False)
            totals, begin = np.cumsum(sizes), 0
            while begin < len(batch):
                before = totals[begin - 1] if begin else 0
                end = max(begin + 1, int(np.searchsorted(totals, before + BATCH_BYTES, side="right")))
                part = batch.slice(begin, end - begin).columns
                decoded = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in part]
                yield pa.RecordBatch.from_arrays(decoded, schema=schema)
                begin = end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def bounded_batches(path: Path, batch_size: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Read a whole file in batches of at most `batch_size` rows.

    Raises:
        TooLarge: It has larger values or columns than Millrace writes.
        pa.ArrowException: It cannot be read.
    """
    with BoundedFile(path) as file:
        yield from file.batches(batch_size)


def require_small(
    path: Path | str,
    metadata: pq.FileMetaData,
    *,
    column_bytes: int | None = None,
    row_groups: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
) -> None:
    """Refuse a file with a page of more than CHUNK_BYTES, before anything is decoded.

    Args:
        path: The file.
        metadata: Its footer.
        column_bytes: How many bytes a column of a row group may have in all its pages; None for any number.
        row_groups: The row groups to check; None for all.
        columns: The columns to check, as Arrow names them; None for all.

    Raises:
        TooLarge: A page or a column has more.
        pa.ArrowInvalid: A page does not state its size.
    """
    most = math.inf if column_bytes is None else column_bytes
    with Path(path).open("rb") as file:
        groups = range(metadata.num_row_groups) if row_groups is None else row_groups
        for group, column in product(groups, range(metadata.num_columns)):
            chunk = metadata.row_group(group).column(column)
            leaf = chunk.path_in_schema
            # a column of several leaves has its name before theirs
            if columns is not None and not any(leaf == name or leaf.startswith(f"{name}.") for name in columns):
                continue
            if chunk.num_values == 0:
                continue  # it has no page, and Arrow looks for none
            begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
            total, stated = 0, chunk.total_uncompressed_size
            try:
                for size in page_sizes(file, begin, chunk.total_compressed_size):
                    total += size
                    if size > CHUNK_BYTES or max(total, stated) > most:
                        raise TooLarge(f"Column {leaf} has {max(total, stated):,} bytes at once.")
            except UnreadableHeader as error:
                raise pa.ArrowInvalid(f"Column {leaf}: {error}") from None
