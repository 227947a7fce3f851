"""A store crashes with settings under which a commit may be lost: the source still has every lost change."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import psutil
import psycopg
import pytest

from millrace.capture.prepare import restart
from millrace.capture.setup import GapOpen
from millrace.capture.store import CaptureStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import Captured
from tests.support.factories import rows, value
from tests.support.patience import wait_until
from tests.support.running.own_server import own_server

ACTIVITY = "select pid, wait_event = 'WalWriterMain' from pg_stat_activity where backend_type = 'walwriter'"


@pytest.fixture
def fragile(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    """Start a separate store whose commits do not wait for the disk."""
    with own_server("store", programs=pytestconfig.getoption("postgres")) as server:
        with psycopg.connect(server.dsn("store"), autocommit=True) as admin:
            admin.execute("alter system set synchronous_commit = off")
            admin.execute("select pg_reload_conf()")
            admin.execute("checkpoint")
        yield server


def crash_without_its_writer(server: EmbeddedPostgres, work: Callable[[], object]) -> None:
    """Do the work while the log's writer is suspended, then end the server as a power cut does."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:

        def suspended() -> bool:
            """Suspend the log's writer while it sleeps: at work it holds a lock that every commit waits for."""
            pid, sleeps = rows(admin, ACTIVITY)[0]
            writer = psutil.Process(pid)
            if sleeps:
                writer.suspend()
                if rows(admin, ACTIVITY) == [(pid, True)]:
                    return True
                writer.resume()
            return False

        wait_until(suspended, "the writer sleeps")
    work()
    pid = server.pid()
    assert pid is not None
    postmaster = psutil.Process(pid)
    # the postmaster first: else it would write the log while its children end
    for process in (postmaster, *postmaster.children()):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.start()


def test_a_slot_stays_behind_what_a_crash_forgets(captured: Captured, fragile: EmbeddedPostgres) -> None:
    with psycopg.connect(fragile.dsn("store"), autocommit=True) as store:
        there = replace(captured, dsn=fragile.dsn("store"), store=store)
        there.source.run("insert into items values (1, 'a')")
        there.drain()
        there.source.run("insert into items values (2, 'b')", "update items set name = 'c' where id = 1")
        crash_without_its_writer(fragile, there.drain)
    with psycopg.connect(fragile.dsn("store"), autocommit=True) as store:
        there = replace(captured, dsn=fragile.dsn("store"), store=store)
        there.drain()
        assert there.replayed() == there.table()
        assert CaptureStore(store).capture_gaps("shop") == []
        publication = value(there.source.connection, "select pubname from pg_publication")
        there.source.connection.execute(f"drop publication {publication}".encode())

        def repair() -> None:
            with pytest.raises(GapOpen):
                there.drain()

        crash_without_its_writer(fragile, repair)
    with psycopg.connect(fragile.dsn("store"), autocommit=True) as store:
        there = replace(captured, dsn=fragile.dsn("store"), store=store)
        # the publication was made again before the crash: only the gap records that it was missing
        with pytest.raises(GapOpen, match="another program"):
            there.drain()
        crash_without_its_writer(fragile, lambda: restart(there.dsn, there.capture, "the publication was dropped"))
    with psycopg.connect(fragile.dsn("store"), autocommit=True) as store:
        there = replace(captured, dsn=fragile.dsn("store"), store=store)
        # the crash may have lost the release of the lease
        store.execute("update event_store.captures set leased_until = event_store_private.clock()")
        there.drain()
        assert there.replayed() == there.table()
