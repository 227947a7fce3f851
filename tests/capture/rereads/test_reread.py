"""Tables that are read anew, from a real source: the log gets what differs, and nothing twice."""

from collections.abc import Sequence

import psycopg
import pytest

from millrace.resources.capture import backfill as backfilling
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.drain import CaptureReport
from millrace.resources.capture.setup import restart
from millrace.resources.capture.source import chunks as source_chunks
from millrace.resources.capture.source.chunks import Chunk
from tests.capture.decoding.test_values import TYPES
from tests.support.capturing.captured import Captured, Killed, captured, new_source, replay
from tests.support.factories import value

__all__ = ["captured", "new_source"]


def anew(captured: Captured) -> CaptureReport:
    """Begin the capture anew, and read its tables."""
    restart(captured.dsn, captured.capture, "a test")
    return captured.drain()


def events(captured: Captured) -> int:
    return int(value(captured.store, "select count(*) from event_store.events"))


def test_a_capture_that_begins_anew_does_not_double_the_log(captured: Captured) -> None:
    columns = ", ".join(f"{expression} as c{at}" for at, expression in enumerate(TYPES))
    captured.source.connection.execute(f"create table many as select 1 as id, {columns}".encode())
    captured.source.run(
        "alter table many add primary key (id); alter table many add long text; alter table many alter long set storage external",
        "create table parts (id int primary key, name text) partition by range (id);"
        "create table parts_1 partition of parts for values from (0) to (1000)",
        "insert into items select n, 'backfilled', n / 3.0 from generate_series(1, 100) n",
    )
    both = Captured(
        captured.source,
        Capture(
            "shop", lambda: captured.source.dsn, (CapturedTable("items"), CapturedTable("many"), CapturedTable("parts"))
        ),
        captured.dsn,
        captured.store,
    )
    both.drain()
    # the same types by the log, and values that an update does not say
    both.source.run(
        "update many set id = 2, long = repeat('x', 5000)",
        "update many set c3 = 8",
        "insert into items values (101, null, 'NaN', true)",
        "update items set ok = false where id % 2 = 0",
        "insert into parts select n, 'x' from generate_series(1, 50) n",
    )
    both.drain()
    before = events(both)
    report = anew(both)
    assert (report.backfilled, report.unchanged) == (0, 152)
    assert events(both) == before
    # a partition that comes without rows has nothing read
    both.source.run("create table parts_2 partition of parts for values from (1000) to (2000)")
    report = both.drain()
    assert (report.backfilled, report.unchanged, events(both)) == (0, 0, before)
    # unseen
    both.source.run("insert into parts values (1500, 'new')")
    slot = value(both.store, "select slot from event_store.captures")
    both.source.connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    both.source.run("delete from items where id = 7", "update items set name = 'unseen' where id = 8")
    report = anew(both)
    assert (report.backfilled, report.unchanged) == (2, 150)
    assert events(both) == before + 3
    assert replay(both.changes())[("items", "[8]")] == {
        "id": 8,
        "name": "unseen",
        "amount": 2.6666666666666667,
        "ok": False,
    }
    assert ("items", "[7]") not in replay(both.changes())


def test_a_table_that_changes_while_it_is_read_anew_and_a_killed_reading_that_goes_on(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfilling, "CHUNK", 10)
    captured.source.run("insert into items select n, 'old' from generate_series(1, 100) n")
    captured.drain()
    before = events(captured)
    changed = 0
    chunks = 0

    def read_chunk(
        connection: psycopg.Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> Chunk:
        nonlocal chunks, changed
        chunks += 1
        chunk = source_chunks.read_chunk(connection, table, after, limit, lock_s)
        for change in (
            f"update items set name = 'changed {chunks}' where id % 7 = 0",
            f"delete from items where id = {chunks * 10 - 5}",
            f"insert into items values ({-chunks}, 'new')",
        ):
            changed += captured.source.connection.execute(change.encode()).rowcount
        if chunks == 5:
            raise Killed
        return chunk

    monkeypatch.setattr(backfilling, "read_chunk", read_chunk)
    restart(captured.dsn, captured.capture, "a test")
    with pytest.raises(Killed):
        captured.drain()
    report = captured.drain()
    assert captured.replayed() == captured.table()
    # each change is an event, and no row is a second time
    assert events(captured) == before + changed
    assert report.backfilled == 0
    assert value(captured.store, "select count(*) from event_store.unchanged_rows") == 0
