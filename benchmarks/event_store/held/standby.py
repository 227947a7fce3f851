"""A standby that tells its primary what it still reads (hot_standby_feedback), and lags.

Belongs here: making such a server of a benchmark's, and holding a snapshot there. Not here: what is measured beside it.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.event_store.bench import Bench, Database
from benchmarks.servers import started
from millrace.resources.postgres.embedded import SUPERUSER, EmbeddedPostgres

PATIENCE_S = 60


class Standby(EmbeddedPostgres):
    """A copy of a running server, by pg_basebackup over its socket, that follows it."""

    def __init__(self, directory: Path, primary: EmbeddedPostgres) -> None:
        """Say of which server, and where."""
        super().__init__(directory, primary.programs)
        self._primary = primary

    def _initialise(self) -> None:
        fresh = self.directory / "data.new"
        self._own(fresh)
        source = f"host={self._primary.socket} user={SUPERUSER}"
        self._run("pg_basebackup", ["-D", str(fresh), "-d", source, "-R", "-X", "stream", "-c", "fast"])
        fresh.rename(self.data)


@contextmanager
def another_server(bench: Bench) -> Iterator[EmbeddedPostgres]:
    """Start a second server as the benchmark's own: what a standby tells its primary counts for all its databases."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        started(Path(directory), bench.server.programs, bench.console) as server,
    ):
        yield server


@contextmanager
def replica(primary: EmbeddedPostgres, *, tells: bool) -> Iterator[Standby]:
    """Let a standby of a server receive all and replay nothing, and tell what it may still read, or not."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Standby(Path(directory), primary) as standby,
        psycopg.connect(standby.dsn("postgres"), autocommit=True) as admin,
    ):
        admin.execute(f"alter system set hot_standby_feedback = {'on' if tells else 'off'}")
        admin.execute("alter system set wal_receiver_status_interval = '1s'")
        admin.execute("alter system set max_standby_streaming_delay = -1")
        admin.execute("select pg_reload_conf()")
        admin.execute("select pg_wal_replay_pause()")
        yield standby


@contextmanager
def reading(primary: EmbeddedPostgres, standby: Standby, database: Database) -> Iterator[None]:
    """Read on a standby in one snapshot, of which it tells the primary; check that it did to the end."""
    with (
        psycopg.connect(primary.dsn("postgres"), autocommit=True) as observer,
        psycopg.connect(standby.dsn(database.dsn.split("/")[3].split("?")[0])) as reader,
    ):
        reader.execute("set transaction isolation level repeatable read, read only")
        reader.execute("select count(*) from event_store.events")
        held = _told(observer)
        yield
        if _told(observer) != held:
            raise RuntimeError("The standby did not hold the primary's row versions to the end.")


def _told(observer: psycopg.Connection) -> object:
    """Return the transaction from which on the standby still reads, once the primary knows it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        row = observer.execute("select backend_xmin from pg_stat_replication where backend_xmin is not null").fetchone()
        if row:
            return row[0]
        time.sleep(0.1)
    raise RuntimeError("No standby told the primary what it reads.")
