"""Tables that are captured by a name pattern: new, dropped and excepted ones."""

from dataclasses import replace
from typing import Any

import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.facts import with_registered
from millrace.capture.quarantine import requeue
from millrace.capture.source.patterns import with_tables
from millrace.capture.source.readiness import NotReady
from millrace.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, left
from tests.support.factories import rows


@pytest.fixture
def fitting(captured: Captured) -> Captured:
    """Declare all tables but those of the audit; one with its own options."""
    captured.run(
        "create schema sales", "create table sales.orders (id int primary key, name text)",
        "create table audit_rows (id int primary key, name text)", "create table big (id int primary key, at int) ",
        "create view seen as select * from items", "create unlogged table fast (id int primary key)",
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)", "insert into items values (1, 'a')",
        "insert into sales.orders values (1, 'b')", "insert into parts values (1, 'c')",
        "insert into big values (1, 1), (2, 2)", "insert into audit_rows values (1, 'd')",
    )  # fmt: skip
    return replace(captured, capture=by_pattern(captured))


def by_pattern(captured: Captured, **other: Any) -> Capture:  # noqa: ANN401 - passed on
    declared: dict[str, Any] = {
        "tables": (CapturedTable("big", where="id > 1"),), "patterns": ("public.*", "sales.ord?rs"),
        "exclude": ("public.audit_*",), **other,
    }  # fmt: skip
    return Capture("shop", lambda: captured.source.dsn, **declared)


def registered(captured: Captured) -> list[str]:
    return [table.name for table in CaptureStore(captured.store).captured_tables("shop")]


def test_the_tables_that_fit_are_captured_once_and_declared_ones_as_said(fitting: Captured) -> None:
    fitting.drain()
    assert registered(fitting) == ["public.big", "public.items", "public.parts", "sales.orders"]
    fitting.run("insert into sales.orders values (2, 'e')", "update parts set name = 'f'", "delete from items")
    fitting.drain()
    assert left(fitting, "orders") == fitting.table("sales.orders")
    assert left(fitting, "parts") == fitting.table("parts")
    assert (left(fitting, "items"), left(fitting, "big")) == ([], [{"id": 2, "at": 2}])
    for table in with_registered(fitting.capture, CaptureStore(fitting.store).captured_tables("shop")).tables:
        assert fitting.verify(table).differing == 0


def test_a_table_that_comes_is_captured_and_one_that_goes_is_no_gap(fitting: Captured) -> None:
    fitting.drain()
    assert not fitting.has_work()
    fitting.run("create table more (id int primary key)")
    assert fitting.has_work()
    fitting.run("insert into more values (1)")
    fitting.drain()
    fitting.run("insert into more values (2)")
    fitting.drain()
    assert left(fitting, "more") == [{"id": 1}, {"id": 2}]
    assert not fitting.has_work()
    fitting.run("insert into items values (2, 'not captured yet')", "drop table more")
    fitting.drain()
    assert "public.more" not in registered(fitting)
    assert left(fitting, "items") == fitting.table()
    fitting.run("alter table items rename to things", "insert into things values (3, 'under the new name')")
    fitting.drain()
    assert left(fitting, "things") == fitting.table("things")
    assert fitting.problems() == []
    assert CaptureStore(fitting.store).capture_gaps("shop") == []


def test_one_that_fits_and_has_no_key_is_stopped_alone(fitting: Captured) -> None:
    fitting.run("create table loose (text text)")
    fitting.drain()
    (said,) = fitting.problems()
    assert said.startswith("table public.loose is stopped, the others are captured: its replica identity is default")
    assert left(fitting, "items") == fitting.table()
    assert not fitting.has_work()
    fitting.run("alter table loose add id int primary key")
    assert fitting.has_work()
    excepted = replace(fitting, capture=by_pattern(fitting, exclude=("public.audit_*", "public.l*")))
    excepted.drain()
    assert "public.loose" not in registered(excepted)


def test_a_quarantined_change_of_such_a_table_is_tried_again(fitting: Captured) -> None:
    fitting.drain()
    fitting.run("drop view seen")
    fitting.run(r"""alter table items alter name type json using '{"a": 1}'::json""")
    fitting.run(r"""insert into items values (5, '{"a": "\u0000"}')""")
    fitting.drain()
    waiting, *behind = CaptureStore(fitting.store).quarantined_changes("shop")
    assert (waiting.decider, waiting.decider_id) == ("table:public.items", "[5]")
    assert requeue(CaptureStore(fitting.store), fitting.capture, "a test").waiting == 1 + len(behind)


def test_where_nothing_fits_it_is_said_what_there_is(fitting: Captured) -> None:
    nothing = by_pattern(fitting, tables=(), patterns=("pubic.*",))
    with pytest.raises(
        NotReady, match=r"no table fits pubic\.\* without public\.audit_\*; in database .* public\.audit_rows"
    ):
        replace(fitting, capture=nothing).drain()
    assert rows(fitting.source.connection, "select count(*) from pg_publication") == [(0,)]


def test_tables_of_the_server_of_millrace_and_of_extensions_do_not_fit(fitting: Captured) -> None:
    fitting.run(
        "create schema event_store", "create table event_store.events (id int primary key)",
        "create table owned (id int primary key)", "alter extension plpgsql add table owned",
    )  # fmt: skip
    every = by_pattern(fitting, patterns=("*.*",))
    found = {table.name for table in with_tables(fitting.source.connection, every).tables}
    fitting.run("alter extension plpgsql drop table owned")
    assert found == {"public.big", "public.items", "public.parts", "sales.orders"}
