"""`millrace import` as it is typed: what it prints, and its exit code."""

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from millrace.platform_defs.cli import main
from millrace.platform_defs.cli.log import import_command
from millrace.resources.event_store import EventStore

LOG = "case,activity,at\nc-1,begun,2024-05-01\nc-1,ended,2024-05-02\n"


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(import_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def columns(dsn: str) -> list[str]:
    return ["--stream", "case", "--event", "activity", "--time", "at", "--decider", "permit", "--dsn", dsn]


def test_it_reports_what_was_imported(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(LOG)
    first = invoke(file, *columns(dsn))
    assert first.exit_code == 0, first.output
    lines = [line.strip("│ ").split("│") for line in first.output.splitlines() if "│" in line]
    counts = {name.strip(): value.strip() for name, value in lines}
    assert {name: counts[name] for name in ("rows", "appended", "there before", "rejected")} == {
        "rows": "2",
        "appended": "2",
        "there before": "0",
        "rejected": "0",
    }


def test_columns_of_metadata_lead_to_the_events_of_a_request(dsn: str, store: EventStore, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("case,activity,at,correlation_id\nc-1,begun,2024-05-01,r-1\nc-2,begun,2024-05-02,\n")
    result = invoke(file, *columns(dsn), "--metadata", "correlation_id")
    assert result.exit_code == 0, result.output
    (event,) = store.events_of_correlation("r-1")
    assert (event.decider_id, event.metadata) == ("c-1", {"correlation_id": "r-1"})
    assert "correlation_id" not in event.data
    (other,) = store.read_stream("permit", "c-2")
    assert other.metadata is None
    refused = invoke(file, *columns(dsn), "--metadata", "nobody")
    assert refused.exit_code == 1


def test_the_exit_code_tells_some_rejected_rows_and_nothing_but_rejected_rows_apart(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.data"
    file.write_text(LOG + "c-2,begun\n")
    arguments = [file, *columns(dsn), "--format", "csv", "--rejects", tmp_path / "bad.jsonl"]
    for dry_run in (["--dry-run"], []):
        result = invoke(*arguments, *dry_run)
        assert result.exit_code == 3, result.output
    assert "1 rows were rejected; see" in result.output
    assert json.loads((tmp_path / "bad.jsonl").read_text())["line"] == 4
    for dry_run in (["--dry-run"], []):
        result = invoke(*arguments, "--time-unit", "s", *dry_run)
        assert result.exit_code == 1, result.output
    assert "3 rows were rejected; see" in result.output


def test_a_dry_run_shows_columns_events_and_kinds_of_rejects_and_touches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "case;activity;day;hour\nc-1;begun;1.2.2024;10:00\nc-1;ended;2.2.2024;noon\nc-1;ended;;\nc-2;x;3.2.2024;late\n"
    )
    # no database answers there
    options = ["--decider", "permit", "--time", "day", "--time", "hour", "--delimiter", ";", "--dry-run"]
    dsn = ["--dsn", f"postgresql://postgres@/none?host={tmp_path}"]
    result = invoke(file, "--stream", "case", "--event", "activity", *options, *dsn, "--day-first")
    assert result.exit_code == 3, result.output
    lines = result.output.splitlines()
    assert lines[0] == "4 rows of 'case', 'activity', 'day', 'hour', with ';' between cells"
    assert json.loads(lines[1])["data"] == {"day": "2024-02-01T10:00:00+00:00", "hour": "10:00"}
    rejects = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert [cells for cells in rejects if cells[0]] == [["2", "3"], ["1", "4"]]
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("time", "options", "iso"),
    [
        ("1/2/2024", ["--day-first"], "2024-02-01"),
        ("24/02/01 10h", ["--time-format", "%y/%m/%d %Hh"], "2024-02-01T10:00:00+00:00"),
        ("1706781600000", ["--time-unit", "ms"], "2024-02-01T10:00:00+00:00"),
        ("2024-02-01", ["--delimiter", "tab"], "2024-02-01"),
    ],
)
def test_options_say_how_times_and_cells_are_written(tmp_path: Path, time: str, options: list[str], iso: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(f"case,activity,at\nc-1,begun,{time}\n".replace(",", "\t" if "tab" in options else ","))
    result = invoke(file, *columns("")[:-2], *options, "--dry-run")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output.splitlines()[1])["data"] == {"at": iso}


def test_a_refusal_is_one_message_and_exit_code_1(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["millrace", "import", str(tmp_path / "none.csv"), *columns(dsn)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.err.startswith("There is no file")
    assert "Traceback" not in said.out + said.err


def test_the_environment_names_the_database(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DSN", dsn)
    file = tmp_path / "log.csv"
    file.write_text(LOG)
    result = invoke(file, *columns(dsn)[:-2], "--source", "my log")
    assert result.exit_code == 0, result.output
    assert "Imported my log" in result.output
