"""A capture that runs until it is stopped: its lease, a second process that waits, its log lines."""

import logging
import re
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tenacity import RetryCallState, Retrying

from millrace.capture import follow as following
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.follow import follow
from millrace.capture.setup import GapOpen
from millrace.capture.source.slot import SlotBusy
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore
from millrace.errors import CaptureInUse
from tests.support.capturing.captured import Captured, did, preceded
from tests.support.capturing.following import arrived, followed
from tests.support.factories import start, value
from tests.support.patience import patience, wait_until


def owner(captured: Captured) -> str | None:
    found: str | None = captured.value("select max(lease_owner) from event_store.captures")
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, ...]]:
    """Return the logged counts in order: changes stored, events, rows backfilled, unchanged, quarantined."""
    line = re.compile(
        r"shop: (\d+) changes stored, (\d+) events, (\d+) rows backfilled, (\d+) unchanged, (\d+) quarantined in \d+ s"
    )
    return [tuple(map(int, said.groups())) for message in caplog.messages if (said := line.fullmatch(message))]


def test_changes_are_events_until_it_is_stopped_with_its_lease_kept(captured: Captured) -> None:
    until = "select extract(epoch from leased_until)::float8 from event_store.captures"
    token = "select lease_token from event_store.captures"
    with followed(captured, lease_s=1):
        for number in (1, 2, 3):
            captured.source.connection.execute("insert into items values (%s, 'a')", (number,))
            arrived(captured, f"[{number}]")
        assert str(owner(captured)).startswith("follow ")
        first, claimed = captured.value(until), captured.value(token)
        wait_until(lambda: (captured.value(until) or first) > first + 3, "the lease of a second is three older")
        assert captured.value(token) == claimed
    assert owner(captured) is None
    captured.run("insert into items values (4, 'a')")
    captured.drain()
    assert [key for _, key in did(captured)] == ["[1]", "[2]", "[3]", "[4]"]


def test_all_looks_of_a_drain_read_one_stream(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    reader = "select active_pid from pg_replication_slots where database = current_database()"

    def look() -> None:
        looks.append(value(captured.source.connection, reader))

    monkeypatch.setattr(SlotStream, "messages", preceded(SlotStream.messages, look))
    with followed(captured):
        looks.clear()
        captured.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
        wait_until(lambda: len(looks) >= 20, "there are looks that find nothing")
        captured.run("update items set name = 'b'")
        wait_until(lambda: did(captured)[-1] == ("updated", "[1]"), "a change after that comes, too")
    assert len(set(looks)) == 1


def test_a_second_one_waits_and_takes_over(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stop = threading.Event()
    try:
        with followed(captured):
            wait_until(lambda: owner(captured) is not None, "the first one has the lease")
            first = owner(captured)
            waiting = start(lambda: follow(captured.dsn, captured.capture, stop))
            wait_until(lambda: "shop waits, and tries again" in caplog.text, "the second one waits")
            captured.run("insert into items values (1, 'a')")
            arrived(captured, "[1]")
            assert (owner(captured), waiting.done()) == (first, False)
        wait_until(lambda: owner(captured) not in (first, None), "the second one takes over")
        captured.run("insert into items values (2, 'a')")
        arrived(captured, "[2]")
        assert len(did(captured)) == 2
    finally:
        stop.set()
    waiting.result(patience())


def test_each_round_looks_at_the_source_anew_and_says_what_came(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "ROUND_S", 0.3)
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    caplog.set_level(logging.INFO)
    tokens = "select max(lease_token) from event_store.captures"
    with followed(captured):
        for number in (1, 2, 3):
            captured.source.connection.execute("insert into items values (%s, 'a')", (number,))
            arrived(captured, f"[{number}]")
        first = captured.value(tokens)
        wait_until(lambda: captured.value(tokens) > first + 1, "there are more rounds")
    # a round may end between the change and its event; a round without changes logs nothing
    assert [sum(each) for each in zip(*told(caplog), strict=True)] == [3, 3, 0, 0, 0]
    assert len(told(caplog)) >= 3
    assert (0, 0, 0, 0, 0) not in told(caplog)


def test_what_only_an_operator_can_mend_ends_it(captured: Captured) -> None:
    captured.drain()
    CaptureStore(captured.store).record_gap("shop", None, None, "a test")
    with pytest.raises(GapOpen):
        follow(captured.dsn, captured.capture, threading.Event())
    assert owner(captured) is None


def test_a_stop_before_anything_is_there_to_follow_ends_it(captured: Captured) -> None:
    nowhere = Capture("shop", lambda: "postgresql://nobody@127.0.0.1:1/nothing", captured.capture.tables)
    stop = threading.Event()
    done: Future[Any] = start(lambda: follow(captured.dsn, nowhere, stop))
    stop.set()
    assert done.result(patience()) is None


def test_a_server_that_refuses_is_said_once_for_each_reason(
    captured: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    stranger = psycopg.conninfo.make_conninfo(captured.source.dsn, user="stranger")
    stop = threading.Event()
    done: Future[Any] = start(lambda: follow(captured.dsn, replace(captured.capture, source=lambda: stranger), stop))
    wait_until(lambda: len(caplog.records) > 1, "it says so each time")
    stop.set()
    done.result(patience())
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert all('role "stranger" does not exist' in message for message in caplog.messages)


def test_a_table_that_is_stopped_is_said(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    captured.run("create table more (id int primary key)")
    both = replace(captured, capture=replace(captured.capture, tables=(CapturedTable("items"), CapturedTable("more"))))
    both.drain()
    captured.run("drop table more")
    with followed(both):
        captured.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
    assert "shop: table public.more is stopped, the others are captured: it does not exist" in caplog.text


def test_another_reason_to_wait_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    waiting = following._Waiting("shop")
    for attempt, error in enumerate((CaptureInUse("a"), CaptureInUse("b"), SlotBusy("c"), SlotBusy("d")), start=1):
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        state.set_exception((type(error), error, None))
        waiting(state)
    assert [message[-1] for message in caplog.messages] == ["a", "c"]
