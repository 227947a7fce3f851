"""Files that are small and decode to much: what Millrace never writes is refused, and the rest takes bounded memory."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.resources.archive.bounded import BATCH_BYTES, CHUNK_BYTES, VALUE_BYTES, TooLarge, bounded_batches

READ = """
import sys
from pathlib import Path
import pyarrow as pa
from millrace.resources.archive.bounded import bounded_batches
rows = 0
try:
    for batch in bounded_batches(Path(sys.argv[1])):
        rows += len(batch)
except pa.ArrowException as error:
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


def test_a_small_file_that_repeats_a_value_is_decoded_bit_by_bit(tmp_path: Path) -> None:
    path = write(tmp_path / "repeated", ["x" * 967_000] * 1000)
    assert path.stat().st_size < 10_000
    said, most = read(path)
    assert said == "1000"
    assert most < 6 * BATCH_BYTES


def test_a_value_that_millrace_never_writes_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "long", ["x" * (VALUE_BYTES + 1)] * 60)
    said, most = read(path)
    assert said == "TooLarge 0"
    assert most < 6 * BATCH_BYTES
    with pytest.raises(TooLarge, match=r"A value of column data has 16,777,217 bytes"):
        list(bounded_batches(path))


def test_a_column_that_is_too_large_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "huge", ["x" * (CHUNK_BYTES + MIB)])
    assert path.stat().st_size < 200_000
    said, most = read(path)
    assert said == "TooLarge 0"
    assert most < MIB
    with pytest.raises(TooLarge, match="Column data has"):
        list(bounded_batches(path))


@pytest.mark.parametrize("dictionary", [True, False])
def test_every_row_comes_as_it_was_written(tmp_path: Path, dictionary: bool) -> None:
    values = [None, "", "é", "x" * 9 * MIB, "y" * 9 * MIB, None, *map(str, range(3000)), *["same"] * 3000]
    path = write(tmp_path / "all", values, use_dictionary=dictionary, row_group_size=2500)
    batches = list(bounded_batches(path, 1000))
    assert [value for batch in batches for value in batch.column("data").to_pylist()] == values
    assert max(len(batch) for batch in batches) <= 1000
    assert batches[0].schema.field("data").type == pa.string()
    assert list(bounded_batches(write(tmp_path / "none", []))) == []
