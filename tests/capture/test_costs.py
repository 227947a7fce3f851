"""The cost of a capture's run on its source: nothing if nothing happened, and vacuum is never held back."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.abc import Query
from psycopg.sql import Composable

from millrace.capture import backfill as backfilling
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.source import chunks as source_chunks
from millrace.capture.source.connection import connect_source
from millrace.capture.source.readiness import find_problems
from millrace.capture.store import CaptureStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import ITEMS, Captured, declared, did, killed_at, replay
from tests.support.capturing.following import arrived, followed
from tests.support.capturing.sources import Source
from tests.support.factories import rows, value
from tests.support.patience import patience


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """Start a server without other writers."""
    # not pytest's tmp_path: its long path does not fit a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="millrace-", dir=postgres.directory.parent) as directory,
        EmbeddedPostgres(Path(directory), postgres.programs) as made,
    ):
        yield made


@pytest.fixture
def alone(server: EmbeddedPostgres, dsn: str) -> Iterator[Captured]:
    """Make a source with the table items on that server."""
    with psycopg.connect(dsn, autocommit=True) as store:
        server.create_database("apart")
        source = Source(server.dsn("apart"), "apart")
        source.run(ITEMS)
        yield Captured(source, Capture("shop", lambda: source.dsn, (CapturedTable("items"),)), dsn, store)
        source.connection.close()


def several(captured: Captured, number: int) -> Captured:
    for n in range(number):
        captured.run(f"create table if not exists t{n} (id int primary key, n int)")
    tables = tuple(CapturedTable(f"t{n}", where="id > 0") for n in range(number))
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables))


def spent(captured: Captured) -> tuple[int, int]:
    """Capture, and return the transaction ids and bytes of log that it cost the source."""
    look = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'"
    ((xid, lsn),) = rows(captured.source.connection, look)
    captured.drain()
    ((later_xid, later_lsn),) = rows(captured.source.connection, look)
    return later_xid - xid, int(later_lsn - lsn)


def mark(captured: Captured) -> str:
    said = value(captured.source.connection, "select obj_description(oid, 'pg_publication') from pg_publication")
    return str(said).partition(" Probed: ")[2]


@contextmanager
def vacuumed(captured: Captured) -> Iterator[None]:
    with psycopg.connect(captured.source.dsn) as vacuum:
        vacuum.execute("lock table items in share update exclusive mode")
        yield


def test_a_run_where_nothing_happened_costs_the_source_nothing(alone: Captured) -> None:
    many = several(alone, 20)
    many.drain()
    # the server itself writes now and then: a single run without writes shows that a capture writes nothing
    runs = [spent(many) for _ in range(5)]
    assert (0, 0) in runs, runs
    alone.drain()
    alone.run("alter table items replica identity full", "insert into items values (1, 'a')")
    with vacuumed(alone):
        # the row, and the changed replica identity
        assert alone.drain().emitted == 2
        assert mark(alone) == ""
        # changing the publication would take a transaction id before its lock
        assert min(xids for xids, _ in (spent(alone) for _ in range(3))) == 0
    alone.drain()
    assert len(mark(alone).split()) == 1


def test_a_server_without_logical_decoding_is_told_what_to_set(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        admin.execute("alter system set wal_level = 'replica'")
        admin.execute("create table t (id int primary key, n int)")
    server.stop()
    server.start()
    filtered = Capture("shop", str, (CapturedTable("t", where="id > 5"),))
    with connect_source(server.dsn("postgres")) as connection:
        (said,) = find_problems(connection, filtered, has_slot=False)
    assert said == (
        "wal_level is replica; it has to be logical: alter system set wal_level = 'logical', and restart the server"
    )


def asked(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Open a process of the capture and close it; return the statements sent to source and store."""
    said: list[str] = []
    execute = psycopg.Cursor.execute

    def noted(cursor: psycopg.Cursor, query: Query, *arguments: Any, **options: Any) -> psycopg.Cursor:  # noqa: ANN401
        said.append(query.as_string(cursor) if isinstance(query, Composable) else str(query))
        return execute(cursor, query, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", noted)
        with captured.process():
            pass
    return said


def test_opening_takes_as_few_statements_for_many_tables(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    several(captured, 1).drain()
    # in the first run some tables are new, in the second none
    few, few_again = (asked(several(captured, 4), monkeypatch) for _ in range(2))
    many, many_again = (asked(several(captured, 40), monkeypatch) for _ in range(2))
    assert len(many) == len(few), (few, many)
    assert len(many_again) == len(few_again), (few_again, many_again)
    assert len(many_again) <= 49, many_again


def test_a_table_is_probed_anew_when_it_or_its_declaration_is_another_one(captured: Captured) -> None:
    captured.drain()
    first = mark(captured)
    assert len(first.split()) == 1
    captured.run("alter table items replica identity full")
    captured.drain()
    second = mark(captured)
    wide = replace(captured, capture=replace(captured.capture, tables=(CapturedTable("items", where="id > 0"),)))
    wide.drain()
    assert len({first, second, mark(captured)}) == 3
    assert len(mark(captured).split()) == 1


def reads(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, int]]]:
    """Capture, and return the tables read between two reads of the slot, each with its limit of rows."""
    seen: list[list[tuple[str, int]]] = []

    def read_chunk(
        source: Connection, table: CapturedTable, after: Sequence[str] | None, limit: int, lock_s: float
    ) -> source_chunks.Chunk:
        seen[-1].append((table.table, limit))
        return source_chunks.read_chunk(source, table, after, limit, lock_s)

    with captured.process() as process, monkeypatch.context() as patch:
        look = process.store

        def store(on_stored: Callable[[], object]) -> int:
            seen.append([])
            return look(on_stored)

        patch.setattr(backfilling, "read_chunk", read_chunk)
        # even on a slow machine
        patch.setattr(backfilling, "STEP_S", 1000.0)
        patch.setattr(process, "store", store)
        process.drain(budget_s=patience(), idle_s=0)
    return seen


def test_small_tables_are_read_together_and_wait_once(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    many = several(captured, 12)
    captured.run("insert into t10 values (1), (2), (3)", "insert into t11 select n from generate_series(1, 20) n")
    monkeypatch.setattr(backfilling, "FIRST_CHUNK", 4)
    seen = reads(many, monkeypatch)
    # one by one these are 26 reads of the slot
    assert len(seen) <= 8, seen
    assert [group for group in seen if group] == [
        [("t0", 4), ("t1", 4), ("t10", 4), ("t11", 16)],
        [("t11", 64)],  # while the rows before them became events
        [(f"t{n}", 256) for n in range(2, 10)],
    ]
    assert len(many.changes()) == 23
    assert CaptureStore(captured.store).capture_info("shop")[0].tables_to_backfill == 0


def test_what_is_read_together_is_about_one_chunk(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    several(captured, 16)
    for bound, first in (("CHUNK", 0), ("CHUNK_BYTES", 8)):
        many = declared(captured, *[CapturedTable(f"t{n}", where="id > 0") for n in range(first, first + 8)])
        for n in range(first, first + 8):
            captured.run(f"insert into t{n} values (1), (2)")
        with monkeypatch.context() as patch:
            patch.setattr(backfilling, bound, 5)
            assert [len(group) for group in reads(many, monkeypatch) if group] == [3, 3, 2], bound
        assert len(many.changes()) == 16


def test_a_table_that_waits_keeps_no_other_one_waiting(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run("insert into items values (1)", "create table early (id int primary key)")
    killed_at(captured, monkeypatch, backfilling, "read_chunk")
    tables = (CapturedTable("early"), CapturedTable("items"))
    both = replace(captured, capture=replace(captured.capture, tables=tables))
    with psycopg.connect(captured.source.dsn) as writer:
        writer.execute("insert into early values (1)")
        assert both.drain().backfilled == 1
        assert [c["source_table_name"] for c in both.changes()] == ["items"]
    captured.run("insert into early values (2)")
    assert both.drain().backfilled == 1
    assert sorted(replay(both.changes())) == [("early", "[1]"), ("early", "[2]"), ("items", "[1]")]


def test_a_long_transaction_is_decoded_once_beside_those_that_commit(captured: Captured) -> None:
    name = captured.source.slot
    # the transaction does not fit in the decoder's memory, and the source counts its spills
    captured.run(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    spilled = "select spill_txns, spill_count, spill_bytes from pg_stat_replication_slots s"
    query = f"{spilled} join pg_replication_slots r using (slot_name) where r.database = current_database()"
    with followed(captured), psycopg.connect(captured.source.dsn) as writer:
        writer.execute("insert into items select n, repeat('x', 100) from generate_series(1000, 20000) n")
        captured.run("insert into items values (1)")
        arrived(captured, "[1]")
        ((txns, times, size),) = before = rows(captured.source.connection, query)
        assert (txns, times > 1, size > 1_000_000) == (1, True, True)
        for number in range(2, 8):
            captured.source.connection.execute("insert into items values (%s)", (number,))
            arrived(captured, f"[{number}]")
        assert rows(captured.source.connection, query) == before
        writer.commit()
        arrived(captured, "[20000]")
    assert len(did(captured)) == 7 + 19_001
