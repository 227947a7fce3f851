"""A locked table delays no other table, and is captured once the lock is gone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from millrace.capture import backfill, setup
from millrace.capture.declaration import CapturedTable
from millrace.capture.source import chunks
from millrace.capture.source import connection as source_connection
from millrace.capture.source.stream import SlotStream
from tests.support.capturing.captured import Captured, declared, killed_at, left
from tests.support.capturing.two_tables import FILL, GOOD, both
from tests.support.factories import rows, start
from tests.support.patience import patience, wait_until


@contextmanager
def locking(captured: Captured, mode: str = "access exclusive", table: str = "items") -> Iterator[None]:
    with psycopg.connect(captured.source.dsn) as other:
        other.execute(f"lock table {table} in {mode} mode".encode())
        yield


def test_a_table_that_is_locked_when_to_be_published_keeps_none_waiting(captured: Captured) -> None:
    captured = both(captured)
    captured.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table part partition of parts for values from (0) to (10)",
        "insert into parts values (1, 'x')",
    )
    for table, locked, mode in (
        ("items", "items", "access exclusive"), ("items", "items", "share update exclusive"),
        ("parts", "part", "access exclusive"),
    ):  # fmt: skip
        declared(captured, GOOD).drain()
        captured.run(f"update good set name = '{table} {mode}'")
        captured = declared(captured, GOOD, CapturedTable(table))
        with locking(captured, mode, locked):
            captured.drain()
            assert left(captured, "good") == captured.table("good")
            (said,) = captured.problems()
            assert "another session has locked it, or vacuums it" in said
        assert captured.has_work()
        captured.drain()
        assert left(captured, table) == captured.table(table)
        assert captured.problems() == []


def test_a_table_that_is_locked_is_read_after_a_while(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    read_chunk = chunks.read_chunk

    def reading(source: Connection, table: CapturedTable, *other: Any) -> chunks.Chunk:  # noqa: ANN401
        tried.append(table.table)
        return read_chunk(source, table, *other)

    monkeypatch.setattr(backfill, "read_chunk", reading)
    monkeypatch.setattr(backfill, "ASK_S", 1000.0)
    captured = both(captured)
    with captured.process() as process, locking(captured):
        process.drain(budget_s=patience(), idle_s=0)
        captured.run("update good set name = 'changed'")
        process.drain(budget_s=patience(), idle_s=0)
        assert left(captured, "good") == captured.table("good")
        assert (left(captured, "items"), captured.info().tables_to_backfill) == ([], 1)
        # not tried again at each step
        assert tried.count("items") == 1
    monkeypatch.setattr(backfill, "ASK_S", 0.0)
    with captured.process() as process:
        with locking(captured):
            process.drain(budget_s=patience(), idle_s=0)
            assert left(captured, "items") == []
        process.drain(budget_s=patience(), idle_s=0)
    assert left(captured, "items") == captured.table()


def test_where_every_table_is_locked_the_run_waits_for_them(captured: Captured) -> None:
    captured.run(FILL)
    with ExitStack() as held:
        held.enter_context(locking(captured, "share update exclusive"))
        done = start(captured.drain)
        wait_until(lambda: rows(captured.source.connection, "select from pg_locks where not granted") != [], "it waits")
        held.close()
    done.result(patience())
    assert captured.replayed() == captured.table()


def test_a_locked_table_keeps_back_only_unpublished_ones(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    captured.run("create table more (id int primary key, name text)", "insert into more values (1, 'x')")
    captured = declared(captured, CapturedTable("items"), GOOD, CapturedTable("more"))
    with captured.source.connection.transaction():
        captured.run("update items set name = 'x'", "update good set name = 'x'")
    killed_at(declared(captured, CapturedTable("items"), GOOD), monkeypatch, SlotStream, "advance")
    with locking(captured):
        captured.run("insert into more values (2, 'y')", "update good set name = 'changed'")
        with captured.process() as process:
            assert list(process.stopped) == ["public.more"]
            process.drain(budget_s=patience(), idle_s=0)
        assert left(captured, "good") == captured.table("good")
        assert left(captured, "more") == []
    captured.run("delete from more where id = 1")
    captured.drain()
    assert left(captured, "more") == captured.table("more")
    assert captured.info().gaps == 0


def test_a_vacuumed_table_of_another_replica_identity_is_captured(captured: Captured) -> None:
    captured = both(captured)
    captured.drain()
    captured.run("alter table items replica identity full", "update items set name = 'x' where id = 2")
    with locking(captured, "share update exclusive"), captured.process() as process:
        assert process.stopped == {}
        process.drain(budget_s=patience(), idle_s=0)
    assert left(captured, "items") == captured.table()


def test_where_all_are_locked_the_run_captures_none(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured.run(FILL)
    captured.drain()
    captured = declared(captured, CapturedTable("items", columns=("id", "name")))
    with locking(captured):
        captured.run("select pg_logical_emit_message(true, 'other', 'commit')")
        with captured.process() as process:
            assert list(process.stopped) == ["public.items"]
            process.drain(budget_s=patience(), idle_s=0)
    captured.run("delete from items where id = 1")
    captured.drain()
    assert left(captured, "items") == [{"id": 2, "name": "stays"}, {"id": 3, "name": "changes"}]
    assert captured.info().gaps == 0


def test_a_changed_publication_of_a_locked_table_is_a_gap(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source_connection._SETTINGS, "lock_timeout", "200ms")
    captured = both(captured)
    captured.drain()
    (name,) = rows(captured.source.connection, "select pubname from pg_publication")[0]
    captured.run(f"alter publication {name} drop table good")
    with locking(captured), pytest.raises(psycopg.errors.LockNotAvailable):
        captured.drain()
    with pytest.raises(setup.GapOpen, match=r"public\.good"):
        captured.drain()
