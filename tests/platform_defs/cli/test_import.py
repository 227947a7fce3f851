"""`millrace import` on the command line: its output and its exit code."""

import json
from pathlib import Path

import pytest

from millrace.errors import ImportRefused
from millrace.event_store.platform import PlatformStore
from tests.platform_defs.cli.conftest import Typed
from tests.support.command_line import cells, millrace

LOG = "case,activity,at\nc-1,begun,2024-05-01\nc-1,ended,2024-05-02\n"
COLUMNS = ("--stream", "case", "--event", "activity", "--time", "at", "--decider", "permit")


def imported(*arguments: object, dsn: str | None = None, code: int = 0) -> str:
    return millrace("import", *arguments, dsn=dsn, code=code)


def test_it_reports_what_was_imported(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(LOG)
    # the environment names the database
    output = millrace("import", file, *COLUMNS, "--source", "my log", MILLRACE_DSN=dsn)
    assert "Imported my log" in output
    counts = dict(cells(output))
    names = ("rows", "appended", "there before", "rejected")
    assert [counts[name] for name in names] == ["2", "2", "0", "0"]


def test_columns_of_metadata_lead_to_the_events_of_a_request(dsn: str, store: PlatformStore, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("case,activity,at,correlation_id\nc-1,begun,2024-05-01,r-1\nc-2,begun,2024-05-02,\n")
    imported(file, *COLUMNS, "--metadata", "correlation_id", dsn=dsn)
    (event,) = store.events_of_correlation("r-1")
    assert (event.decider_id, event.metadata) == ("c-1", {"imported": True, "correlation_id": "r-1"})
    assert "correlation_id" not in event.data
    (other,) = store.read("permit", "c-2")
    assert other.metadata == {"imported": True}
    with pytest.raises(ImportRefused, match="nobody"):
        imported(file, *COLUMNS, "--metadata", "nobody", dsn=dsn)


def test_the_exit_code_tells_whether_all_rows_were_rejected(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.data"
    file.write_text(LOG + "c-2,begun\n")
    arguments = [file, *COLUMNS, "--format", "csv", "--rejects", tmp_path / "bad.jsonl"]
    imported(*arguments, "--dry-run", dsn=dsn, code=3)
    assert "1 rows were rejected; see" in imported(*arguments, dsn=dsn, code=3)
    assert json.loads((tmp_path / "bad.jsonl").read_text())["line"] == 4
    imported(*arguments, "--time-unit", "s", "--dry-run", dsn=dsn, code=1)
    assert "3 rows were rejected; see" in imported(*arguments, "--time-unit", "s", dsn=dsn, code=1)


def test_a_dry_run_shows_what_would_come_and_touches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "case;activity;day;hour\nc-1;begun;1.2.2024;10:00\nc-1;ended;2.2.2024;noon\nc-1;ended;;\nc-2;x;3.2.2024;late\n"
    )
    # no database answers there
    options = ["--decider", "permit", "--time", "day", "--time", "hour", "--delimiter", ";", "--dry-run"]
    nowhere = f"postgresql://postgres@/none?host={tmp_path}"
    names = ("--stream", "case", "--event", "activity")
    lines = imported(file, *names, *options, "--day-first", dsn=nowhere, code=3).splitlines()
    assert lines[0] == "4 rows of 'case', 'activity', 'day', 'hour', with ';' between cells"
    assert json.loads(lines[1])["data"] == {"day": "2024-02-01T10:00:00+00:00", "hour": "10:00"}
    rejects = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert [cells for cells in rejects if cells[0]] == [["2", "3"], ["1", "4"]]
    assert [*tmp_path.iterdir()] == [file]


def test_options_say_how_times_and_cells_are_written(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    for time, options, iso in (
        ("1/2/2024", ["--day-first"], "2024-02-01"),
        ("24/02/01 10h", ["--time-format", "%y/%m/%d %Hh"], "2024-02-01T10:00:00+00:00"),
        ("1706781600000", ["--time-unit", "ms"], "2024-02-01T10:00:00+00:00"),
        ("2024-02-01", ["--delimiter", "tab"], "2024-02-01"),
    ):
        file.write_text(f"case,activity,at\nc-1,begun,{time}\n".replace(",", "\t" if "tab" in options else ","))
        output = imported(file, *COLUMNS, *options, "--dry-run")
        assert json.loads(output.splitlines()[1])["data"] == {"at": iso}


def test_options_stand_for_columns_and_a_dry_run_advises_them(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "site,case,id,n,json\na,7,018f3c1e-7f2a-7c3b-9d4e-5a6b7c8d9e01,1,{}\na,8,,not known,{}\na,9,,2,{}\n"
    )
    options = ["--stream", "site", "--stream", "case", "--event-name", "begun", "--decider", "permit", "--dry-run"]
    output = imported(file, *options)
    assert "'n' has numbers, and a few texts." in output
    assert "--null 'not known'" in output
    output = imported(file, *options, "--null", "not known", "--id", "id", "--data", "json", code=3)
    event = json.loads(output.splitlines()[1])
    assert (event["decider_id"], event["event"], event["data"]) == ('["a", "7"]', "begun", {})
    assert event["event_id"].endswith("9e01")
    assert "a few texts" not in output


def test_a_refusal_exits_1(dsn: str, tmp_path: Path, typed: Typed) -> None:
    code, out, err = typed("import", str(tmp_path / "none.csv"), *COLUMNS, "--dsn", dsn)
    assert code == 1
    assert err.startswith("There is no file")
    assert "Traceback" not in out + err
