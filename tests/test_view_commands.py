"""The commands for operators of views: what they print, and that they do it."""

import re
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from platform_defs.cli import app, main
from resources.errors import MillraceError, OffsetOutOfRange
from resources.event_store import EventStore
from tests.factories import append_to, pump, register_orders, rows

RUNNER = CliRunner()


@pytest.fixture
def view(store: EventStore) -> EventStore:
    """A store with events of two streams and a rows view v that parks at the first failure."""
    register_orders(store)
    store.register_view("v", "-infinity", max_attempts=1)
    append_to(store, "a", "a", "b")
    pump(store, "v")
    return store


def millrace(dsn: str, *arguments: str) -> str:
    result = RUNNER.invoke(app, [*arguments, "--dsn", dsn], env={"COLUMNS": "200"})
    if isinstance(result.exception, MillraceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def park(view: EventStore, decider_id: str) -> None:
    (event,) = (event for event in view.stream_events("v", 10) if event.decider_id == decider_id)
    view.fail_event("v", decider_id, event.offset, "no such customer")


def test_a_dead_letter_is_listed_retried_and_discarded(view: EventStore, dsn: str) -> None:
    assert "no dead letters" in millrace(dsn, "dead-letters")
    park(view, "a")
    listed = millrace(dsn, "dead-letters", "v")
    assert all(word in listed for word in ("order", "a", "placed", "no such customer"))
    assert "1 streams of v" in millrace(dsn, "retry", "v", "--decider", "order", "--id", "a")
    assert "no dead letters" in millrace(dsn, "dead-letters", "v")

    park(view, "a")
    assert "offset 1" in millrace(dsn, "discard", "v", "order", "a", "--reason", "a test")
    assert [event.offset for event in view.stream_events("v", 10)] == [2]
    assert rows(
        view.connection, "select reason from event_store.audit_log where operation = 'discard_dead_letter'"
    ) == [("a test",)]


def test_a_dry_run_shows_a_seek_and_does_not_move(view: EventStore, dsn: str) -> None:
    before = rows(view.connection, "select partition, position from event_store.checkpoints order by 1")
    assert "dry run" in millrace(dsn, "seek", "v", "reset_to_earliest", "--dry-run")
    assert rows(view.connection, "select partition, position from event_store.checkpoints order by 1") == before
    assert "dry run" not in millrace(dsn, "seek", "v", "RESET_TO_EARLIEST", "--reason", "again")
    assert {row[1] for row in rows(view.connection, "select partition, position from event_store.checkpoints")} == {0}


def test_a_seek_by_time_is_in_utc(view: EventStore, dsn: str) -> None:
    millrace(dsn, "seek", "v", "EXACT_TIMESTAMP", "--timestamp", "2000-01-01T00:00:00")
    assert {row[0] for row in rows(view.connection, "select position from event_store.checkpoints")} == {0}


@pytest.mark.usefixtures("view")
def test_a_refused_seek_says_what_is_possible(dsn: str) -> None:
    with pytest.raises(OffsetOutOfRange, match="high-water mark"):
        millrace(dsn, "seek", "v", "EXACT_OFFSET", "--partition", "0", "--offset", "99")
    wrong = RUNNER.invoke(app, ["seek", "v", "SOMEWHERE", "--dsn", dsn])
    assert wrong.exit_code == 2
    assert "RESET_TO_EARLIEST" in wrong.output.upper()


def test_status_shows_every_view(view: EventStore, dsn: str) -> None:
    park(view, "a")
    view.register_view("off", "-infinity", mode="bulk")
    view.enable_view("off", enabled=False)
    lines = {line.split("│")[1].strip(): line for line in millrace(dsn, "status").splitlines() if line.startswith("│")}
    assert "disabled" in lines["off"]
    assert [cell.strip() for cell in lines["v"].split("│")[2:7]] == ["rows", "0 events", "1", "0", "1"]


@pytest.mark.parametrize(
    ("dsn_of", "said"),
    [
        (lambda _: "postgresql://127.0.0.1:1/nothing", "Postgres does not answer: connection failed"),
        (lambda dsn: dsn.replace("/test_", "/no_such_"), 'database "no_such_'),
        (lambda dsn: re.sub("/test_[0-9]+", "/postgres", dsn), "Is this an event store? Run: millrace migrate"),
    ],
    ids=["no server", "no database", "no event store"],
)
def test_what_postgres_refuses_is_a_sentence(
    dsn: str,
    dsn_of: Callable[[str], str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["millrace", "status", "--dsn", dsn_of(dsn)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_view_whose_name_looks_like_markup_is_shown(view: EventStore, dsn: str) -> None:
    view.register_view("a[/b]")
    assert "a[/b]" in millrace(dsn, "status")
    assert "a[/b]" in millrace(dsn, "seek", "a[/b]", "RESET_TO_LATEST")
    assert "a[/b]" in millrace(dsn, "retry", "a[/b]")
