"""Existing rows of a table, while they change, in chunks of any size, through a kill."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from psycopg import Connection

from millrace.capture import backfill as backfilling
from millrace.capture import drain as pipeline
from millrace.capture.declaration import CapturedTable
from millrace.capture.source import chunks as source_chunks
from millrace.capture.source.chunks import Chunk
from millrace.capture.source.stream import SlotStream
from millrace.capture.store import CaptureStore, EmittedRows
from tests.support.capturing.captured import Captured, killed_at
from tests.support.factories import Killed
from tests.support.patience import patience


def test_rows_of_any_width_are_read_and_compared_in_parts(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(pipeline, "COMPARE_CHARACTERS", 20_000)
    captured.run("insert into items select n, repeat('x', 5000) from generate_series(1, 150) n")
    assert captured.drain().backfilled == 150
    captured.run("update items set name = repeat('y', 5000)")
    killed_at(captured, monkeypatch, SlotStream, "advance")
    assert captured.drain().replayed == 150
    assert captured.replayed() == captured.table()


@pytest.mark.parametrize("anew", [False, True], ids=["first", "anew"])
def test_a_killed_backfill_goes_on(captured: Captured, monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 10)
    captured.run("insert into items select n, 'old' from generate_series(1, 100) n")
    chunks = changed = 0
    if anew:
        captured.drain()
        captured.restart("a test")

    def read_chunk(
        connection: Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> Chunk:
        nonlocal chunks, changed
        chunks += 1
        chunk = source_chunks.read_chunk(connection, table, after, limit, lock_s)
        # behind the reader, ahead of it, and rows just read; a key change is two events
        for change, events in (
            (f"update items set name = 'changed {chunks}' where id % 7 = 0", 1),
            (f"update items set id = id + 1000 where id = {chunks * 10}", 2),
            (f"delete from items where id = {chunks * 10 - 5}", 1),
            (f"insert into items values ({-chunks}, 'new')", 1),
        ):
            changed += events * captured.source.connection.execute(change.encode()).rowcount
        if chunks == 5:
            raise Killed
        return chunk

    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    with pytest.raises(Killed):
        captured.drain()
    if not anew:
        assert 0 < captured.value("select backfilled_rows from event_store.captured_tables") < 100
    report = captured.drain()
    assert captured.replayed() == captured.table()
    assert CaptureStore(captured.store).capture_info("shop")[0].tables_to_backfill == 0
    assert captured.value("select count(*) from event_store.unchanged_rows") == 0
    if anew:
        # each change is an event, and no row is backfilled twice
        assert captured.value("select count(*) from event_store.events") == 100 + changed
        assert report.backfilled == 0


@pytest.mark.parametrize(("status", "which"), [("unpublished", 2), ("behind", 7)])
def test_nothing_overtakes_a_chunk(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, status: str, which: int
) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 5)
    captured.run("insert into items select n, 'a' from generate_series(1, 32) n")
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
    captured.run("insert into items select n, 'a' from generate_series(1, 12) n")
    appending, read = threading.Event(), threading.Event()
    emit_backfill = CaptureStore.emit_backfill

    def emitting(store: CaptureStore, *arguments: Any, **named: Any) -> EmittedRows:  # noqa: ANN401 - as they are
        appending.set()
        # the first two chunks become events once the chunk after them was read
        assert named["done"] or read.wait(patience())
        read.clear()
        return emit_backfill(store, *arguments, **named)

    def read_chunk(
        connection: Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> Chunk:
        assert after is None or appending.wait(patience())
        chunk = source_chunks.read_chunk(connection, table, after, limit, lock_s)
        if after is not None:
            read.set()
        return chunk

    monkeypatch.setattr(CaptureStore, "emit_backfill", emitting)
    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    assert captured.drain().backfilled == 12
