"""A captured table that has another name for a while: its changes stay its own, and no restart is needed."""

import logging
from typing import LiteralString

import pytest

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.changes import TableRenamed
from millrace.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, declared, did, left
from tests.support.capturing.following import arrived, followed
from tests.support.patience import patience, wait_until


def test_what_a_table_did_under_another_name_is_captured_later(captured: Captured) -> None:
    captured.run("create schema elsewhere", "insert into items values (1, 'a')")
    captured.drain()
    captured.run(
        "insert into items values (2, 'before')", "alter table items rename to things",
        "update things set name = 'under another name' where id = 1", "alter table things set schema elsewhere",
        "delete from elsewhere.things where id = 2", "alter table elsewhere.things set schema public",
        "alter table things rename to items", "insert into items values (3, 'after')",
    )  # fmt: skip
    read_at = captured.value("select backfilled_at from event_store.captured_tables")
    captured.drain()
    assert did(captured) == [("inserted", "[2]"), ("updated", "[1]"), ("deleted", "[2]"), ("inserted", "[3]")]
    assert captured.replayed() == captured.table()
    assert captured.value("select backfilled_at from event_store.captured_tables") == read_at
    assert CaptureStore(captured.store).capture_gaps("shop") == []


def test_a_filtered_table_that_had_another_name_keeps_its_changes(captured: Captured) -> None:
    captured.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table p1 partition of parts for values from (0) to (10)",
        "create table p2 partition of parts for values from (10) to (20)",
        "insert into parts values (1, 'a'), (9, 'hidden')",
    )
    parts = declared(captured, CapturedTable("parts", where="id <> 9"))
    parts.drain()
    captured.run(
        "alter table parts rename to pieces", "alter table p1 rename to q1", "update pieces set id = 11 where id = 1",
        "update pieces set name = 'still hidden' where id = 9", "insert into pieces values (2, 'b')",
        "alter table q1 rename to p1", "alter table pieces rename to parts",
    )  # fmt: skip
    parts.drain()
    assert left(parts, "parts") == [{"id": 11, "name": "a"}, {"id": 2, "name": "b"}]
    # by their own events, not only by a new backfill
    assert sorted(did(parts)) == [("deleted", "[1]"), ("inserted", "[11]"), ("inserted", "[2]")]


def test_two_tables_that_exchange_their_names_and_back_keep_their_rows(captured: Captured) -> None:
    captured.run("create table notes (id int primary key, name text)")
    both = declared(captured, CapturedTable("items"), CapturedTable("notes"))
    both.drain()
    exchange: tuple[LiteralString, ...] = (
        "alter table items rename to other", "alter table notes rename to items", "alter table other rename to notes",
    )  # fmt: skip
    captured.run(*exchange, "insert into items values (1, 'of notes')", *exchange)
    captured.run("insert into items values (2, 'of items')")
    both.drain()
    assert left(both, "items") == both.table()
    assert left(both, "notes") == both.table("notes")


def test_a_renamed_table_goes_on_when_it_is_declared_by_its_new_name(captured: Captured) -> None:
    captured.run("insert into items values (1, 'a')")
    with captured.process() as process:
        process.drain(budget_s=patience(), idle_s=0)
        captured.run(
            "insert into items values (2, 'b')",
            "alter table items rename to things",
            "update things set name = 'c' where id = 1",
        )
        with pytest.raises(TableRenamed):
            process.drain(budget_s=patience(), idle_s=0)
    renamed = declared(captured, CapturedTable("things"))
    renamed.drain()
    captured.run("delete from things where id = 2")
    renamed.drain()
    found = [row for row in renamed.changes() if row["source_table_name"] == "things"]
    assert [(c["action"], c["record_pk"], c["record"].get("name")) for c in found] == [
        ("updated", "[1]", "c"), ("backfilled", "[2]", "b"), ("deleted", "[2]", None),
    ]  # fmt: skip


def test_a_follower_looks_anew_and_goes_on(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    with followed(captured):
        captured.run("insert into items values (1, 'a')")
        arrived(captured, "[1]")
        with captured.source.connection.transaction():
            captured.run(
                "alter table items rename to things",
                "insert into things values (2, 'under another name')",
                "alter table things rename to items",
            )
        captured.run("insert into items values (3, 'after')")
        wait_until(lambda: len(did(captured)) == 3, "it went on")
    assert did(captured)[1:] == [("inserted", "[2]"), ("inserted", "[3]")]
    assert [record.levelno for record in caplog.records if "public.items" in record.getMessage()] == [logging.WARNING]
