"""Servers that take over from each other, each a promoted standby, and a capture of a database on them."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.postgres.embedded import EmbeddedPostgres, major_version
from tests.support.capturing.captured import ITEMS, Captured
from tests.support.capturing.sources import Source
from tests.support.factories import rows, value
from tests.support.incidents.servers import crash
from tests.support.patience import wait_until

SETTINGS = (
    "fsync = off\nmax_connections = 30\nshared_buffers = '16MB'\nautovacuum = off\nwal_receiver_status_interval = 1s\n"
)


class Standby(EmbeddedPostgres):
    """A copy of another server, which keeps its place there with a slot, and can copy slots of it."""

    def copy(self, primary: EmbeddedPostgres) -> None:
        self.directory.mkdir()
        name = self.directory.name
        source = f"host={primary.socket} user=postgres dbname=postgres application_name={name}"
        with self._locked():
            self._make_private(self.data)
            self._run("pg_basebackup", ["-D", str(self.data), "-d", source, "-cfast", "-Xstream", "-S", name, "-R"])
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(f"hot_standby_feedback = on\nprimary_conninfo = '{source}'\n")


@dataclass
class Cluster:
    """A primary and its standbys."""

    folder: Path
    primary: EmbeddedPostgres
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def syncs_slots(self) -> bool:
        return major_version(self.primary.programs) >= 17

    def dsn(self, database: str) -> str:
        return self.primary.dsn(database)

    def standby(self) -> Standby:
        name = f"s{next(self._numbers)}"
        standby = Standby(self.folder / name, self.primary.programs)
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True) as admin:
            admin.execute("select pg_create_physical_replication_slot(%s, true)", (name,))
        standby.copy(self.primary)
        standby.start()
        self.wait_for(standby)
        return standby

    def wait_for(self, standby: Standby) -> None:
        """Wait until the standby has caught up with the primary, and its slot keeps its place."""
        with (
            psycopg.connect(self.primary.dsn("postgres"), autocommit=True) as admin,
            psycopg.connect(standby.dsn("postgres"), autocommit=True) as following,
        ):
            holds = "select active and xmin is not null from pg_replication_slots where slot_name = %s"
            wait_until(lambda: value(admin, holds, standby.directory.name), "the standby holds its slot")
            position = value(admin, "select pg_current_wal_flush_lsn()::text")
            replayed = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: value(following, replayed, position), "the standby has replayed all")

    def give_slot(self, standby: Standby, slot: str) -> None:
        """Copy the slot in its current state to the standby by its files, as is done where servers cannot do it.

        The standby must be older than the slot, or it would lack log that the slot needs.
        """
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True) as admin:
            admin.execute("checkpoint")
        self.wait_for(standby)
        standby.stop()
        target = standby.data / "pg_replslot" / slot
        shutil.copytree(self.primary.data / "pg_replslot" / slot, target, dirs_exist_ok=True)
        owner = standby.data.stat()
        for path in (target, *target.iterdir()):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        standby.start()
        self.wait_for(standby)

    def has_synchronized(self, standby: Standby, slot: str) -> bool:
        """Let the standby synchronize the slots of the primary; return whether it has this one for good."""
        self.wait_for(standby)
        with psycopg.connect(standby.dsn("postgres"), autocommit=True) as following:
            following.execute("select pg_sync_replication_slots()")
            kept = "select synced and not temporary from pg_replication_slots where slot_name = %s"
            return rows(following, kept, slot) == [(True,)]

    def take_over(self, standby: Standby) -> None:
        crash(self.primary)
        self.move(standby)

    def move(self, standby: Standby) -> None:
        standby.start()
        with psycopg.connect(standby.dsn("postgres"), autocommit=True) as admin:
            assert value(admin, "select pg_promote()")
        self.primary = standby


@dataclass(frozen=True)
class Moving:
    """A captured database on a cluster; the source's session is connected to the first primary."""

    cluster: Cluster
    captured: Captured

    @property
    def slot(self) -> str:
        return str(value(self.captured.store, "select slot from event_store.captures"))

    @property
    def stored_lsn(self) -> Lsn:
        return Lsn.parse(str(value(self.captured.store, "select stored_lsn::text from event_store.captures")))

    @property
    def timelines(self) -> str | None:
        found = value(self.captured.store, "select timelines from event_store.captures")
        return None if found is None else str(found)

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.captured.capture.source(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def table(self) -> list[dict[str, object]]:
        with psycopg.connect(self.captured.capture.source(), autocommit=True) as connection:
            return sorted((row for (row,) in rows(connection, "select to_jsonb(t) from items t")), key=str)


def _stop(folder: Path, programs: Path) -> None:
    for path in folder.iterdir():
        EmbeddedPostgres(path, programs).stop()


@pytest.fixture(scope="module")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("f")
    first = EmbeddedPostgres(folder / "p", pytestconfig.getoption("postgres"))
    with ExitStack() as ending:
        ending.callback(_stop, folder, first.programs)
        first.start()
        with (first.data / "postgresql.conf").open("a") as conf:
            conf.write(SETTINGS)
        first.stop()
        first.start()
        yield Cluster(folder, first)


_databases = count()


@pytest.fixture
def moving(cluster: Cluster, dsn: str) -> Iterator[Moving]:
    """Make a database with the table items on the cluster's primary, captured into the test's event store."""
    name = f"moving_{next(_databases)}"
    cluster.primary.create_database(name)
    source = Source(cluster.dsn(name), name)
    source.run(ITEMS)
    capture = Capture("shop", lambda: cluster.dsn(name), (CapturedTable("items"),))
    with psycopg.connect(dsn, autocommit=True) as store:
        yield Moving(cluster, Captured(source, capture, dsn, store))
    source.connection.close()
