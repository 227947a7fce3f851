"""Checks before a capture resumes: other tables under the same names, a changed publication or source."""

from collections.abc import Callable
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest

from millrace.capture import drain as pipeline
from millrace.capture import health as looking
from millrace.capture import setup
from millrace.capture.declaration import CapturedTable
from millrace.capture.health import capture_health
from millrace.capture.setup import GapOpen
from millrace.capture.source import connection as source_connection
from millrace.capture.store import CaptureStore, Emitted
from millrace.errors import CaptureInUse, LeaseLost
from tests.support.capturing.captured import ITEMS, Captured, declared
from tests.support.factories import rows, start, value
from tests.support.patience import patience, wait_until


def gaps(captured: Captured) -> list[str]:
    return [gap.reason for gap in CaptureStore(captured.store).capture_gaps("shop")]


def publication(captured: Captured) -> str:
    return str(value(captured.source.connection, "select pubname from pg_publication"))


def test_another_table_that_takes_the_name_of_a_captured_one_is_read_anew(captured: Captured) -> None:
    captured.run("create schema old", "insert into items values (1, 'goes'), (2, 'changes')")
    captured.drain()
    exchanges: tuple[LiteralString, ...] = (
        "drop table items", "alter table items rename to items_old", "alter table items set schema old",
    )  # fmt: skip
    for exchange in exchanges:
        captured.run("insert into items values (5, 'not stored yet')")
        captured.run(exchange, ITEMS, "insert into items values (2, 'changed'), (3, 'comes')")
        captured.drain()
        captured.run("insert into items values (4, 'later')", "update items set name = 'again' where id = 2")
        captured.drain()
        assert (captured.replayed(), gaps(captured)) == (captured.table(), []), exchange


def test_a_table_that_is_exchanged_meanwhile_is_read_anew_by_the_next_run(captured: Captured) -> None:
    captured.run("insert into items values (1, 'goes'), (2, 'changes')")
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        captured.run(
            """
            create table items_new (like items including all);
            insert into items_new select * from items;
            alter table items rename to items_old;
            alter table items_new rename to items
            """,
            "update items set name = 'changed' where id = 2",
            "delete from items where id = 1",
        )
        process.drain(budget_s=patience(), idle_s=0)
    captured.drain()
    assert captured.replayed() == captured.table()
    assert gaps(captured) == []


def test_a_changed_publication_is_a_gap_though_another_table_is_declared(captured: Captured) -> None:
    captured.drain()
    captured.run(f"alter publication {publication(captured)} set (publish = 'insert')")
    captured.run("create table notes (id int primary key)")
    with pytest.raises(GapOpen, match=r"another program: public\.items\."):
        declared(captured, CapturedTable("items"), CapturedTable("notes")).drain()


def test_more_tables_in_the_publication_than_declared_are_taken_out(captured: Captured) -> None:
    captured.drain()
    read_at = captured.value("select backfilled_at from event_store.captured_tables")
    captured.run("create table notes (id int primary key)")
    captured.run(f"alter publication {publication(captured)} add table notes")
    captured.run("insert into notes values (1)", "insert into items values (1)")
    captured.drain()
    assert captured.replayed() == captured.table()
    # a table taken out of the declaration is skipped under any name
    declared(captured, CapturedTable("items"), CapturedTable("notes")).drain()
    captured.run("insert into notes values (2)", "alter table notes rename to n", "insert into n values (3)")
    captured.run("vacuum full items", "insert into items values (2)")
    captured.drain()
    assert [row for row in captured.replayed() if "name" in row] == captured.table()
    # an unchanged table is not read again
    assert captured.value("select backfilled_at from event_store.captured_tables") == read_at
    assert gaps(captured) == []
    assert rows(captured.source.connection, "select tablename::text from pg_publication_tables") == [("items",)]


def test_a_restart_keeps_its_lease_which_is_a_short_one(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    left: list[float] = []
    now = "event_store_private.clock()"
    emit: Callable[[CaptureStore, str, int], Emitted] = CaptureStore.emit_changes

    def slow(store: CaptureStore, capture: str, token: int) -> Emitted:
        left.append(captured.value(f"select extract(epoch from leased_until - {now})::float from event_store.captures"))
        captured.store.execute(f"update event_store.captures set leased_until = {now} + interval '1 s'".encode())
        return replace(emit(store, capture, token), behind=len(left) < 3)

    with monkeypatch.context() as patch:
        patch.setattr(CaptureStore, "emit_changes", slow)
        assert captured.restart("to try it") == 2
    assert [20 < seconds <= 30 for seconds in left] == [True] * 3
    captured.drain()


def test_a_backfill_that_waits_for_an_older_transaction_names_it(captured: Captured) -> None:
    captured.drain()
    captured.run("create table notes (id int primary key)", "insert into notes values (1)")
    both = declared(captured, CapturedTable("items"), CapturedTable("notes"))
    with psycopg.connect(captured.source.dsn) as older:
        older.execute("select pg_current_xact_id()")
        both.drain()
        (said,) = both.problems()
        assert said.startswith("the backfill of public.notes waits for the end of the transaction of session ")
        assert f"session {older.info.backend_pid} (" in said
        # the slot retains more log than expected: the same session is named
        small = replace(both.capture, max_retained_bytes=-1)
        kept, _ = capture_health(both.dsn, small).problems(small)
        assert f"open the longest is the transaction of session {older.info.backend_pid} (" in kept
    both.drain()
    assert both.problems() == []


def test_looking_does_not_hold_up_the_slot_of_a_live_one(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.drain()
    captured.run("insert into items values (1)")
    looks: list[object] = []
    monkeypatch.setattr(looking, "oldest_change", lambda *asked: looks.append(asked))
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        assert captured.health().lag_s < looking.RECENT_S
        assert looks == []
        # the capture has stored nothing for longer, and does not read the slot
        captured.store.execute("update event_store.captures set stored_at = stored_at - interval '1 hour'")
        monkeypatch.setattr(looking, "BUSY_S", 0.1)
        captured.run("create table others ()")
        assert captured.health().lag_s > 3000
        # or nothing happened in the source for that time
        monkeypatch.setattr(looking, "BUSY_S", patience())
        monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
        health = start(captured.health)
        while not health.done():
            process.drain(budget_s=patience(), idle_s=0)
        assert health.result(patience()).lag_s < looking.RECENT_S
        assert looks == []
        captured.store.execute("update event_store.captures set stored_at = stored_at - interval '1 hour'")
    captured.store.execute("update event_store.captures set stored_at = stored_at + interval '1 hour'")
    captured.health()
    assert len(looks) == 1


def test_a_slot_waits_for_whoever_writes_and_says_for_whom(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "100ms")
    captured.run("insert into items values (1, 'a')")
    waits = "select from pg_stat_activity where query ~ 'pg_create_logical_' and wait_event_type = 'Lock'"

    def write(key: int) -> psycopg.Connection:
        other = psycopg.connect(captured.source.dsn)
        other.execute("insert into items values (%s, 'x')", (key,))
        return other

    def problem() -> str:
        return "".join(captured.problems())

    begun = write(2)
    with begun:
        done = start(captured.drain)
        wait_until(lambda: captured.rows(waits) != [], "it waits")
        whom = f"is being made, which waits for the end of the transaction of session {begun.info.backend_pid}"
        assert whom in problem()
        wait_until(lambda: f"session {begun.info.backend_pid}" in caplog.text, "it says for whom")
        leased = str(captured.info().leased_until)
        wait_until(lambda: str(captured.info().leased_until) > leased, "its lease is kept")
        with pytest.raises(CaptureInUse):
            captured.drain("another")
        later = write(3)
    with later:
        wait_until(lambda: f"session {later.info.backend_pid}" in problem(), "it waits for one that began meanwhile")
    done.result(patience())
    assert captured.replayed() == captured.table()
    assert problem() == ""


def test_who_loses_the_lease_meanwhile_leaves_no_slot(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise LeaseLost("somebody else has it")

    monkeypatch.setattr(setup._Waiting, "__call__", lost)
    with psycopg.connect(captured.source.dsn) as other:
        other.execute("insert into items values (1, 'x')")
        with pytest.raises(LeaseLost):
            captured.drain()
        slots = "select from pg_replication_slots where database = current_database()"
        assert rows(captured.source.connection, slots) == []
