"""Servers for incidents: a standby, a server that crashes, a small disk."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
import pytest

from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import wait_ended
from tests.support.factories import rows
from tests.support.patience import patience, wait_until


class Copy(EmbeddedPostgres):
    """A cluster that begins as a copy of another one and follows it, until it is promoted."""

    def follow(self, primary: EmbeddedPostgres, *, synchronous: bool) -> None:
        """Copy a running server and follow it; return when the copy has caught up."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = self.directory.name
        source = f"host={primary.socket} user=postgres application_name={name}"
        with self._locked():
            self._make_private(self.data)
            self._run("pg_basebackup", ["-D", str(self.data), "-d", source, "-R", "-c", "fast", "-X", "stream"])
        self.start()
        with psycopg.connect(primary.dsn("postgres"), autocommit=True) as admin:
            if synchronous:
                admin.execute(f"alter system set synchronous_standby_names = '{name}'".encode())
            else:
                admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")
            wanted = [("sync" if synchronous else "async", True)]
            state = "select sync_state, replay_lsn >= pg_current_wal_lsn() from pg_stat_replication"
            wait_until(lambda: rows(admin, state) == wanted, "the standby follows")


def crash(server: EmbeddedPostgres) -> None:
    """End a server as a power cut does: nothing more is written."""
    pid = server.pid()
    assert pid is not None
    postmaster = psutil.Process(pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    postmaster.send_signal(signal.SIGQUIT)
    assert not wait_ended(processes, patience())


def either(database: str, *servers: EmbeddedPostgres) -> str:
    """Return the DSN that connects to the server that accepts writes."""
    hosts = ",".join(quote(str(server.socket), safe="") for server in servers)
    return f"postgresql://postgres@/{database}?host={hosts}&target_session_attrs=read-write"


@contextmanager
def room(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory of this size; unmount it at the end.

    Skips the test if mounting is not allowed.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stderr.strip() if done.returncode else None
    except OSError as error:
        said = str(error)
    if said is not None:
        pytest.skip(f"a small file system cannot be mounted here: {said}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
