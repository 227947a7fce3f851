"""Logs that lack a column, have several for one, or have ids and data of their own.

Not here: the event of a row without such options (`test_importer`).
"""

from pathlib import Path
from uuid import UUID

import pytest

from millrace.errors import ImportRefused
from millrace.event_store.platform import PlatformStore
from millrace.importer.imported_events import Columns
from millrace.importer.importer import ImportedLog, try_import
from tests.support.import_logs import HEADER, TIME, rejected, run, stored, write_csv, write_text

FIRST, SECOND = (UUID(f"018f3c1e-7f2a-7c3b-9d4e-5a6b7c8d9e0{n}") for n in (1, 2))


def test_a_text_that_is_null_is_null_in_each_cell(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    rows = [("c-1", "begun", "2024-05-01", "NA"), ("NA", "begun", "2024-05-01", 1), ("c-1", "ended", "-", "NA 1")]
    columns = Columns(("case",), "activity", metadata=("at",), nulls=frozenset({"NA", "-"}))
    report = run(dsn, write_csv(tmp_path / "log.csv", rows), columns=columns)
    assert stored(store) == [("c-1", "begun", {"n": None}), ("c-1", "ended", {"n": "NA 1"})]
    assert [event.metadata for event in store.read("permit", "c-1")] == [
        {"imported": True, "at": "2024-05-01"},
        {"imported": True},
    ]
    assert rejected(report) == [(3, "the stream (case) is missing or neither text nor a whole number")]
    # also in JSON, but not within an object
    file = write_text(tmp_path / "log.jsonl", '{"case": "c-2", "activity": "begun", "n": "NA", "o": {"n": "NA"}}')
    run(dsn, file, columns=Columns(("case",), "activity", nulls=frozenset({"NA"})))
    assert stored(store)[2:] == [("c-2", "begun", {"n": None, "o": {"n": "NA"}})]


def test_a_name_may_stand_for_the_column_of_stream_or_event(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "log.csv", [("c-1", "begun")], header=("case", "activity"))
    run(dsn, file, columns=Columns((), None, stream_name=str(FIRST).upper(), event_name="measured"))
    assert stored(store) == [(str(FIRST), "measured", {"case": "c-1", "activity": "begun"})]


def test_two_columns_name_one_stream_which_no_other_values_name(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    rows = [("a", "b, c", 1), ("a, b", "c", 2), ('a", "b', "c", 3), ("a", "b, c", 4), ("ü", "", 5), ("é" * 510, "x", 6)]
    file = write_csv(tmp_path / "log.csv", rows, header=("site", "case", "n"))
    report = run(dsn, file, columns=Columns(("site", "case"), None, event_name="begun"))
    names = ['["a", "b, c"]', '["a, b", "c"]', '["a\\", \\"b", "c"]', '["a", "b, c"]']
    assert [(stream, data["n"]) for stream, _, data in stored(store)] == list(zip(names, "1234", strict=True))
    # the columns that make up the key stay in the data
    assert stored(store)[0][2] == {"site": "a", "case": "b, c", "n": "1"}
    assert rejected(report) == [
        (6, "the stream (case) is missing or neither text nor a whole number"),
        (7, "the stream (site, case) has 1029 bytes; at most 1024 are allowed"),
    ]


def test_events_keep_their_ids_and_each_id_is_stored_once(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    header = ("id", "case", "activity", "n")
    rows = [(str(FIRST).upper(), "c-1", "begun", 1), ("7", "c-1", "begun", 2), (str(SECOND), "c-1", "ended", 3)]
    columns = Columns(("case",), "activity", id="id")
    file = write_csv(tmp_path / "log.csv", [*rows, rows[0]], header)
    report = run(dsn, file, columns=columns)
    assert (report.appended, report.already_there, report.rejected) == (2, 1, 1)
    kept = [(event.event_id, event.data) for event in store.read("permit", "c-1")]
    assert kept == [(FIRST, {"n": "1"}), (SECOND, {"n": "3"})]
    assert rejected(report) == [(3, "its id (id) is no UUID of 36 characters: '7'")]
    # the place in the file does not matter
    write_csv(file, rows[::-1], header)
    assert run(dsn, file, columns=columns).already_there == 2
    write_csv(file, [(FIRST, "c-1", "begun", 5)], header)
    with pytest.raises(ImportRefused, match=r"Row 1 \(line 2\) of log\.csv has the id \(id\) of an event") as refused:
        run(dsn, file, columns=columns)
    assert refused.value.hint == "Give each event an id of its own, and the same source to each import of it."


def test_a_column_holds_the_whole_data(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    header = ("case", "activity", "at", "left_out", "payload")
    payloads = ('{"n": [1, 0.5], "big": 0.12345678901234567890123}', '{"at": 1}', "[1]", '{"n": ', "")
    file = write_csv(tmp_path / "log.csv", [("c-1", "begun", TIME, "x", payload) for payload in payloads], header)
    report = run(dsn, file, columns=Columns(("case",), "activity", ("at",), data="payload"))
    assert stored(store) == [("c-1", "begun", {"n": [1, 0.5], "big": "0.12345678901234567890123", "at": TIME})]
    assert [": ".join(reason.split(": ")[:2]) for _, reason in rejected(report)] == [
        "its data (payload) has a member of the name of the time's column: {'at'}",
        "its data (payload) cannot be read: it is not a JSON object but list",
        "its data (payload) cannot be read: it is not JSON",
        "its data (payload) cannot be read: it is not a JSON object but NoneType",
    ]
    # an object, or text with one; stream and time may be within
    objects = ('{"id": 7, "at": "1 May 2024"}', '"{\\"id\\": 8, \\"at\\": \\"2 May 2024\\"}"')
    lines = [f'{{"payload": {data}}}' for data in objects]
    columns = Columns(("payload.id",), None, ("payload.at",), data="payload", event_name="begun")
    run(dsn, write_text(tmp_path / "log.jsonl", *lines), columns=columns)
    assert stored(store)[1:] == [
        ("7", "begun", {"id": 7, "at": "2024-05-01"}),
        ("8", "begun", {"id": 8, "at": "2024-05-02"}),
    ]


def test_a_trial_tells_columns_of_numbers_and_a_few_texts(tmp_path: Path) -> None:
    cells = ("1", "NA", "-2.5", "1e3", "", "-", ".5")
    rows = [(n, "begun", cell, f"{n}{'x' * n}") for n, cell in enumerate(cells)]
    file = write_csv(tmp_path / "log.csv", rows, ("case", "activity", "amount", "code"))
    columns = Columns(("case",), "activity")
    assert try_import(ImportedLog(file, "permit", columns)).nearly_numbers == {"amount": ["-", "NA"]}
    columns = Columns(("case",), "activity", nulls=frozenset({"-", "NA"}))
    assert try_import(ImportedLog(file, "permit", columns)).nearly_numbers == {}


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        (Columns((), "activity"), "needs one of --stream and --stream-name, not none."),
        (Columns(("case",), "activity", stream_name="x"), "needs one of --stream and --stream-name, not both."),
        (Columns(("case",), None), "needs one of --event and --event-name, not none."),
        (Columns(("case",), None, event_name=" "), "The import cannot start: the event is missing"),
        (Columns(("case",), "activity", id="uuid", data="json"), r"log\.csv has no column 'uuid', 'json'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, columns: Columns, fault: str) -> None:
    file = write_csv(tmp_path / "log.csv", [], HEADER)
    with pytest.raises(ImportRefused, match=fault):
        try_import(ImportedLog(file, "permit", columns))
