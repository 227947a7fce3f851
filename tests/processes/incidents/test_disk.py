"""The disk of a server is full: acknowledged events are there, and appends continue when there is room."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg

from millrace.archive.writer import archive_partition
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.processes.incidents.conftest import STORE
from tests.support import factories
from tests.support.factories import append_many, rows, value
from tests.support.incidents.clients import Appender, going_on, more
from tests.support.incidents.page import declare, incident
from tests.support.incidents.servers import room
from tests.support.patience import wait_until

OLD = 3000
SETTINGS = "fsync = off\nmax_wal_size = '64MB'\nmin_wal_size = '32MB'\nshared_buffers = '16MB'\nmax_connections = 20"


def free(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize


def test_after_a_full_disk_appends_go_on(
    programs: Path, started: Callable[[EmbeddedPostgres, str], EmbeddedPostgres], tmp_path: Path
) -> None:
    declare(tmp_path)
    with room(tmp_path / "disk", "400M") as disk, ExitStack() as last:
        server = started(EmbeddedPostgres(disk / "postgres", programs), SETTINGS)
        last.callback(server.stop)
        dsn = server.dsn(STORE)
        with psycopg.connect(dsn, autocommit=True) as connection:
            factories.register_orders(PlatformStore(connection))
            factories.set_clock(connection, "2026-01-05 12:00:00+00")
            append_many(connection, OLD, "old")
            PlatformStore(connection).sequence_events()
        old = {event_id for (event_id,) in _events(dsn)}
        for partition in range(16):
            archive_partition(dsn, tmp_path / "archive", partition, min_events=1, tail=True)
        writer = Appender("new", data={"text": os.urandom(150_000).hex()})
        variables = {"MILLRACE_DSN": dsn, "ADMIN_DSN": dsn, "DISK": str(disk)}
        variables["MILLRACE_ARCHIVE_DIR"] = str(tmp_path / "archive")
        with incident("The disk is full", tmp_path, **variables) as operator:
            operator.follow()
            with going_on(dsn, writer):
                more(writer.acknowledged)
                # the file of another program fills the disk
                wait_until(lambda: _takes_the_room(disk), "somebody else takes the room")
                wait_until(lambda: bool(writer.refused), "an append is refused")
                operator.follow()
                server.start()
                more(writer.acknowledged)
            operator.follow()
            with psycopg.connect(dsn, autocommit=True) as connection:
                stored = {event_id for (event_id,) in _events(dsn)}
                # an append that was not acknowledged may be stored or not
                assert set(writer.acknowledged) | old <= stored
                assert len(stored - set(writer.acknowledged) - old) <= 1
                PlatformStore(connection).sequence_events()
                factories.assert_log_holds_every_event_once(connection)
                operator.follow()
                assert {event_id for (event_id,) in _events(dsn)} == stored - old
                size = "select pg_relation_size('event_store.events')"
                before = value(connection, size)
                append_many(connection, OLD // 2, "again")
                assert value(connection, size) == before


def _takes_the_room(disk: Path) -> bool:
    """Write a file that leaves little room; return False if a writer was faster."""
    with (disk / "foreign").open("wb") as foreign:
        try:
            os.posix_fallocate(foreign.fileno(), 0, free(disk) - 2**21)
        except OSError:
            return False
    return True


def _events(dsn: str) -> list[tuple[object]]:
    with psycopg.connect(dsn) as connection:
        return rows(connection, "select event_id from event_store.events")
