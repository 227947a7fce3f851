"""A table that cannot be captured stops alone; once it can be captured again, its rows are read again."""

from dataclasses import replace

import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.prepare import restart
from millrace.capture.source.readiness import NotReady
from millrace.capture.store import CaptureStore
from millrace.errors import ChangesWaiting
from tests.support.capturing.captured import Captured, declared, left
from tests.support.capturing.two_tables import GOOD, both

# a change that stops a table, and the one that mends it
MADE = "create table {t} (id int primary key, name text)"
BAD: dict[str, tuple[str, str]] = {
    "dropped": ("drop table {t}", MADE + "; insert into {t} values (2, 'stays'), (3, 'changes')"),
    "renamed": ("alter table {t} rename to elsewhere", "alter table elsewhere rename to {t}"),
    "moved": ("create schema other; alter table {t} set schema other", "alter table other.{t} set schema public"),
    "keyless": ("alter table {t} drop constraint {t}_pkey", "alter table {t} add primary key (id)"),
    "nothing": ("alter table {t} replica identity nothing", "alter table {t} replica identity default"),
    "view": (
        "alter table {t} rename to below; create view {t} as select * from below",
        "drop view {t}; alter table below rename to {t}",
    ),
    # its filter no longer sees deletes
    "filtered": ("alter table {t} replica identity default", "alter table {t} replica identity full"),
    # a partition has another identity
    "parted": (
        "create table more partition of {t} for values from (100) to (200); insert into more values (101, 'x')",
        "alter table more replica identity full",
    ),
}
FULL = "alter table {t} replica identity full"
PARTED = (
    "create table {t} (id int primary key, name text) partition by range (id)", FULL,
    "create table part partition of {t} for values from (0) to (100)", FULL.replace("{t}", "part"),
)  # fmt: skip


def for_each(captured: Captured, *statements: str) -> None:
    for name in BAD:
        for statement in statements:
            captured.run(statement.replace("{t}", name))


def test_the_others_go_on_and_a_mended_one_has_the_state_of_its_table(captured: Captured) -> None:
    captured.run("create table good (id int primary key, name text)", "insert into good values (1, 'first')")
    for_each(captured, MADE)
    for statement in (FULL.replace("{t}", "filtered"), "drop table parted", *PARTED):
        captured.run(statement.replace("{t}", "parted"))
    for_each(captured, "insert into {t} values (1, 'goes'), (2, 'stays'), (3, 'changes')")
    filters = {"filtered": "name <> 'nobody'"}
    captured = declared(captured, GOOD, *[CapturedTable(name, where=filters.get(name)) for name in BAD])
    captured.drain()
    for_each(captured, "insert into {t} values (4, 'not captured yet')")
    for name, (breaks, _) in BAD.items():
        captured.run(breaks.replace("{t}", name))
    captured.run("insert into good values (2, 'second')")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert (captured.info().tables_stopped, captured.info().tables_to_backfill) == (len(BAD), 0)
    for name in BAD:
        said = f"table public.{name} is stopped, the others are captured: "
        assert [problem for problem in captured.problems() if problem.startswith(said)] != [], name
    assert not captured.has_work()
    captured.run("update good set name = 'third' where id = 2")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    for name, (_, mends) in BAD.items():
        captured.run(mends.replace("{t}", name))
    for_each(captured, "delete from {t} where id = 2", "update {t} set name = 'changed' where id = 3")
    for_each(captured, "insert into {t} values (7, 'comes')")
    assert captured.has_work()
    captured.drain()
    assert [name for name in BAD if left(captured, name) != captured.table(name)] == []
    assert (captured.info().tables_stopped, captured.info().gaps, captured.problems()) == (0, 0, [])
    for_each(captured, "update {t} set name = 'again' where id = 7")
    assert captured.drain().backfilled == 0
    assert [name for name in BAD if left(captured, name) != captured.table(name)] == []


def test_a_table_that_is_bad_at_a_start_is_left_out(captured: Captured) -> None:
    captured.run(
        "create table parts (id int primary key) partition by range (id)",
        "create table part partition of parts for values from (0) to (100)",
    )
    captured = both(captured, *map(CapturedTable, ("comes_later", "parts", "part")))
    captured.drain()
    assert (captured.info().tables_stopped, captured.info().tables_to_backfill) == (2, 0)
    assert "it is a partition of public.parts, which is captured as a whole" in str(captured.problems())
    assert not captured.has_work()
    captured.run(
        "create table comes_later (id int primary key, name text)", "insert into comes_later values (1, 'x')",
        "alter table items replica identity nothing",
    )  # fmt: skip
    captured.drain()
    assert left(captured, "comes_later") == captured.table("comes_later")
    with pytest.raises(ChangesWaiting, match="it is stopped: its replica identity is nothing"):
        captured.verify(CapturedTable("items"))
    assert captured.verify(GOOD).differing == 0
    assert captured.info().gaps == 0
    restart(captured.dsn, captured.capture, "a test")
    captured.drain()
    assert (captured.info().tables_stopped, captured.info().tables_to_backfill) == (2, 0)
    captured.run("alter table items replica identity default", "delete from items where id = 1")
    captured.drain()
    assert left(captured, "items") == captured.table()
    # if no table is left, nothing is captured
    captured = declared(captured, CapturedTable("items"), GOOD)
    captured.run("drop table items", "alter table good replica identity nothing")
    with pytest.raises(NotReady, match=r"(?s)table public\.items: it does not exist.*table public\.good: its replica"):
        captured.drain()


def test_where_no_other_table_is_captured_none_is_said_to_be(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.run("alter table items replica identity nothing")
    captured.drain()
    assert captured.problems()[0].startswith("table public.items is stopped, the others are captured: ")
    captured.run("alter table good replica identity nothing")
    with pytest.raises(NotReady):
        captured.drain()
    assert [said[: said.index(":")] for said in captured.problems()] == [
        "table public.good is stopped",
        "table public.items is stopped",
    ]
    captured.run("alter table good replica identity default")
    captured.drain()
    CaptureStore(captured.store).record_gap("shop", None, None, "a test")
    assert captured.problems()[-1].startswith("table public.items is stopped: ")


def test_it_is_said_since_when_and_why_and_written_once(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.run("drop table items")
    captured.drain()
    (stopped,) = [table for table in CaptureStore(captured.store).captured_tables("shop") if table.stopped_reason]
    assert (stopped.name, stopped.published_xid) == ("public.items", None)
    assert str(stopped.stopped_reason).startswith("it does not exist in database")
    audited = captured.rows("select count(*) from event_store.audit_log where operation = 'register_capture'")
    captured.drain()
    assert [t for t in CaptureStore(captured.store).captured_tables("shop") if t.stopped_reason] == [stopped]
    assert captured.rows("select count(*) from event_store.audit_log where operation = 'register_capture'") == audited
    captured.run("create view items as select 1 as id")
    captured.drain()
    (again,) = [table for table in CaptureStore(captured.store).captured_tables("shop") if table.stopped_reason]
    assert (again.stopped_at, again.stopped_reason) != (stopped.stopped_at, stopped.stopped_reason)
    assert again.stopped_at == stopped.stopped_at


def test_a_right_that_is_taken_stops_its_table_only(as_role: Captured) -> None:
    role = f"r_{as_role.source.slot}"
    as_role.drain()
    as_role.run("alter table items owner to current_user", "insert into good values (2, 'second')")
    as_role.drain()
    assert left(as_role, "good") == as_role.table("good")
    assert f"role {role} does not own it, so it may not publish it" in as_role.problems()[0]
    as_role.run("delete from items where id = 1", f"alter table items owner to {role}")
    as_role.drain()
    assert left(as_role, "items") == as_role.table()
    assert as_role.problems() == []


def test_of_two_captures_of_a_source_only_the_one_with_the_table_stops_it(captured: Captured) -> None:
    first = both(captured)
    theirs = CapturedTable("good", decider="theirs:good")
    second = replace(first, capture=Capture("other", lambda: captured.source.dsn, (theirs,)))
    first.drain()
    second.drain()
    captured.run("drop table items", "insert into good values (2, 'second')")
    first.drain()
    second.drain()
    stopped = {found.capture: found.tables_stopped for found in CaptureStore(captured.store).capture_info()}
    assert stopped == {"shop": 1, "other": 0}
    assert captured.rows("select count(*) from event_store.events where decider = 'theirs:good'") == [(2,)]
    assert second.problems() == []
