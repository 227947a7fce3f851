"""A capture that goes on until it is stopped: its lease, restarts of both servers, a second one that waits."""

import logging
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from signal import SIGKILL
from subprocess import Popen
from typing import Any

import psycopg
import pytest
from tenacity import RetryCallState, Retrying

from millrace.resources.capture import drain as pipeline
from millrace.resources.capture import follow as following
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.follow import follow
from millrace.resources.capture.setup import GapOpen
from millrace.resources.capture.source.connection import flush_lsn
from millrace.resources.capture.source.slot import SlotBusy, peek
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import ITEMS, Captured, captured, did, new_source
from tests.support.capturing.sources import Source
from tests.support.factories import rows, start, value
from tests.support.patience import wait_until

__all__ = ["captured", "new_source"]


@contextmanager
def followed(captured: Captured, *, lease_s: int = 30) -> Iterator[Future[None]]:
    """Follow in a thread, all rows having been read before; stop it in the end, and see that it ended well."""
    captured.drain()
    stop = threading.Event()
    done = start(lambda: follow(captured.dsn, captured.capture, stop, lease_s=lease_s))
    try:
        yield done
    finally:
        stop.set()
    done.result(60)


def arrived(captured: Captured, *keys: str) -> None:
    """Wait until the events of these rows are the last ones."""
    wait_until(lambda: [key for _, key in did(captured)][-len(keys) :] == list(keys), f"{keys} are events")


def owner(captured: Captured) -> str | None:
    """Return who has the lease."""
    found: str | None = value(captured.store, "select max(lease_owner) from event_store.captures")
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, ...]]:
    """Return what was said, in order: changes stored, events, rows backfilled, unchanged, quarantined."""
    line = re.compile(
        r"shop: (\d+) changes stored, (\d+) events, (\d+) rows backfilled, (\d+) unchanged, (\d+) quarantined in \d+ s"
    )
    return [tuple(map(int, said.groups())) for message in caplog.messages if (said := line.fullmatch(message))]


def test_changes_are_events_until_it_is_stopped_and_then_the_lease_is_free(captured: Captured) -> None:
    with followed(captured):
        for number in (1, 2, 3):
            captured.source.connection.execute("insert into items values (%s, 'a')", (number,))
            arrived(captured, f"[{number}]")
        assert str(owner(captured)).startswith("follow ")
    assert owner(captured) is None
    captured.source.run("insert into items values (4, 'a')")
    captured.drain()
    assert [key for _, key in did(captured)] == ["[1]", "[2]", "[3]", "[4]"]


def test_the_lease_is_kept_while_nothing_happens(captured: Captured) -> None:
    until = "select extract(epoch from leased_until)::float8 from event_store.captures"
    token = "select lease_token from event_store.captures"
    with followed(captured, lease_s=1):
        captured.source.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
        first, claimed = value(captured.store, until), value(captured.store, token)
        wait_until(lambda: (value(captured.store, until) or first) > first + 3, "the lease of a second is three older")
        assert value(captured.store, token) == claimed


def test_a_source_that_writes_nothing_is_not_asked_for_changes(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    peeks: list[object] = []

    def look(source: psycopg.Connection) -> tuple[Lsn, datetime]:
        looks.append(source)
        return flush_lsn(source)

    def ask(source: psycopg.Connection, *arguments: Any) -> Any:  # noqa: ANN401 - passed on
        peeks.append(source)
        return peek(source, *arguments)

    monkeypatch.setattr(pipeline, "flush_lsn", look)
    monkeypatch.setattr(pipeline, "peek", ask)
    with followed(captured):
        captured.source.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
        # each look led to a question; the store, which is on the same server here, writes now and then
        wait_until(lambda: len(looks) - len(peeks) >= 20, "looks lead to no question")
        captured.source.run("update items set name = 'b'")
        wait_until(lambda: did(captured)[-1] == ("updated", "[1]"), "a change after that comes, too")


def test_a_second_one_waits_and_takes_over(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stop = threading.Event()
    try:
        with followed(captured):
            wait_until(lambda: owner(captured) is not None, "the first one has the lease")
            first = owner(captured)
            waiting = start(lambda: follow(captured.dsn, captured.capture, stop))
            wait_until(lambda: "shop waits, and tries again" in caplog.text, "the second one waits")
            captured.source.run("insert into items values (1, 'a')")
            arrived(captured, "[1]")
            assert (owner(captured), waiting.done()) == (first, False)
        wait_until(lambda: owner(captured) not in (first, None), "the second one takes over")
        captured.source.run("insert into items values (2, 'a')")
        arrived(captured, "[2]")
        assert len(did(captured)) == 2
    finally:
        stop.set()
    waiting.result(60)


# a process of its own, so that it can be killed as the machine would
FOLLOW = """
import sys, threading
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.follow import follow
source, store = sys.argv[1:]
follow(store, Capture("shop", lambda: source, (CapturedTable("items"),)), threading.Event())
"""
EVENTS = "select count(*) from event_store.events where event = 'inserted'"


def emitted(captured: Captured, before: int) -> None:
    """Wait until there are more events of inserts than before."""
    wait_until(lambda: value(captured.store, EVENTS) > before, "some are events")


def test_killed_again_and_again_each_change_is_one_event(captured: Captured) -> None:
    captured.drain()
    for turn in range(3):
        captured.source.run(
            f"do $$ begin for n in 0..149 loop insert into items select {turn} * 15000 + n * 100 + m, 'a' from"
            " generate_series(1, 100) m; commit; end loop; end $$"
        )
        before: int = value(captured.store, EVENTS)
        with Popen([sys.executable, "-c", FOLLOW, captured.source.dsn, captured.dsn]) as process:
            try:
                emitted(captured, before)
            finally:
                process.kill()
        assert process.returncode == -SIGKILL
        # its lease has ended for whoever looks: it said nothing for so long
        captured.store.execute(
            "update event_store.captures set leased_until = event_store_private.clock() - interval '1 s'"
        )
    captured.drain()
    assert rows(captured.store, "select count(*), count(distinct decider_id) from event_store.events") == [
        (45_000, 45_000)
    ]
    assert captured.replayed() == captured.table()


def test_both_servers_may_restart(postgres: EmbeddedPostgres) -> None:
    # not pytest's tmp_path: its long path does not fit a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as directory,
        EmbeddedPostgres(Path(directory), postgres.programs) as server,
    ):
        for name in ("source", "store"):
            server.create_database(name)
        migrate(server.dsn("store"))
        capture = Capture("shop", lambda: server.dsn("source"), (CapturedTable("items"),))
        source = Source(server.dsn("source"), "source")
        source.run(ITEMS)
        with psycopg.connect(server.dsn("store"), autocommit=True) as store:
            before = Captured(source, capture, server.dsn("store"), store)
            with followed(before, lease_s=2) as done:
                source.run("insert into items values (1, 'a')")
                arrived(before, "[1]")
                source.connection.close()
                server.stop()
                server.start()
                source = Source(server.dsn("source"), "source")
                source.run("insert into items values (2, 'a')")
                with psycopg.connect(server.dsn("store"), autocommit=True) as again:
                    after = Captured(source, capture, server.dsn("store"), again)
                    arrived(after, "[2]")
                    assert len(did(after)) == 2
                    assert not done.done()
        source.connection.close()


def test_each_round_looks_at_the_source_anew_and_says_what_came(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "ROUND_S", 0.3)
    caplog.set_level(logging.INFO)
    tokens = "select max(lease_token) from event_store.captures"
    with followed(captured):
        captured.source.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
        first = value(captured.store, tokens)
        wait_until(lambda: value(captured.store, tokens) > first + 1, "there are more rounds")
    # a round may end between the change and its event; one in which nothing came says nothing
    assert [sum(each) for each in zip(*told(caplog), strict=True)] == [1, 1, 0, 0, 0]
    assert (0, 0, 0, 0) not in told(caplog)


def test_it_says_while_it_works_what_came_since_it_said_so(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "TELL_S", 0.0)
    caplog.set_level(logging.INFO)
    with followed(captured):
        for number in (1, 2, 3):
            captured.source.connection.execute("insert into items values (%s, 'a')", (number,))
            arrived(captured, f"[{number}]")
    assert [sum(each) for each in zip(*told(caplog), strict=True)] == [3, 3, 0, 0, 0]
    assert len(told(caplog)) >= 3


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
    assert done.result(60) is None


def test_one_that_waits_for_another_says_so_once_a_minute(
    captured: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    tries: list[None] = []
    claim = CaptureStore.claim_capture

    def claiming(*arguments: Any) -> Any:  # noqa: ANN401 - passed on
        tries.append(None)
        return claim(*arguments)

    with captured.process("another"):
        monkeypatch.setattr(CaptureStore, "claim_capture", claiming)
        stop = threading.Event()
        done: Future[Any] = start(lambda: follow(captured.dsn, captured.capture, stop))
        wait_until(lambda: len(tries) > 3, "it has tried some times")
        stop.set()
        done.result(60)
    (said,) = [record for record in caplog.records if "waits" in record.message]
    assert said.levelno == logging.INFO
    assert "another" in said.message


def test_a_server_that_refuses_is_said_at_once_and_when_the_reason_is_another_one(
    captured: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TELL_S", 0.0)
    stranger = psycopg.conninfo.make_conninfo(captured.source.dsn, user="stranger")
    stop = threading.Event()
    done: Future[Any] = start(lambda: follow(captured.dsn, replace(captured.capture, source=lambda: stranger), stop))
    wait_until(lambda: len(caplog.records) > 1, "it says so each time")
    stop.set()
    done.result(60)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert all('role "stranger" does not exist' in message for message in caplog.messages)


def test_a_table_that_is_stopped_is_said(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    captured.source.run("create table more (id int primary key)")
    both = replace(captured, capture=replace(captured.capture, tables=(CapturedTable("items"), CapturedTable("more"))))
    both.drain()
    captured.source.run("drop table more")
    with followed(both):
        captured.source.run("insert into items values (1, 'a')")
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
