"""A table that cannot be captured stops itself and no other one; once it can, it is read anew.

Belongs here: tables that go bad, that are locked, and that are mended. Not here: each thing that a table may lack
(test_readiness), tables that are exchanged (test_setup).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest

from millrace.resources.capture import backfill, drain, setup
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.health import capture_health, has_work
from millrace.resources.capture.rereads.reading import compare
from millrace.resources.capture.source import chunks
from millrace.resources.capture.source import connection as source_connection
from millrace.resources.capture.source.readiness import NotReady
from millrace.resources.capture.store import CaptureInfo, CaptureStore
from millrace.resources.errors import ChangesWaiting
from tests.support.capturing.captured import ITEMS, Captured, Killed, captured, killed, new_source, replay
from tests.support.factories import rows, start, wait_until

__all__ = ["captured", "new_source"]

GOOD = CapturedTable("good")
FILL = "insert into items values (1, 'goes'), (2, 'stays'), (3, 'changes')"
# what is done to the table, and what mends it
BAD: dict[str, tuple[LiteralString, LiteralString]] = {
    "dropped": ("drop table items", f"{ITEMS}; insert into items values (2, 'stays'), (3, 'changes')"),
    "renamed": ("alter table items rename to elsewhere", "alter table elsewhere rename to items"),
    "in another schema": (
        "create schema elsewhere; alter table items set schema elsewhere",
        "alter table elsewhere.items set schema public",
    ),
    "without a key": ("alter table items drop constraint items_pkey", "alter table items add primary key (id)"),
    "identity nothing": ("alter table items replica identity nothing", "alter table items replica identity default"),
    "a view": (
        "alter table items rename to elsewhere; create view items as select * from elsewhere",
        "drop view items; alter table elsewhere rename to items",
    ),
}


def both(captured: Captured, *tables: CapturedTable) -> Captured:
    """Return the source with a second table, and both declared."""
    captured.source.run(
        "create table good (id int primary key, name text)", "insert into good values (1, 'first')", FILL
    )
    return declared(captured, CapturedTable("items"), GOOD, *tables)


def declared(captured: Captured, *tables: CapturedTable) -> Captured:
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables))


def info(captured: Captured) -> CaptureInfo:
    (found,) = CaptureStore(captured.store).capture_info("shop")
    return found


def left(captured: Captured, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table that the captured history leaves."""
    found = replay([change for change in captured.changes() if change["source_table_name"] == table])
    return sorted(found.values(), key=str)


def problems(captured: Captured) -> list[str]:
    return capture_health(captured.dsn, captured.capture).problems(captured.capture)


@contextmanager
def locking(captured: Captured, mode: LiteralString = "access exclusive") -> Iterator[None]:
    """Hold the table items in a session of its own."""
    with psycopg.connect(captured.source.dsn) as other:
        other.execute(b"lock table items in " + mode.encode() + b" mode")
        yield


@pytest.mark.parametrize("bad", BAD)
def test_the_others_go_on_and_once_it_is_mended_its_state_is_that_of_the_table(captured: Captured, bad: str) -> None:
    breaks, mends = BAD[bad]
    captured = both(captured)
    captured.drain()
    captured.source.run(
        "insert into items values (4, 'not captured yet')", breaks, "insert into good values (2, 'second')"
    )
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert (info(captured).tables, info(captured).tables_stopped, info(captured).tables_to_backfill) == (2, 1, 0)
    (said,) = problems(captured)
    assert said.startswith("table public.items is stopped, the others are captured: ")
    assert not has_work(captured.dsn, captured.capture)
    captured.source.run("update good set name = 'third' where id = 2")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    captured.source.run(mends, "delete from items where id = 2", "update items set name = 'changed' where id = 3")
    captured.source.run("insert into items values (7, 'comes')")
    assert has_work(captured.dsn, captured.capture)
    captured.drain()
    assert left(captured, "items") == captured.table()
    assert (info(captured).tables_stopped, info(captured).gaps, problems(captured)) == (0, 0, [])
    captured.source.run("update items set name = 'again' where id = 7")
    assert captured.drain().backfilled == 0
    assert left(captured, "items") == captured.table()


def test_it_is_said_since_when_and_why_and_a_reason_that_stays_is_written_once(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.source.run("drop table items")
    captured.drain()
    (stopped,) = [table for table in CaptureStore(captured.store).captured_tables("shop") if table.stopped_reason]
    assert (stopped.name, stopped.published_xid) == ("public.items", None)
    assert str(stopped.stopped_reason).startswith("it does not exist in database")
    audited = rows(captured.store, "select count(*) from event_store.audit_log where operation = 'register_capture'")
    captured.drain()
    assert [t for t in CaptureStore(captured.store).captured_tables("shop") if t.stopped_reason] == [stopped]
    assert (
        rows(captured.store, "select count(*) from event_store.audit_log where operation = 'register_capture'")
        == audited
    )
    captured.source.run("create view items as select 1 as id")
    captured.drain()
    (again,) = [table for table in CaptureStore(captured.store).captured_tables("shop") if table.stopped_reason]
    assert (again.stopped_at, again.stopped_reason) != (stopped.stopped_at, stopped.stopped_reason)
    assert again.stopped_at == stopped.stopped_at


def test_a_stopped_table_is_not_compared(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.source.run("alter table items replica identity nothing")
    captured.drain()
    with pytest.raises(ChangesWaiting, match="it is stopped: its replica identity is nothing"):
        compare(captured.dsn, captured.capture, CapturedTable("items"))
    assert compare(captured.dsn, captured.capture, GOOD).differing == 0


def test_where_no_table_is_left_nothing_is_captured(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.source.run("drop table items", "alter table good replica identity nothing")
    with pytest.raises(NotReady, match=r"(?s)table public\.items: it does not exist.*table public\.good: its replica"):
        captured.drain()


def test_a_table_that_is_bad_from_the_beginning_is_left_out(captured: Captured) -> None:
    captured = both(captured, CapturedTable("comes_later"))
    captured.drain()
    assert (info(captured).tables_stopped, info(captured).tables_to_backfill) == (1, 0)
    captured.source.run(
        "create table comes_later (id int primary key, name text)", "insert into comes_later values (1, 'x')"
    )
    captured.drain()
    assert left(captured, "comes_later") == captured.table("comes_later")
    assert info(captured).gaps == 0


def test_a_new_start_leaves_it_out(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.source.run("alter table items replica identity nothing")
    setup.restart(captured.dsn, captured.capture, "a test")
    captured.drain()
    assert (info(captured).tables_stopped, info(captured).tables_to_backfill) == (1, 0)
    captured.source.run("alter table items replica identity default", "delete from items where id = 1")
    captured.drain()
    assert left(captured, "items") == captured.table()


@pytest.mark.parametrize("step", ["ensure_publication", "advance", "next_xid", "mark_probed"])
def test_killed_where_it_stops_and_where_it_goes_on_the_next_run_does_it(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed_once() -> None:
        with monkeypatch.context() as patching:
            patching.setattr(setup, step, killed)
            with pytest.raises(Killed):
                captured.drain()

    captured = both(captured)
    captured.drain()
    captured.source.run("alter table items rename to elsewhere")
    if step == "ensure_publication":
        killed_once()
    captured.drain()
    captured.source.run("delete from elsewhere where id = 1", "alter table elsewhere rename to items")
    killed_once()
    captured.source.run("insert into items values (8, 'after the kill')")
    captured.drain()
    assert left(captured, "items") == captured.table()
    assert (info(captured).tables_stopped, info(captured).gaps) == (0, 0)


def test_after_a_kill_before_the_slot_moved_a_table_that_stops_makes_no_other_history(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = both(captured)
    captured.drain()
    # one transaction of both tables: the numbers of its changes are others without one of them
    with captured.source.connection.transaction():
        captured.source.run("update items set name = 'x'", "update good set name = 'x'")
    with monkeypatch.context() as patching:
        patching.setattr(drain, "advance", killed)
        with pytest.raises(Killed):
            captured.drain()
    captured.source.run("alter table items replica identity nothing")
    with monkeypatch.context() as patching:
        patching.setattr(setup, "advance", killed)
        with pytest.raises(Killed):
            captured.drain()
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    captured.source.run("alter table items replica identity default")
    captured.drain()
    assert left(captured, "items") == captured.table()


def test_a_partition_of_a_table_that_is_captured_stays_stopped(captured: Captured) -> None:
    captured.source.run(
        "create table parts (id int primary key) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
    )
    captured = declared(captured, CapturedTable("items"), CapturedTable("parts"), CapturedTable("parts_1"))
    captured.drain()
    (said,) = problems(captured)
    assert "it is a partition of public.parts, which is captured as a whole" in said
    assert not has_work(captured.dsn, captured.capture)


# Locked tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["access exclusive", "share update exclusive"])
def test_a_table_that_is_locked_when_it_is_to_be_published_keeps_no_other_one_waiting(
    captured: Captured, mode: LiteralString
) -> None:
    captured = both(captured)
    declared(captured, GOOD).drain()
    with locking(captured, mode):
        captured.drain()
        assert left(captured, "good") == captured.table("good")
        (said,) = problems(captured)
        assert "another session has locked it, or vacuums it" in said
    assert has_work(captured.dsn, captured.capture)
    captured.drain()
    assert left(captured, "items") == captured.table()
    assert problems(captured) == []


def test_where_every_table_is_locked_the_run_waits_for_them(captured: Captured) -> None:
    captured.source.run(FILL)
    with ExitStack() as held:
        held.enter_context(locking(captured, "share update exclusive"))
        done = start(captured.drain)
        wait_until(
            lambda: rows(captured.source.connection, "select from pg_locks where not granted") != [], "the run waits"
        )
        held.close()
    done.result(60)
    assert captured.replayed() == captured.table()


def test_a_locked_table_is_tried_again_after_a_while_and_not_at_each_step(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    read_chunk = chunks.read_chunk

    def reading(source: psycopg.Connection, table: CapturedTable, *other: Any) -> chunks.Chunk:  # noqa: ANN401
        tried.append(table.table)
        return read_chunk(source, table, *other)

    monkeypatch.setattr(backfill, "read_chunk", reading)
    captured = both(captured)
    with captured.process() as process, locking(captured):
        process.drain(budget_s=60, idle_s=0)
        captured.source.run("update good set name = 'changed'")
        process.drain(budget_s=60, idle_s=0)
    assert (tried.count("items"), left(captured, "good")) == (1, captured.table("good"))


def test_a_table_that_is_locked_when_it_is_to_be_read_keeps_no_other_one_waiting(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "LOCKED_S", 0.0)
    captured = both(captured)
    with captured.process() as process:
        with locking(captured):
            process.drain(budget_s=60, idle_s=0)
            captured.source.run("update good set name = 'changed'")
            process.drain(budget_s=60, idle_s=0)
            assert left(captured, "good") == captured.table("good")
            assert (left(captured, "items"), info(captured).tables_to_backfill) == ([], 1)
        process.drain(budget_s=60, idle_s=0)
    assert left(captured, "items") == captured.table()


def test_a_published_table_that_is_locked_keeps_back_only_those_that_are_to_be_published(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    captured.source.run("create table more (id int primary key, name text)", "insert into more values (1, 'x')")
    captured = declared(captured, CapturedTable("items"), GOOD, CapturedTable("more"))
    with captured.source.connection.transaction():
        captured.source.run("update items set name = 'x'", "update good set name = 'x'")
    with monkeypatch.context() as patching:
        patching.setattr(drain, "advance", killed)
        with pytest.raises(Killed):
            declared(captured, CapturedTable("items"), GOOD).drain()
    with locking(captured):
        captured.source.run("insert into more values (2, 'y')", "update good set name = 'changed'")
        with captured.process() as process:
            assert list(process.stopped) == ["public.more"]
            process.drain(budget_s=60, idle_s=0)
        assert left(captured, "good") == captured.table("good")
        assert left(captured, "more") == []
    captured.source.run("delete from more where id = 1")
    captured.drain()
    assert left(captured, "more") == captured.table("more")
    assert info(captured).gaps == 0


def test_while_a_table_is_locked_a_publication_that_somebody_changed_is_not_taken_as_it_is(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    (name,) = rows(captured.source.connection, "select pubname from pg_publication")[0]
    captured.source.connection.execute(f"alter publication {name} drop table good".encode())
    with locking(captured), pytest.raises(psycopg.errors.LockNotAvailable):
        captured.drain()
    with pytest.raises(setup.GapOpen, match=r"public\.good"):
        captured.drain()
