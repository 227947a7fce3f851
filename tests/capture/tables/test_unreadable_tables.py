"""A table that the source cannot read delays no other table; its reading resumes once the source can."""

import tempfile
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from millrace.assets.declarations import Declarations
from millrace.capture import health
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.source.readiness import NotReady
from millrace.errors import ChangesWaiting
from millrace.platform_defs.cli import capture as commands
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import Captured, declared, did, left
from tests.support.capturing.sources import Source
from tests.support.capturing.two_tables import GOOD, both
from tests.support.command_line import millrace

BAD = CapturedTable("bad")
PAGE = 8192


def test_a_table_that_cannot_be_sorted_is_told(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = both(captured)
    captured.run(
        "create table bad (id int not null, name text)",
        "alter table bad replica identity full",
        "insert into bad select n, repeat('x', 1000) from generate_series(1, 300) n",
    )
    limits = "temp_file_limit = 0", "work_mem = '64kB'", "enable_indexscan = off"
    for limit in limits:
        captured.run(f"alter database {captured.source.slot} set {limit}")
    captured.run("create unique index on bad (id)")
    captured = declared(captured, CapturedTable("bad", key=("id",)), GOOD)
    monkeypatch.setattr(commands, "declared_beside", lambda *_: Declarations(captures={"shop": captured.capture}))
    captured.drain()
    captured.run("insert into good values (2, 'second')", "insert into bad values (0, 'is captured')")
    captured.drain()
    assert left(captured, "good") == captured.table("good")
    assert left(captured, "bad") == [{"id": 0, "name": "is captured"}]
    (said,) = captured.problems()
    assert said.startswith("the backfill of public.bad does not go on, its changes and the others are captured: ")
    assert "temporary file size exceeds" in said
    assert "Create an index on its key" in said
    with pytest.raises(NotReady, match="Create an index on its key"):
        millrace("capture", "check", "shop", dsn=captured.dsn)
    # the other table is compared
    assert "public.good" in millrace("capture", "verify", "shop", dsn=captured.dsn, code=1)
    with pytest.raises(ChangesWaiting):
        captured.verify(captured.capture.tables[0])
    # the table is not tried all the time, only now and then
    assert not captured.has_work()
    monkeypatch.setattr(health, "UNREAD_AGAIN", timedelta(0))
    assert captured.has_work()
    captured.run(f"alter database {captured.source.slot} reset all")
    captured.drain()
    assert captured.problems() == []
    assert left(captured, "bad") == captured.table("bad")


def test_a_damaged_page_ends_the_backfill_of_its_table_alone(dsn: str, postgres: EmbeddedPostgres) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="millrace-", dir=postgres.directory.parent) as folder,
        EmbeddedPostgres(Path(folder), postgres.programs) as server,
        psycopg.connect(dsn, autocommit=True) as store,
    ):
        server.create_database("apart")
        source = Source(server.dsn("apart"), "apart")
        source.run(
            "create table bad (id int primary key, name text)",
            "insert into bad select n, repeat('x', 1000) from generate_series(1, 300) n",
            "create table good (id int primary key, name text)",
            "insert into good values (1, 'first')",
        )
        place = "select current_setting('data_directory') || '/' || pg_relation_filepath('bad')"
        row = source.connection.execute(place).fetchone()
        assert row is not None
        file = Path(row[0])

        def write(page: bytes) -> bytes:
            """Replace the last page by another one; return the old page."""
            nonlocal source
            source.connection.close()
            server.stop()
            whole = file.read_bytes()
            file.write_bytes(whole[:-PAGE] + page)
            server.start()
            source = Source(server.dsn("apart"), "apart")
            return whole[-PAGE:]

        page = write(b"\xde\xad" * (PAGE // 2))
        captured = Captured(source, Capture("shop", lambda: server.dsn("apart"), (BAD, GOOD)), dsn, store)
        captured.drain()
        source.run("insert into good values (2, 'second')", "delete from bad where id = 1")
        captured.drain()
        assert [row["id"] for row in left(captured, "good")] == [1, 2]
        (said,) = captured.problems()
        assert "invalid page in block" in said
        assert "A page of it or of its index is damaged" in said
        assert did(captured) == [("inserted", "[2]"), ("deleted", "[1]")]
        assert 0 < len(left(captured, "bad")) < 299
        write(page)
        captured.drain()
        assert captured.problems() == []
        assert len(left(captured, "bad")) == 299
        source.connection.close()


def test_a_locked_partition_that_is_added_keeps_no_table_waiting(captured: Captured) -> None:
    captured = both(captured, CapturedTable("parts"))
    captured.run(
        "create table parts (id int primary key, name text) partition by range (id)",
        "create table part partition of parts for values from (0) to (10)",
        "insert into parts values (1, 'x')",
    )
    captured.drain()
    captured.run("create table more partition of parts for values from (10) to (20)")
    with psycopg.connect(captured.source.dsn) as other:
        other.execute("lock table more in access exclusive mode")
        captured.run("update good set name = 'goes on'")
        captured.drain()
        assert left(captured, "good") == captured.table("good")
    captured.run("insert into parts values (11, 'y')")
    captured.drain()
    assert left(captured, "parts") == captured.table("parts")
    assert captured.info().gaps == 0
