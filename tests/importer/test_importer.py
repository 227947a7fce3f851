"""Importing event logs: the event of a row, and every row once.

Not here: rows and files that cannot be imported (`test_rejects`), the times of a foreign log (`test_times`),
substitutes for a column (`test_stand_ins`), kills (`test_batches_ahead`), and the command
(`tests/platform_defs/cli/test_import.py`).
"""

import gzip
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID, uuid4, uuid5

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import ImportRefused
from millrace.event_store.platform import PlatformStore
from millrace.importer.imported_events import NAMESPACE, Columns
from millrace.importer.importer import ImportProgress, ImportReport
from tests.support import import_logs
from tests.support.import_logs import TIME, many_rows, rejected, run, stored, write_csv, write_text
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events

# The event of a row ----------------------------------------------------------------------------------------


def test_a_csv_cell_is_text_and_an_empty_one_null(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", [("c-1", "begun", "2024-05-01", ""), ("c-1", "ended", TIME, '1,5 "x"\nü')])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert run(dsn, file).appended == 2
    assert stored(store) == [
        ("c-1", "begun", {"at": "2024-05-01", "n": None}),
        ("c-1", "ended", {"at": TIME, "n": '1,5 "x"\nü'}),
    ]


def test_json_lines_keep_their_types_and_every_digit(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_text(
        tmp_path / "log.jsonl",
        '{"case": 7, "activity": "begun", "at": "2024-05-01 10:00Z", "n": {"a": [1, 2.5, true, null]}}',
        "",
        '{"case": 7, "activity": "ended", "at": "2024-05-02", "n": 0.12345678901234567890123, "big": 12345678901234567890}',
    )
    assert run(dsn, file).appended == 2
    assert stored(store) == [
        ("7", "begun", {"at": "2024-05-01T10:00:00+00:00", "n": {"a": [1, 2.5, True, None]}}),
        ("7", "ended", {"at": "2024-05-02", "n": "0.12345678901234567890123", "big": 12345678901234567890}),
    ]


def test_parquet_keeps_types_and_exact_texts(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    nanoseconds = pa.array([1_714_550_400_123_456_789, 1_714_550_400_000_000_000], pa.timestamp("ns"))
    columns = {
        "case": pa.array([1, 2], pa.int64()),
        "activity": pa.array(["begun", "begun"]).dictionary_encode(),
        "at": nanoseconds,
        "price": pa.array([Decimal("12.50"), None], pa.decimal128(10, 2)),
        "seen": pa.array([datetime(2024, 5, 1, 10, tzinfo=UTC), None], pa.timestamp("us", "Europe/Amsterdam")),
        "ratio": pa.array([0.5, float("nan")]),
        "tags": pa.array([[{"k": b"\xff"}], []], pa.list_(pa.struct({"k": pa.binary()}))),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    progress: list[ImportProgress] = []
    report = run(dsn, tmp_path / "log.parquet", progress=progress.append)
    assert (report.appended, report.streams) == (2, 2)
    assert (progress[-1].done, progress[-1].total, progress[-1].rows) == (2, 2, 2)
    names = ("at", "price", "seen", "ratio", "tags")
    assert [(stream, *map(data.get, names)) for stream, _, data in stored(store)] == [
        ("1", "2024-05-01T08:00:00.123456789+00:00", "12.50", "2024-05-01T12:00:00+02:00", 0.5, [{"k": "/w=="}]),
        ("2", "2024-05-01T08:00:00+00:00", None, None, None, []),
    ]
    assert {name for _, _, data in stored(store) for name in data} == {*names}


def test_events_of_xes_have_the_attributes_of_their_trace(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    event = """
        <event><string key="activity" value="begun"/><date key="at" value="2024-05-01T10:00:00+02:00"/>
        <int key="n" value="7"/><float key="price" value="0.12345678901234567890123"/><float key="share" value="0.5"/>
        <boolean key="good" value="true"><string key="why" value="left out"/></boolean>
        <list key="tags"><values><string key="t" value="a"/><int key="t" value="2"/></values></list></event>"""
    log = f"""<?xml version="1.0"?>
        <log xmlns="http://www.xes-standard.org/"><extension name="Time" prefix="time" uri="x"/>
        <global scope="event"><string key="activity" value="none"/></global><string key="name" value="a log"/>
        <trace><string key="id" value="c-1"/><int key="year" value="2024"/>{event}
        <event><string key="activity" value="ended"/><date key="at" value="2024-05-02T10:00:00Z"/></event></trace>
        <trace><string key="id" value="c-2"/>{event.replace('"7"', '"seven"')}</trace></log>"""
    file = tmp_path / "log.xes.gz"
    file.write_bytes(gzip.compress(log.encode()))
    report = run(dsn, file, columns=Columns(("case:id",), "activity", ("at",)))
    assert (report.appended, report.streams, report.rejected) == (2, 1, 1)
    values = {"n": 7, "price": "0.12345678901234567890123", "share": 0.5, "good": True, "tags": [{"t": "a"}, {"t": 2}]}
    assert stored(store) == [
        ("c-1", "begun", {"case:year": 2024, "at": "2024-05-01T10:00:00+02:00", **values}),
        ("c-1", "ended", {"case:year": 2024, "at": "2024-05-02T10:00:00+00:00"}),
    ]
    assert rejected(report) == [(3, "its 'n' is no int: 'seven'")]


def test_streams_events_and_times_may_be_within_objects(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_text(
        tmp_path / "log.json",
        '{"repo": {"name": "a/b", "at": {"on": "1 May 2024"}}, "type": "push", "by": {"id": 7}}',
        '{"repo": {"name": "a/b"}, "type": "push", "by": {"id": 7}}',
        '{"repo": "a/b", "type": "push", "by": {"id": 7}}',
    )
    report = run(dsn, file, columns=Columns(("repo.name",), "type", ("repo.at.on",), metadata=("by.id",)))
    (event,) = store.read("permit", "a/b")
    assert event.data == {"repo": {"name": "a/b", "at": {"on": "2024-05-01"}}, "by": {"id": 7}}
    assert event.metadata == {"imported": True, "by.id": 7}
    assert [(line, reason.split(":")[0]) for line, reason in rejected(report)] == [
        (2, "its time (repo.at.on) cannot be read"),
        (3, "the stream (repo.name) is missing or neither text nor a whole number"),
    ]
    # a column of that name takes precedence
    file = write_text(tmp_path / "named.jsonl", '{"repo": {"name": "c"}, "repo.name": "d", "type": "push"}')
    assert run(dsn, file, columns=Columns(("repo.name",), "type")).appended == 1
    assert stored(store)[1:] == [("d", "push", {"repo": {"name": "c"}})]
    with pytest.raises(ImportRefused, match=r"no column 'actor\.name'"):
        run(dsn, file, columns=Columns(("actor.name",), "type"))
    with pytest.raises(ImportRefused, match=r"no column 'case\.id'"):
        run(dsn, write_csv(tmp_path / "log.csv", many_rows(1, 1)), columns=Columns(("case.id",), "activity"))


def test_ids_that_pandas_made_doubles_name_streams(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    columns = {
        "case": pa.array([17.0, None, 2.5, 2.0**53, 18.0]),
        "activity": ["begun"] * 5,
        "day": pa.array([date(2024, 5, 1)] * 4 + [None], pa.date32()),
        "hour": pa.array([time(10, 30)] * 5, pa.time64("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    report = run(dsn, tmp_path / "log.parquet", columns=Columns(("case",), "activity", ("day", "hour")))
    assert stored(store) == [("17", "begun", {"day": "2024-05-01T10:30:00+00:00", "hour": "10:30:00"})]
    assert [line for line, _ in rejected(report)] == [2, 3, 4, 5]
    assert "there is none" in rejected(report)[3][1]


def test_cells_may_have_tabs_or_another_delimiter_between_them(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    lines = ("case,activity,at,n", f'c-1,"a,b",{TIME},1')
    for number, (name, delimiter) in enumerate((("log.tsv", None), ("log.TSV.gz", None), ("log.csv", ";")), 1):
        text = "\n".join([*lines, ""]).replace(",", delimiter or "\t").replace(f"a{delimiter or chr(9)}b", "a,b")
        content = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert run(dsn, tmp_path / name, delimiter=delimiter).appended == 1
        assert stored(store) == [("c-1", "a,b", {"at": TIME, "n": "1"})] * number


def test_gzipped_text_is_read_and_its_bytes_are_counted(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    plain = write_csv(tmp_path / "log.csv", many_rows(250, 5))
    file = tmp_path / "log.csv.gz"
    file.write_bytes(gzip.compress(plain.read_bytes()))
    progress: list[ImportProgress] = []
    assert run(dsn, file, batch_size=100, progress=progress.append).appended == 250
    assert [step.rows for step in progress] == [100, 200, 250]
    assert progress[-1].done == progress[-1].total == file.stat().st_size
    import_logs.assert_each_row_once_in_order(store, 250, 5)
    kinds = "select decider, event, description from event_store.deciders order by 2"
    assert store.connection.execute(kinds).fetchall() == [
        ("permit", f"step {n}", "Imported from log.csv.gz") for n in range(3)
    ]


def test_a_log_needs_no_time_and_a_uuid_is_one_stream(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    case = "f156a3c4-9bd8-11ed-a8fc-0242ac120002"
    file = write_csv(tmp_path / "log.csv", [(case.upper(), "begun"), ("CASE-1", "begun")], header=("case", "activity"))
    assert run(dsn, file, columns=Columns(("case",), "activity")).appended == 2
    assert stored(store) == [(case, "begun", {}), ("CASE-1", "begun", {})]


def test_memory_does_not_grow_with_rows_or_streams(dsn: str, tmp_path: Path) -> None:
    peaks = []
    for count in (1000, 4000):
        file = write_csv(tmp_path / f"{count}.csv", many_rows(count, count))
        tracemalloc.start()
        try:
            run(dsn, file, batch_size=100)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


# Once only -------------------------------------------------------------------------------------------------


def test_a_file_that_grew_adds_its_new_rows(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(30, 3))
    run(dsn, file)
    write_csv(file, many_rows(50, 3))
    report = run(dsn, file)
    assert (report.appended, report.already_there) == (20, 30)
    import_logs.assert_each_row_once_in_order(store, 50, 3)


def test_a_half_written_row_at_the_end_is_none_before_it_ends(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    for name, line, cut in (
        ("log.csv", f"c-1,begun,{TIME},1234", 2),
        ("quoted.csv", f'c-1,begun,{TIME},"12"""', 1),
        # the torn cell's beginning looks like a row
        ("lines.csv", f'c-1,begun,{TIME},"\nc-2,begun,{TIME},1\n"', 1),
        ("log.jsonl", f'{{"case": "c-1", "activity": "begun", "at": "{TIME}", "n": 1234}}', 3),
    ):
        header = [] if name.endswith("jsonl") else ["case,activity,at,n"]
        file = write_text(tmp_path / name, *header, line)
        whole = file.read_bytes()
        file.write_bytes(whole[: -1 - cut])
        half = run(dsn, file)
        assert (half.appended, half.rejected) == (0, 1)
        file.write_bytes(whole + f"{line}\n".encode())
        assert (run(dsn, file).appended, run(dsn, file).already_there) == (2, 2)
    lines = f"\nc-2,begun,{TIME},1\n"
    assert [data["n"] for _, _, data in stored(store)] == ["1234", "1234", '12"', '12"', lines, lines, 1234, 1234]
    # a last line of complete JSON is not torn
    file.write_bytes(file.read_bytes()[:-1])
    assert run(dsn, file).already_there == 2


def test_other_content_under_the_same_name_is_refused(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(10, 2))
    run(dsn, file)
    rows = many_rows(20, 2)
    rows[6] = ("c-0", "another", TIME, 6)
    write_csv(file, rows)
    with pytest.raises(ImportRefused, match=r"Row 7 \(line 8\) of log\.csv was imported before") as refused:
        run(dsn, file)
    assert "If the event above is of an import of another file" in (refused.value.hint or "")
    assert len(stored(store)) == 10
    assert run(dsn, file, source="second log").appended == 20


def test_a_row_whose_id_another_writer_took_is_refused(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    command = str(uuid5(NAMESPACE, "p.csv"))
    store.register_decider_event("evil", "x", "An id was taken.")
    event_id = UUID(f"{command[:14]}8{command[15:27]}{2:09x}")
    append_events(store, [BatchEvent("evil", "e-1", "x", event_id, {}, uuid4())])
    with pytest.raises(ImportRefused, match=r"Row 2 \(line 3\) of p\.csv .* another writer took its id") as refused:
        run(dsn, write_csv(tmp_path / "p.csv", many_rows(3, 1)))
    assert "stream (evil, e-1)" in (refused.value.detail or "")
    assert "If it is of no import, ask its writer" in (refused.value.hint or "")


def test_two_imports_at_once_store_each_row_once(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    rows = many_rows(1000, 11)
    file = write_csv(tmp_path / "log.csv", [*rows, ("", "begun", TIME, 0)])
    start = threading.Barrier(2)

    def one(batch_size: int) -> ImportReport:
        start.wait(patience())
        return run(dsn, file, batch_size=batch_size)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(one, (70, 110))
    assert first.appended + second.appended == 1000
    assert first.already_there + second.already_there == 1000
    assert rejected(first) == rejected(second) == [(1002, rejected(first)[0][1])]
    import_logs.assert_each_row_once_in_order(store, 1000, 11)
