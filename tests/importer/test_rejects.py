"""Bad rows are set aside with their reason; bad files are refused as a whole."""

import gzip
import json
from collections import deque
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import ImportRefused, SchemaMismatch, Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.importer.files import open_event_file
from millrace.importer.imported_events import Columns
from millrace.importer.importer import ImportProgress
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support import import_logs
from tests.support.import_logs import TIME, many_rows, rejected, run, stored, write_csv, write_text

# Bad rows --------------------------------------------------------------------------------------------------


def test_rows_that_do_not_fit_their_schema_are_rejected(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    store.register_event_schema("permit", "begun", {"properties": {"n": {"pattern": "^[0-9]+$"}}})
    lines = [f"c-{n},begun,{TIME},{'x' if n in {3, 5} else n}" for n in range(1, 7)]
    report = run(dsn, write_text(tmp_path / "log.csv", "case,activity,at,n", *lines))
    assert (report.appended, report.rejected) == (4, 2)
    assert [line for line, reason in rejected(report) if 'data.n is "x", not like' in reason] == [4, 6]


def test_bad_csv_rows_are_rejected_with_their_lines(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_text(
        tmp_path / "log.csv",
        "case,activity,at,n",
        f"c-1,begun,{TIME},1",
        f",begun,{TIME},2",
        f"c-1, ,{TIME},3",
        "c-1,begun,yesterday,4",
        "c-1,begun,,5",
        f"c-1,begun,{TIME}",
        f"c-1,begun,{TIME},7,8",
        f"c-1,be\0gun,{TIME},9",
        b"c-1,begun," + TIME.encode() + b",\xff",
        f'c-1,"begun,{TIME},11',
        f'c-2,"two\nlines",{TIME},12',
        "",
        f"{'x' * 1025},begun,{TIME},13",
        f"c-2,begun,{TIME},{'x' * 1_100_000}",
        f"c-2,ended,{TIME},15",
        "c-1,be\0gun",
        b"c-1,begun,\xff,17,17",
        f'c-2,"never closed,{TIME},18',
        f"c-2,ended,{TIME},19",
    )
    report = run(dsn, file)
    assert [data["n"] for _, _, data in stored(store)] == ["1", "12", "15"]
    assert (report.rows, report.appended, report.rejected) == (17, 3, 14)
    assert report.rejects == tmp_path / "log.csv.rejects.jsonl"
    reasons = rejected(report)
    assert [(line, reason.split(":")[0]) for line, reason in reasons] == [
        (3, "the stream (case) is missing or neither text nor a whole number"),
        (4, "the event (activity) is missing or neither text nor a whole number"),
        (5, "its time (at) cannot be read"),
        (6, "its time (at) cannot be read"),
        (7, "it has 3 cells, the header 4"),
        (8, "it has 5 cells, the header 4"),
        (9, "it contains a NUL byte"),
        (10, "it is not UTF-8"),
        (11, "it is not CSV"),
        (15, "the stream (case) has 1025 bytes; at most 1024 are allowed"),
        (16, "the store refuses it"),
        # of two faults the first is reported
        (18, "it contains a NUL byte"),
        (19, "it is not UTF-8"),
        (20, "it has a quote that is not closed before the end of the file, so it may be half-written"),
    ]


def test_the_other_half_of_a_half_read_row_is_no_row(tmp_path: Path) -> None:
    file = write_text(tmp_path / "log.csv", "case,n", '"c-1')
    with open_event_file(file) as opened:
        assert next(opened.rows).fault
        with file.open("a") as more:
            more.write('",1\nc-2,2\n')
        assert list(opened.rows) == []


def test_bad_json_lines_are_rejected_with_their_lines(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    good = f'"case": "c-1", "activity": "begun", "at": "{TIME}"'
    file = write_text(
        tmp_path / "log.jsonl",
        f'{{{good}, "n": 1}}',
        "not json",
        "[1, 2]",
        f'{{"case": null, "activity": "begun", "at": "{TIME}"}}',
        f'{{"case": "c-1", "activity": ["begun"], "at": "{TIME}"}}',
        '{"case": "c-1", "activity": "begun", "at": 1714550400}',
        f'{{{good}, "n": NaN}}',
        f'{{{good}, "n": "\\u0000"}}',
        f'{{{good}, "n": "\\ud800"}}',
        f'{{"case": "c-1", "activity": "be\\u0000gun", "at": "{TIME}"}}',
        f'{{{good}, "n": {"[" * 5000}{"]" * 5000}}}',
        f'{{{good}, "n": {"9" * 5000}}}',
        b'{"case": "\xff"}',
        "x" * (8 * 1024 * 1024 + 5),
        f'{{{good}, "n": 15}}',
    )
    report = run(dsn, file)
    assert [data["n"] for _, _, data in stored(store)] == [1, 15]
    reasons = rejected(report)
    assert [line for line, _ in reasons] == list(range(2, 15))
    assert [reason.split(":")[0] for _, reason in reasons] == [
        "it is not JSON",
        "it is not a JSON object but list",
        "the stream (case) is missing or neither text nor a whole number",
        "the event (activity) is missing or neither text nor a whole number",
        "its time (at) cannot be read",
        "it is not JSON",
        "the store refuses it",
        "the store refuses it",
        "the event (activity) contains a NUL character",
        "its JSON is nested too deeply",
        "it is not JSON",
        "it is not UTF-8",
        "it is longer than 8388608 characters (raw holds its beginning)",
    ]


WIDE = "x" * 999_999


@pytest.mark.parametrize(
    ("lines", "rejects"),
    [
        pytest.param([f'c-1,begun,{TIME},"{WIDE}', *[WIDE] * 9, f'"",{WIDE}"'], {3: "lines 3 to 13"}, id="many lines"),
        pytest.param([f'c-1,begun,"{WIDE * 9}, ""no"" end', 'of it",4'], {3: "lines 3 to 4"}, id="a long line of two"),
        pytest.param([f"c-1,begun,{TIME},{WIDE * 9}"], {3: "it is longer than 8388608"}, id="a line"),
        pytest.param(
            [f'c-1,begun,"{TIME},1', *[f"c-1,begun,{TIME},{WIDE}"] * 9, f'c-1,begun,{TIME},"7"'],
            {3: "lines 3 to 12"},
            id="a stray quote that a later line shows",
        ),
    ],
)
def test_a_csv_row_above_8_mib_is_one_reject(tmp_path: Path, lines: list[str], rejects: dict[int, str]) -> None:
    file = write_text(tmp_path / "log.csv", "case,activity,at,n", f"c-1,begun,{TIME},1", *lines, f"c-1,ended,{TIME},9")
    with open_event_file(file) as opened:
        rows = list(opened.rows)
    found = {row.line: row.fault for row in rows if row.fault}
    assert found.keys() == rejects.keys()
    assert all(text in (found[line] or "") for line, text in rejects.items())
    assert all(len(row.raw) <= 1000 for row in rows)
    # no text between quotes has become a row
    assert [(row.line, row.values["n"]) for row in rows if not row.fault] == [
        (2, "1"),
        *[(len(lines) + 2, "7")] * lines[-1].endswith('"7"'),
        (len(lines) + 3, "9"),
    ]


def test_a_parquet_row_without_a_stream_is_rejected_as_json(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table({"case": [None, "c"], "activity": ["a", "b"], "at": [TIME, TIME]}), file)
    report = run(dsn, file)
    assert (report.appended, report.rejected) == (1, 1)
    assert report.rejects is not None
    reject = json.loads(report.rejects.read_text())
    assert (reject["line"], json.loads(reject["raw"])) == (1, {"case": None, "activity": "a", "at": TIME})


def test_the_rejects_file_is_that_of_the_last_run(dsn: str, tmp_path: Path) -> None:
    rows: list[tuple[str, str, str, object]] = [("c-1", "begun", TIME, n) for n in range(20)]
    for bad in (3, 11):
        rows[bad] = ("", "begun", TIME, bad)
    rows[7] = ("c-1", "begun", TIME, "x" * 1_100_000)
    file = write_csv(tmp_path / "log.csv", rows)
    rejects = tmp_path / "elsewhere.jsonl"
    first = run(dsn, file, rejects=rejects, batch_size=8)
    content = rejects.read_text()
    assert [line for line, _ in rejected(first)] == [5, 9, 13]
    assert run(dsn, file, rejects=rejects).rejected == 3
    assert rejects.read_text() == content
    mended = write_csv(tmp_path / "mended.csv", [row for row in rows if row[0] and len(str(row[3])) < 9])
    assert run(dsn, mended, rejects=rejects).rejects is None
    assert not rejects.exists()


def test_a_row_for_a_closed_stream_is_rejected(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(4, 2))
    store.register_decider_event("permit", "closed", "")
    store.connection.execute(
        "select event_store.append_event('closed', gen_random_uuid(), 'permit', 'c-1', '{}', gen_random_uuid(), null, 1, true)"
    )
    report = run(dsn, file)
    assert (report.appended, report.rejected) == (2, 2)
    assert [line for line, _ in rejected(report)] == [3, 5]


# Refusals --------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_imported_is_refused_in_one_sentence(dsn: str, tmp_path: Path) -> None:
    files: tuple[tuple[str, bytes | None, str], ...] = (
        ("log.csv", None, "There is no file"),
        ("log.csv", b"", "is empty"),
        ("log.jsonl", b"\n\n", "is empty"),
        ("log.xlsx", b"x", "does not tell the file's format"),
        ("log.parquet", b"case,activity,at\n", "cannot be read"),
        ("log.csv.gz", b"case,activity,at\n", "cannot be read"),
        ("log.xes", b"case,activity,at\n", "cannot be read"),
        ("log.xes", b"<log><trace/></log>", "has no events"),
        ("log.xes", b"<log><trace><event/><string key='id' value='late'/></trace></log>", "cannot be read"),
        ("log.csv", b"case,activity,when\n", "has no column 'at'"),
        ("log.jsonl", b'{"case": 1, "activity": "a", "when": 1}\n', "has no column 'at'"),
        ("log.csv", b"case,activity,at,at\n", "columns of the same name"),
        ("log.jsonl", b'[\n {"case": 1}\n]\n', "is a JSON array"),
        ("log.json", b' [{"case": 1, "activity": "a", "at": "2024-05-01"}]', "is a JSON array"),
        ("log.csv", b"\xff\xfec\0a\0s\0e\0\n\0", "cannot be used"),
    )
    for name, content, message in files:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ImportRefused) as refused:
            run(dsn, tmp_path / name)
        assert message in refused.value.message, (name, content)


GROWN = 40 * 2**20
EVENT = b"<log><trace><event><string key='a' value='b'/>"


@pytest.mark.parametrize(
    ("name", "begin", "repeated", "message"),
    [
        ("log.xes.gz", EVENT, b"<a/>", "An event, or what stands before one, takes more than 8388608 bytes"),
        ("log.xes.gz", b"<log>", b"<string key='a' value='b'><a/></string>", "no events"),
        ("log.xes.gz", EVENT, b"  ", "A tag, or a text, is longer than 8388608 bytes"),
        ("log.xes.gz", EVENT + b"<a b='", b"x", "A tag, or a text, is longer"),
        ("log.csv.gz", b"a,b\n1,2\n", b'"","",', "Its quotes and delimiters alone are more than 16777216 characters"),
        ("log.csv.gz", b"a,b\n1,2\n", b'"', "The row that begins in line 3 cannot be read"),
        ("log.csv.gz", b"", b"a,", "The header of"),
    ],
    ids=["elements", "attributes of the log", "blanks", "a value", "cells", "quotes", "a header"],
)
def test_a_bomb_is_refused_in_bounded_memory(
    tmp_path: Path, name: str, begin: bytes, repeated: bytes, message: str
) -> None:
    file = tmp_path / name
    with gzip.open(file, "wb", 1) as content:
        content.write(begin)
        for _ in range(GROWN // 2**20):
            content.write(repeated * (2**20 // len(repeated)))
        content.write(b"</log>" if begin == b"<log>" else b"")
    assert file.stat().st_size < 400_000
    before = psutil.Process().memory_info().rss
    with pytest.raises(ImportRefused) as refused, open_event_file(file) as opened:
        deque(opened.rows, maxlen=0)
    assert message in str(refused.value)
    assert psutil.Process().memory_info().rss - before < 5 * GROWN


def test_an_event_may_stand_behind_much_of_a_log_that_is_forgotten(tmp_path: Path) -> None:
    trace = "<trace><string key='n' value='1'/>text</trace>" * 40_000
    file = tmp_path / "log.xes"
    file.write_text(f"<log>{trace}<trace><event> <string key='a' value='b'/> </event></trace></log>")
    with open_event_file(file) as opened:
        assert [row.values for row in opened.rows] == [{"a": "b"}]


def test_a_parquet_page_too_large_is_not_decoded(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.archive.bounded.CHUNK_BYTES", 2**21)
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table({"case": ["c-1"], "activity": ["x" * 3_000_000], "at": [TIME]}), file, compression="zstd")
    assert file.stat().st_size < 50_000
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(ImportRefused, match="cannot be read") as refused:
        run(dsn, file)
    assert str(refused.value.detail).startswith("Column activity has 3,000,")
    assert pa.default_memory_pool().bytes_allocated() - before < 2**20


def test_columns_that_cannot_be_meant_are_refused(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.importer.importer.MOST_EVENT_TYPES", 5)
    file = write_csv(tmp_path / "log.csv", many_rows(10, 2))
    with pytest.raises(ImportRefused) as refused:
        run(dsn, file, columns=Columns(("case",), "concept:name", ("time",)))
    assert refused.value.message == f"{file} has no column 'concept:name', 'time'."
    assert refused.value.detail == "Its columns: 'case', 'activity', 'at', 'n'."
    with pytest.raises(ImportRefused, match="does not name kinds of events"):
        run(dsn, file, columns=Columns(("case",), "n", ("at",)))
    with pytest.raises(ImportRefused, match="is the file to import"):
        run(dsn, file, rejects=file)
    with pytest.raises(ImportRefused, match="cannot be written"):
        run(dsn, file, rejects=tmp_path)


def test_a_wrong_delimiter_is_refused_and_the_seen_one_told(dsn: str, tmp_path: Path) -> None:
    for between, option in ((";", "';'"), ("\t", "tab"), ("|", "'|'")):
        file = write_text(tmp_path / "log.csv", between.join(("case", "activity", "at")))
        with pytest.raises(ImportRefused, match="has no column 'case', 'activity', 'at'") as refused:
            run(dsn, file)
        assert refused.value.hint == f"Its cells are separated otherwise: say --delimiter {option}."
    with pytest.raises(ImportRefused) as refused:
        run(dsn, write_text(tmp_path / "log.tsv", "case,activity,at"))
    assert refused.value.hint == "Its cells are separated otherwise: say --delimiter ','."
    json_lines = write_text(tmp_path / "log.jsonl", "{}")
    for path, delimiter in ((file, ""), (file, ";;"), (file, '"'), (file, "\n"), (json_lines, ";")):
        with pytest.raises(ImportRefused, match="cannot be the delimiter"):
            run(dsn, path, delimiter=delimiter)


def test_where_no_store_answers_is_named(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(1, 1))
    with pytest.raises(Unreachable, match="nothing is stored twice"):
        run(f"postgresql://postgres@/none?host={tmp_path}", file)
    with pytest.raises(SchemaMismatch, match="millrace migrate"):
        run(postgres.dsn("postgres"), file)


def test_the_server_going_away_in_the_middle_says_how_to_go_on(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", many_rows(500, 5))

    def cut(_progress: ImportProgress) -> None:
        store.connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )

    with pytest.raises(Unreachable, match="Run the same import again"):
        run(dsn, file, batch_size=100, progress=cut)
    assert len(stored(store)) == 100
    assert run(dsn, file).already_there == 100
    import_logs.assert_each_row_once_in_order(store, 500, 5)
