"""The rows that a table had already, while they change, in chunks of any width, through a kill."""

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from millrace.resources.capture import backfill as backfilling
from millrace.resources.capture import drain as pipeline
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.source import chunks as source_chunks
from millrace.resources.capture.source.chunks import Chunk
from millrace.resources.capture.store import CaptureStore, EmittedRows
from tests.support.capturing.captured import Captured, Killed, captured, killed_at, new_source, replay
from tests.support.factories import value

__all__ = ["captured", "new_source"]


def test_rows_of_any_width_are_read_and_compared_in_parts(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(pipeline, "COMPARE_CHARACTERS", 20_000)
    captured.source.run("insert into items select n, repeat('x', 5000) from generate_series(1, 150) n")
    assert captured.drain().backfilled == 150
    captured.source.run("update items set name = repeat('y', 5000)")
    killed_at(captured, monkeypatch, pipeline, "advance")
    assert captured.drain().replayed == 150
    assert captured.replayed() == captured.table()


def test_rows_are_read_in_chunks_while_they_change_and_a_killed_backfill_goes_on(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 10)
    captured.source.run("insert into items select n, 'old' from generate_series(1, 100) n")
    chunks = 0

    def read_chunk(
        connection: psycopg.Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> Chunk:
        nonlocal chunks
        chunks += 1
        chunk = source_chunks.read_chunk(connection, table, after, limit, lock_s)
        # behind the reader, before it, and what it has just read
        captured.source.connection.execute("update items set name = %s where id %% 7 = 0", (f"changed {chunks}",))
        captured.source.connection.execute("update items set id = id + 1000 where id = %s", (chunks * 10,))
        captured.source.connection.execute("delete from items where id = %s", (chunks * 10 - 5,))
        captured.source.connection.execute("insert into items values (%s, 'new')", (-chunks,))
        if chunks == 5:
            raise Killed
        return chunk

    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    with pytest.raises(Killed):
        captured.drain()
    before = value(captured.store, "select backfilled_rows from event_store.captured_tables")
    assert 0 < before < 100
    captured.drain()
    assert captured.replayed() == captured.table()
    info = CaptureStore(captured.store).capture_info("shop")[0]
    assert info.tables_to_backfill == 0


@pytest.mark.parametrize("status", ["behind", "unpublished"])
@pytest.mark.parametrize("which", [1, 2, 7])
def test_a_chunk_that_is_not_taken_yet_is_overtaken_by_none(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, status: str, which: int
) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 5)
    captured.source.run("insert into items select n, 'a' from generate_series(1, 32) n")
    emit_backfill = CaptureStore.emit_backfill
    calls = 0
    refused = None

    def emitting(store: CaptureStore, *arguments: Any, **named: Any) -> EmittedRows:  # noqa: ANN401 - as they are
        nonlocal calls, refused
        calls += 1
        rows = arguments[6]
        if calls == which or (status == "unpublished" and rows is refused):
            assert calls < 20
            refused = rows
            return EmittedRows(status, 0, 0, 0)
        return emit_backfill(store, *arguments, **named)

    monkeypatch.setattr(CaptureStore, "emit_backfill", emitting)
    report = captured.drain()
    assert (report.backfilled, calls) == (32, 8)
    assert [change["record"]["id"] for change in captured.changes()] == list(range(1, 33))


def test_the_next_rows_are_read_while_these_become_events(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 5)
    captured.source.run("insert into items select n, 'a' from generate_series(1, 12) n")
    appending, read = threading.Event(), threading.Event()
    emit_backfill = CaptureStore.emit_backfill

    def emitting(store: CaptureStore, *arguments: Any, **named: Any) -> EmittedRows:  # noqa: ANN401 - as they are
        appending.set()
        # the first two chunks become events once the chunk after them was read
        assert named["done"] or read.wait(30)
        read.clear()
        return emit_backfill(store, *arguments, **named)

    def read_chunk(
        connection: psycopg.Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> Chunk:
        assert after is None or appending.wait(30)
        chunk = source_chunks.read_chunk(connection, table, after, limit, lock_s)
        if after is not None:
            read.set()
        return chunk

    monkeypatch.setattr(CaptureStore, "emit_backfill", emitting)
    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    assert captured.drain().backfilled == 12


def test_a_table_that_is_added_later_is_read_too(captured: Captured) -> None:
    captured.drain()
    captured.source.run("create table notes (id int primary key)", "insert into notes values (1)")
    both = Captured(
        captured.source,
        Capture("shop", lambda: captured.source.dsn, (CapturedTable("items"), CapturedTable("notes"))),
        captured.dsn,
        captured.store,
    )
    both.drain()
    both.source.run("insert into notes values (2)")
    both.drain()
    assert sorted(replay(both.changes())) == [("notes", "[1]"), ("notes", "[2]")]
