"""Parts of archived files as tasks read them: each row once for all row groups, shares and cuts."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.archive.fields import Fields
from millrace.archive.files import SCHEMA, path_of, write_file
from millrace.archive.listing import ArchivedFile
from millrace.archive.spark_reader import FilePart, FileUnreadable, RowSelection, rows_of, shared
from millrace.spark.log_source import LogRange

SELECTION = RowSelection(None, None, ("position",), ())
# files of one log partition with the sizes of their row groups
FILES = {LogRange(0, 0, 10): [4, 3, 3], LogRange(0, 10, 11): [1], LogRange(0, 11, 30): [1, 17, 1]}


def events(held: LogRange, first: int, number: int) -> pa.RecordBatch:
    rows = [{"partition": held.partition, "position": first + n, "event": "even" if (first + n) % 2 == 0 else "odd"} for n in range(number)]  # fmt: skip
    return pa.RecordBatch.from_pylist([dict.fromkeys(SCHEMA.names) | row for row in rows], schema=SCHEMA)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    for held, groups in FILES.items():
        firsts = [held.from_position + sum(groups[:n]) for n in range(len(groups))]
        write_file(root, held, (events(held, first, n) for first, n in zip(firsts, groups, strict=True)))
    return root


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_each_row_between_the_cuts_is_read_by_one_task(root: Path, begin: int, end: int, most: int) -> None:
    files = [ArchivedFile(held, path_of(held), 1, "") for held in FILES]
    tasks = shared(root, {file: Fields() for file in files if file.range.from_position < end}, {0: (begin, end)}, most)
    batches = [batch for task in tasks for part in task for batch in rows_of(part, SELECTION)]
    assert sorted(offset for batch in batches for offset in batch.column(0).to_pylist()) == list(range(begin, end))
    assert all(task for task in tasks)


def test_tasks_share_what_there_is_evenly(root: Path) -> None:
    files = [ArchivedFile(LogRange(p, 0, rows), f"{p}", 1, "") for p, rows in enumerate([250, 40, 50, 20, 100])]
    tasks = shared(root, dict.fromkeys(files, Fields()), dict.fromkeys(range(5), (0, 250)), 100)
    assert [[(part.path[-1], part.from_row, part.to_row) for part in task] for task in tasks] == [
        [("0", 0, 100)],
        [("0", 100, 200)],
        [("0", 200, 250), ("1", 0, 40)],
        [("2", 0, 50), ("3", 0, 20)],
        [("4", 0, 100)],
    ]


def test_filters_leave_rows_out(root: Path) -> None:
    part = FilePart(str(root / path_of(LogRange(0, 0, 10))), 10, 0, 10, 0, 10)
    selection = RowSelection(None, ("odd",), ("position",), ())
    assert [offset for batch in rows_of(part, selection) for offset in batch.column(0).to_pylist()] == [1, 3, 5, 7, 9]


def test_a_torn_file_is_an_error_that_names_it(root: Path, tmp_path: Path) -> None:
    path = str(root / path_of(LogRange(0, 0, 10)))
    with pytest.raises(FileUnreadable, match=r"event_log: .*p0000-.* has 10 events, and 11 are listed"):
        list(rows_of(FilePart(path, 11, 0, 11, 0, 11), SELECTION))
    torn = tmp_path / "torn.parquet"
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 8] ^= 0xFF
    torn.write_bytes(content)
    everything = RowSelection(None, None, tuple(SCHEMA.names), ())
    for broken in (torn, tmp_path / "gone.parquet"):
        with pytest.raises(FileUnreadable, match=f"event_log: {broken} cannot be read"):
            list(rows_of(FilePart(str(broken), 10, 0, 10, 0, 10), everything))
