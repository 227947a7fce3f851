"""What a run of a capture costs its source: nothing where nothing happened, and no vacuum its work.

Belongs here: transaction ids, log and locks of the source. Not here: what is captured (test_drain).
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import ITEMS, Captured
from tests.support.capturing.sources import Source
from tests.support.factories import rows, value


@pytest.fixture
def captured(postgres: EmbeddedPostgres, dsn: str) -> Iterator[Captured]:
    """Make a source with the table items on a server of its own, which has no other writers than us."""
    # not pytest's tmp_path: its long path does not fit a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as directory,
        EmbeddedPostgres(Path(directory), postgres.programs) as server,
        psycopg.connect(server.dsn("postgres"), autocommit=True) as admin,
        psycopg.connect(dsn, autocommit=True) as store,
    ):
        admin.execute("create database apart")
        source = Source(server.dsn("apart"), "apart")
        source.run(ITEMS)
        yield Captured(source, Capture("shop", lambda: source.dsn, (CapturedTable("items"),)), dsn, store)
        source.connection.close()


def several(captured: Captured, number: int) -> Captured:
    """Return the same source with so many tables instead of items."""
    for n in range(number):
        captured.source.connection.execute(f"create table t{n} (id int primary key, n int)".encode())
    tables = tuple(CapturedTable(f"t{n}", where="id > 0") for n in range(number))
    return replace(captured, capture=Capture("shop", lambda: captured.source.dsn, tables))


def spent(captured: Captured) -> tuple[int, int]:
    """Capture, and return how many transaction ids and bytes of log that cost the source."""
    look = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'"
    ((xid, lsn),) = rows(captured.source.connection, look)
    captured.drain()
    ((later_xid, later_lsn),) = rows(captured.source.connection, look)
    return later_xid - xid, int(later_lsn - lsn)


def mark(captured: Captured) -> str:
    """Return which tables are marked as probed."""
    said = value(captured.source.connection, "select obj_description(oid, 'pg_publication') from pg_publication")
    return str(said).partition(" Probed: ")[2]


@contextmanager
def vacuumed(captured: Captured) -> Iterator[None]:
    """Hold the lock on items that a vacuum holds."""
    with psycopg.connect(captured.source.dsn) as vacuum:
        vacuum.execute("lock table items in share update exclusive mode")
        yield


def test_an_idle_run_costs_the_source_no_transaction_id_and_no_log(captured: Captured) -> None:
    many = several(captured, 20)
    many.drain()
    # the server writes now and then on its own account: one run without it shows that we write nothing
    runs = [spent(many) for _ in range(5)]
    assert (0, 0) in runs, runs


def test_a_table_is_probed_anew_when_it_or_its_declaration_is_another_one(captured: Captured) -> None:
    captured.drain()
    first = mark(captured)
    assert len(first.split()) == 1
    captured.source.run("alter table items replica identity full")
    captured.drain()
    second = mark(captured)
    wide = replace(captured, capture=replace(captured.capture, tables=(CapturedTable("items", where="id > 0"),)))
    wide.drain()
    assert len({first, second, mark(captured)}) == 3
    assert len(mark(captured).split()) == 1


def test_a_run_waits_for_no_vacuum_and_probes_its_table_the_next_time(captured: Captured) -> None:
    captured.drain()
    captured.source.run("alter table items replica identity full", "insert into items values (1, 'a')")
    with vacuumed(captured):
        # the row, and that the replica identity is another one
        assert captured.drain().emitted == 2
        assert mark(captured) == ""
        # a publication would have had an id before it had its lock
        assert min(xids for xids, _ in (spent(captured) for _ in range(3))) == 0
    captured.drain()
    assert len(mark(captured).split()) == 1
