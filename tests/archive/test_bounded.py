"""Small files that decode to much: refused if Millrace never writes the like, else read in bounded memory."""

import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.archive.bounded import BATCH_BYTES, CHUNK_BYTES, VALUE_BYTES, TooLarge, bounded_batches
from millrace.archive.page_headers import UnreadableHeader, page_sizes

READ = """
import sys
from pathlib import Path
import pyarrow as pa
from millrace.archive.bounded import bounded_batches
rows = 0
try:
    for batch in bounded_batches(Path(sys.argv[1])):
        rows += len(batch)
except (OSError, pa.ArrowException) as error:
    print(type(error).__name__, end=" ")
print(rows, pa.default_memory_pool().max_memory())
"""
MIB = 2**20


def read(path: Path) -> tuple[str, int]:
    """Read a file in a process of its own; return the outcome and the most memory that Arrow had."""
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    *said, most = done.stdout.split()
    return " ".join(said), int(most)


def write(path: Path, values: list[str | None], **options: object) -> Path:
    pq.write_table(pa.table({"n": range(len(values)), "data": values}), path, compression="zstd", **options)
    return path


def number(value: int, width: int = 1) -> bytes:
    """Write a number as Thrift does, in at least `width` bytes."""
    out, value = bytearray(), value << 1
    while value > 127 or len(out) < width - 1:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def lie(path: Path, truth: int, lie: int) -> None:
    """Replace each occurrence of a number in a file by a false one."""
    content, said = path.read_bytes(), number(truth)
    assert said in content
    path.write_bytes(content.replace(said, number(lie, len(said))))


# values that a small file decodes to (200 MB or more), how the file is written, whether its footer lies about the
# column, the outcome, the memory limit, and the expected error
LARGE: tuple[tuple[list[str | None], dict[str, object], bool, str, int, str], ...] = (
    # a repeated value is decoded in small batches
    (["x" * 967_000] * 300, {}, False, "300", 6 * BATCH_BYTES, ""),
    # Millrace never writes such a value
    (["x" * (VALUE_BYTES + 1)] * 12, {}, False, "TooLarge 0", 6 * BATCH_BYTES, "A value of column data has 16,777,217 bytes"),
    # a column is refused before it is decoded, even if the footer lies about its size
    (["x" * (CHUNK_BYTES + MIB)], {}, False, "TooLarge 0", MIB, "Column data has"),
    (["x" * (CHUNK_BYTES + MIB), "y"], {}, True, "TooLarge 0", MIB, r"Column data has 269,\d{3},\d{3} bytes at once"),
    # many pages with too large a total
    (["x" * 9 * MIB] * 30, {"use_dictionary": False, "write_batch_size": 1}, True, "TooLarge 0", MIB, "Column data has"),
)  # fmt: skip


@pytest.mark.parametrize(("values", "options", "lies", "outcome", "within", "said"), LARGE, ids=range(len(LARGE)))
def test_a_bomb_is_read_or_refused_in_bounded_memory(
    tmp_path: Path,
    values: list[str | None],
    options: dict[str, object],
    lies: bool,
    outcome: str,
    within: int,
    said: str,
) -> None:
    path = write(tmp_path / "large", values, **options)
    assert path.stat().st_size < 200_000
    if lies:
        lie(path, pq.ParquetFile(path).metadata.row_group(0).column(1).total_uncompressed_size, 2000)
        assert pq.ParquetFile(path).metadata.row_group(0).column(1).total_uncompressed_size == 2000
    found, most = read(path)
    assert found == outcome
    assert most < within
    if outcome != "300":
        with pytest.raises(TooLarge, match=said):
            list(bounded_batches(path))


def test_a_page_that_says_less_than_it_has_or_more_than_it_may_is_refused(tmp_path: Path) -> None:
    for claimed, outcome in ((2000, "OSError 0"), (2**31 - 1, "TooLarge 0")):
        path = write(tmp_path / f"page {claimed}", ["x" * 9 * MIB], use_dictionary=False, column_encoding="PLAIN")
        chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
        with path.open("rb") as file:
            (size,) = page_sizes(file, chunk.data_page_offset, chunk.total_compressed_size)
        lie(path, size, claimed)
        said, most = read(path)
        assert said == outcome
        assert most < MIB


def test_what_is_no_header_of_a_page_is_damage(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", [str(uuid4()) for _ in range(100)], use_dictionary=False)
    chunk = pq.ParquetFile(whole).metadata.row_group(0).column(1)
    content, begin = whole.read_bytes(), chunk.data_page_offset
    # an empty header, a number without an end, structs in structs, a list, a negative size, a text of gigabytes
    headers = (b"", b"\xff" * 40, b"\x1c" * 40, b"\x19" * 40, b"\x15\x00\x15\x01\x15\x04", b"\x18\xff\xff\xff\xff\x07")
    for n, torn in enumerate(headers):
        path = tmp_path / str(n)
        path.write_bytes(content[:begin] + torn.ljust(60, b"\0") + content[begin + 60 :])
        with pytest.raises(pa.ArrowException):
            list(bounded_batches(path))
    with whole.open("rb") as file:
        for begin in (-1, len(content), 2**63 - 1):
            with pytest.raises(UnreadableHeader, match="no header of a page at byte"):
                list(page_sizes(file, begin, 10))


def test_of_a_size_that_is_said_twice_the_last_one_counts() -> None:
    small, large = number(100), number(2**31 - 1)
    # kind of the page, its size, its size again by the field's number, its bytes in the file, the end
    for first, second, size in ((small, large, 2**31 - 1), (large, small, 100)):
        header = b"\x15\x00\x15" + first + b"\x05\x04" + second + b"\x15" + number(0) + b"\x00"
        assert [*page_sizes(BytesIO(header), 0, len(header))] == [size]


@given(st.binary(max_size=300))
def test_whatever_stands_in_the_place_of_a_header_is_a_size_or_damage(content: bytes) -> None:
    with suppress(UnreadableHeader):
        assert all(size >= 0 for size in page_sizes(BytesIO(content), 0, len(content)))


def test_the_pages_of_every_kind_of_file_are_found(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": range(5000),
            "maybe": [None, 1.5] * 2500,
            "text": [f"{n}-{'x' * 200}" for n in range(5000)],
            "lists": [[n, n + 1] for n in range(5000)],
            "structs": [{"a": n, "b": str(n)} for n in range(5000)],
        }
    )
    path = tmp_path / "pages"
    for version, codec in (("1.0", "none"), ("2.0", "snappy"), ("2.0", "zstd")):
        options = {"data_page_version": version, "data_page_size": 4096, "row_group_size": 3000}
        pq.write_table(table, path, compression=codec, write_page_checksum=True, **options)
        metadata = pq.ParquetFile(path).metadata
        with path.open("rb") as file:
            for chunk in (metadata.row_group(g).column(c) for g in range(2) for c in range(metadata.num_columns)):
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                sizes = [*page_sizes(file, begin, chunk.total_compressed_size)]
                # the footer's size includes the page headers with their statistics
                assert 0 < chunk.total_uncompressed_size - sum(sizes) < 500 * len(sizes)
                assert len(sizes) > 1
        assert sum(map(len, bounded_batches(path))) == 5000


def test_every_row_comes_as_it_was_written(tmp_path: Path) -> None:
    values = [None, "", "é", "x" * 9 * MIB, "y" * 9 * MIB, None, *map(str, range(3000)), *["same"] * 3000]
    for dictionary in (True, False):
        path = write(tmp_path / "all", values, use_dictionary=dictionary, row_group_size=2500)
        batches = list(bounded_batches(path, 1000))
        assert [value for batch in batches for value in batch.column("data").to_pylist()] == values
        assert max(len(batch) for batch in batches) <= 1000
        assert batches[0].schema.field("data").type == pa.string()
    assert list(bounded_batches(write(tmp_path / "none", []))) == []
