"""A table that cannot be captured stops itself and no other one; once it can, it is read anew.

Belongs here: tables that go bad, and that are mended. Not here: each thing that a table may lack (test_readiness),
tables that are locked (test_locked_tables) or exchanged (test_setup).
"""

from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest

from millrace.resources.capture import drain, setup
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.health import has_work
from millrace.resources.capture.rereads.reading import compare
from millrace.resources.capture.source.readiness import NotReady
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import ChangesWaiting
from tests.support.capturing.captured import ITEMS, Captured, captured, declared, killed_at, left, new_source
from tests.support.capturing.two_tables import GOOD, both, info, problems
from tests.support.factories import rows

__all__ = ["captured", "new_source"]

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
    captured = both(captured)
    captured.drain()
    captured.source.run("alter table items rename to elsewhere")
    if step == "ensure_publication":
        killed_at(captured, monkeypatch, setup, step)
    captured.drain()
    captured.source.run("delete from elsewhere where id = 1", "alter table elsewhere rename to items")
    killed_at(captured, monkeypatch, setup, step)
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
    killed_at(captured, monkeypatch, drain, "advance")
    captured.source.run("alter table items replica identity nothing")
    killed_at(captured, monkeypatch, setup, "advance")
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


def test_a_partition_with_another_identity_stops_its_table_only(captured: Captured) -> None:
    captured.source.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "alter table parts replica identity full",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "alter table parts_1 replica identity full",
        "insert into parts values (1, 'a')",
    )
    captured = both(captured, CapturedTable("parts"))
    captured.drain()
    captured.source.run(
        "create table parts_2 partition of parts for values from (100) to (200)",
        "insert into parts values (101, 'b')",
        "insert into good values (2, 'second')",
    )
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    (said,) = problems(captured)
    assert "its partition public.parts_2 has another replica identity than the table" in said
    captured.source.run("alter table parts_2 replica identity full", "update parts set name = 'c' where id = 101")
    captured.drain()
    assert left(captured, "parts") == captured.table("parts")
    assert (problems(captured), info(captured).gaps) == ([], 0)


def test_a_filter_that_cannot_see_deletes_any_more_stops_its_table_only(captured: Captured) -> None:
    captured = both(captured)
    captured.source.run("alter table items replica identity full")
    captured = declared(captured, CapturedTable("items", where="name <> 'goes'"), GOOD)
    captured.drain()
    captured.source.run("alter table items replica identity default", "insert into good values (2, 'second')")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert "where uses name, which the log does not hold" in problems(captured)[0]
    captured.source.run("alter table items replica identity full", "delete from items where id = 2")
    captured.drain()
    assert [row["id"] for row in left(captured, "items")] == [3]


def test_a_right_that_is_taken_stops_its_table_only(captured: Captured) -> None:
    captured = both(captured)
    role = f"r_{captured.source.slot}"
    admin = captured.source.connection

    def run(*statements: str) -> None:
        for statement in statements:
            admin.execute(statement.format(role=role, database=admin.info.dbname).encode())

    run(
        "create role {role} login replication",
        "grant create on database {database} to {role}",
        "alter table items owner to {role}",
        "alter table good owner to {role}",
    )
    try:
        dsn = psycopg.conninfo.make_conninfo(captured.source.dsn, user=role)
        tables = (CapturedTable("items"), GOOD)
        captured = replace(captured, capture=Capture("shop", lambda: dsn, tables))
        captured.drain()
        run("alter table items owner to current_user", "insert into good values (2, 'second')")
        captured.drain()
        assert left(captured, "good") == captured.table("good")
        assert f"role {role} does not own it, so it may not publish it" in problems(captured)[0]
        run("delete from items where id = 1", "alter table items owner to {role}")
        captured.drain()
        assert left(captured, "items") == captured.table()
        assert problems(captured) == []
    finally:
        run("drop publication if exists " + str(rows(admin, "select max(pubname) from pg_publication")[0][0]))
        run("reassign owned by {role} to current_user", "drop owned by {role}", "drop role {role}")


def test_of_two_captures_of_a_source_only_the_one_with_the_table_stops_it(captured: Captured) -> None:
    first = both(captured)
    theirs = CapturedTable("good", decider="theirs:good")
    second = replace(first, capture=Capture("other", lambda: captured.source.dsn, (theirs,)))
    first.drain()
    second.drain()
    captured.source.run("drop table items", "insert into good values (2, 'second')")
    first.drain()
    second.drain()
    stopped = {found.capture: found.tables_stopped for found in CaptureStore(captured.store).capture_info()}
    assert stopped == {"shop": 1, "other": 0}
    assert rows(captured.store, "select count(*) from event_store.events where decider = 'theirs:good'") == [(2,)]
    assert problems(second) == []
