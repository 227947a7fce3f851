"""A table that is compared with its streams, to verify or to repair, with its capture beside it or not."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from millrace.resources.capture import backfill as backfilling
from millrace.resources.capture import drain
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.rereads import reading
from millrace.resources.capture.rereads.reading import BadCondition, Comparison, compare
from millrace.resources.capture.rereads.store import ReadingStore
from millrace.resources.capture.source import chunks as source_chunks
from millrace.resources.capture.source.chunks import Chunk
from millrace.resources.capture.source.connection import flush_lsn
from millrace.resources.capture.source.slot import peek
from millrace.resources.errors import ReadingOver
from tests.support.capturing.captured import Captured, Killed, captured, new_source
from tests.support.factories import rows, value

__all__ = ["captured", "new_source"]

ITEMS = CapturedTable("items")


def events(captured: Captured) -> int:
    return int(value(captured.store, "select count(*) from event_store.events"))


def compared(captured: Captured, repairs: str | None = None, where: str | None = None) -> Comparison:
    return compare(captured.dsn, captured.capture, ITEMS, repairs=repairs, where=where)


@pytest.fixture
def wrong(captured: Captured) -> Captured:
    """Three rows of a hundred are other than the log says: the store was changed behind it."""
    captured.source.run("insert into items select n, 'old', n from generate_series(1, 100) n")
    captured.drain()
    captured.store.execute("set session_replication_role = replica")
    captured.store.execute(
        "update event_store.events set data = jsonb_set(data, '{record,name}', '\"wrong\"') where decider_id = '[7]'"
    )
    captured.store.execute("update event_store.events set decider_id = '[200]' where decider_id = '[8]'")
    captured.store.execute("reset session_replication_role")
    return captured


def test_verifying_counts_and_makes_no_event_and_a_repair_makes_what_differs(wrong: Captured) -> None:
    before = events(wrong)
    for _ in range(2):
        found = compared(wrong)
        assert (found.rows, found.unchanged, found.changed, found.missing, found.gone) == (100, 98, 1, 1, 1)
        assert sorted(found.examples) == ["[200]", "[7]", "[8]"]
        assert events(wrong) == before
    assert wrong.replayed() != wrong.table()
    found = compared(wrong, "the store was changed")
    assert (found.changed, found.missing, found.gone) == (1, 1, 1)
    assert events(wrong) == before + 3
    assert wrong.replayed() == wrong.table()
    assert rows(
        wrong.store, "select operation, reason from event_store.audit_log where operation = 'begin_reading'"
    ) == [("begin_reading", "the store was changed")]
    assert compared(wrong).differing == 0
    assert value(wrong.store, "select count(*) from event_store.readings") == 0
    assert value(wrong.store, "select count(*) from event_store.unchanged_rows") == 0


def test_some_rows_are_repaired_and_none_is_taken_for_gone(wrong: Captured) -> None:
    before = events(wrong)
    found = compared(wrong, "some", where="id between 1 and 7")
    assert (found.rows, found.changed, found.missing, found.gone) == (7, 1, 0, 0)
    assert events(wrong) == before + 1
    with pytest.raises(BadCondition, match="nothing like it"):
        compared(wrong, "some", where='"nothing like it" = 1')
    assert events(wrong) == before + 1


def test_only_rows_that_are_captured_are_read(wrong: Captured) -> None:
    some = replace(wrong, capture=Capture("shop", lambda: wrong.source.dsn, (CapturedTable("items", where="id < 50"),)))
    some.drain()
    (declared,) = some.capture.tables
    found = compare(some.dsn, some.capture, declared, where="id > 40 or id = 1")
    assert (found.rows, found.unchanged) == (10, 10)


def test_an_idle_source_is_caught_up_with_at_once(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counting(*arguments: Any) -> Any:  # noqa: ANN401 - what peek takes and gives
        nonlocal looks
        looks += 1
        return peek(*arguments)

    with captured.process() as process:
        process.drain(budget_s=60, idle_s=0)
        monkeypatch.setattr(drain, "peek", counting)
        for _ in range(3):
            captured.source.run("create table if not exists others (id int)", "insert into others values (1)")
            flushed, _ = flush_lsn(captured.source.connection)
            process.catch_up(flushed)
    assert looks <= 6


def test_what_was_not_captured_yet_is_captured_first(captured: Captured) -> None:
    captured.source.run("insert into items values (1)")
    assert compared(captured).unchanged == 1
    captured.source.run("insert into items values (2)", "delete from items where id = 1")
    found = compared(captured)
    assert (found.rows, found.unchanged, found.differing) == (1, 1, 0)
    assert [(c["action"], c["record_pk"]) for c in captured.changes()] == [
        ("backfilled", "[1]"), ("inserted", "[2]"), ("deleted", "[1]")
    ]  # fmt: skip


def test_beside_a_process_that_captures_it_waits_for_that(wrong: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 30)
    stop = threading.Event()
    changed = iter(range(1000, 2000))

    def read_chunk(
        connection: psycopg.Connection, table: CapturedTable, after: Sequence[str] | None, limit: int
    ) -> Chunk:
        wrong.source.run(f"insert into items values ({next(changed)})")
        chunk = source_chunks.read_chunk(connection, table, after, min(limit, 30))
        wrong.source.run("update items set ok = true where id % 10 = 5", "delete from items where id = 50")
        return chunk

    monkeypatch.setattr(reading, "read_chunk", read_chunk)
    with wrong.process() as process, ThreadPoolExecutor(1) as thread:
        running = thread.submit(process.drain, budget_s=60, idle_s=60, stop=stop)
        try:
            found = compared(wrong, "beside")
        finally:
            stop.set()
        running.result()
    assert (found.changed, found.missing, found.gone) == (1, 1, 1)
    assert found.left_out > 0
    assert wrong.replayed() == wrong.table()


@pytest.mark.parametrize("step", ["begin_reading", "compare_rows", "end_reading"])
def test_killed_anywhere_it_is_done_again_and_nothing_is_there_twice(
    wrong: Captured, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = events(wrong)
    original: Callable[..., object] = getattr(ReadingStore, step)

    for after in (True, False):

        def doomed(*args: object, after: bool = after, **named: object) -> object:
            if after:
                original(*args, **named)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(ReadingStore, step, doomed)
            with pytest.raises(Killed):
                compared(wrong, "killed")
    compared(wrong, "again")
    assert events(wrong) == before + 3
    assert wrong.replayed() == wrong.table()
    assert value(wrong.store, "select count(*) from event_store.unchanged_rows") == 0


def test_another_reading_of_the_table_ends_the_one_before(wrong: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    began = ReadingStore.begin_reading

    def overtaken(store: ReadingStore, *arguments: object, **named: object) -> int:
        number = began(store, *arguments, **named)  # type: ignore[arg-type]
        began(store, *arguments, **named)  # type: ignore[arg-type]
        return number

    monkeypatch.setattr(ReadingStore, "begin_reading", overtaken)
    with pytest.raises(ReadingOver):
        compared(wrong)
