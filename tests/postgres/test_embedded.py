"""The embedded server through starts, kills and odd folders. Not here: its contents.

A restarted server is the one of this file, or one in an odd folder: each first start takes a second.
"""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from millrace.postgres import embedded
from millrace.postgres.embedded import EmbeddedPostgres, PostgresFailed
from millrace.processes import only_one, wait_ended
from tests.support.patience import patience, wait_until
from tests.support.running.own_server import own_server


def ask(server: EmbeddedPostgres, query: str, database: str = "postgres") -> str:
    with psycopg.connect(server.dsn(database)) as connection:
        # `bytes` because psycopg's own type wants literal queries only.
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return str(row[0])


def processes_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_first_start_has_our_settings(postgres: EmbeddedPostgres) -> None:
    ours = {
        "wal_level": "logical",
        "unix_socket_permissions": "0700",
        "listen_addresses": "",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
        "idle_in_transaction_session_timeout": "5min",
    }
    assert {setting: ask(postgres, f"show {setting}") for setting in ours} == ours


def test_it_gets_nothing_of_our_environment_but_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLRACE_PUSH_SECRET_CRM", "crm.example.com hidden")
    monkeypatch.setenv("PGPASSWORD", "hidden")
    with own_server() as server:
        environ = psutil.Process(server.pid()).environ()
    assert "hidden" not in str(environ)
    assert environ["PATH"] == os.environ["PATH"]


def test_it_listens_on_no_tcp_port_and_would_let_nobody_in_there(postgres: EmbeddedPostgres) -> None:
    pid = postgres.pid()
    assert pid is not None
    listening = [c for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == []
    lines = [line.split() for line in (postgres.data / "millrace_hba.conf").read_text().splitlines()]
    methods = {(words[0], words[-1]) for words in lines if words and not words[0].startswith("#")}
    assert methods == {("local", "trust"), ("host", "reject")}


def test_starting_and_creating_a_database_again_leave_both_alone(postgres: EmbeddedPostgres) -> None:
    before = postgres.pid()
    postgres.create_database("shop & co")
    with psycopg.connect(postgres.dsn("shop & co"), autocommit=True) as connection:
        connection.execute("create table kept ()")
    postgres.start()
    EmbeddedPostgres(postgres.directory).start()
    assert postgres.pid() == before
    postgres.create_database("shop & co")
    assert ask(postgres, "select to_regclass('kept')", "shop & co") == "kept"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Yield a server in a deep folder with odd characters, in which an initdb was killed before."""
    deep = tmp_path_factory.mktemp("postgres") / "a folder's name & 100%" / ("deep" * 30)
    (deep / "data.new").mkdir(parents=True)
    (deep / "data.new" / "half").touch()
    (deep / "data").mkdir()
    with EmbeddedPostgres(deep) as server:
        yield server


@pytest.fixture
def running(server: EmbeddedPostgres) -> EmbeddedPostgres:
    server.start()
    return server


def test_an_odd_deep_folder_gets_a_server_with_a_short_private_socket(
    running: EmbeddedPostgres,
) -> None:
    assert ask(running, "select 1") == "1"
    assert running.socket.stat().st_mode & 0o777 == 0o700
    assert not running.socket.is_relative_to(running.directory)


def test_it_goes_on_after_the_postmaster_was_killed(running: EmbeddedPostgres) -> None:
    running.create_database("kept")
    killed = running.pid()
    assert killed is not None
    psutil.Process(killed).kill()
    running.start()
    assert ask(running, "select 1", "kept") == "1"
    assert running.pid() != killed


def test_a_stale_pid_file_that_names_another_living_process_is_ignored(running: EmbeddedPostgres) -> None:
    file = running.data / "postmaster.pid"
    lines = file.read_text().splitlines()
    running.stop()
    file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert running.pid() is None
    running.start()
    assert ask(running, "select 1") == "1"


def test_changed_settings_restart_a_running_server_once(running: EmbeddedPostgres) -> None:
    first = running.pid()
    (running.data / "millrace.conf").write_text("# of an older version\n")
    running.start()
    second = running.pid()
    running.start()
    assert first != second == running.pid()


def test_stopping_leaves_no_process_and_no_socket_and_is_idempotent(running: EmbeddedPostgres, tmp_path: Path) -> None:
    EmbeddedPostgres(tmp_path).stop()
    with psycopg.connect(running.dsn("postgres")):
        before = processes_in(running.directory)
        running.stop()
    running.stop()
    assert before
    assert wait_ended(before, patience()) == []
    assert processes_in(running.directory) == []
    assert running.pid() is None
    assert not running.socket.exists()


def test_two_processes_that_start_at_once_share_one_server() -> None:
    start = (
        "import sys, pathlib, millrace.postgres.embedded as e;"
        "s = e.EmbeddedPostgres(pathlib.Path(sys.argv[1])); s.start(); s.create_database('d'); print(s.pid())"
    )
    # not pytest's tmp_path, which may be too long for a socket
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder) / "it's 5% & ü"
        command = [sys.executable, "-c", start, str(odd)]
        starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [starter.communicate(timeout=patience())[0] for starter in starters]
        server = EmbeddedPostgres(odd)
        try:
            # Both starters are gone; their server is not.
            assert said == [f"{server.pid()}\n"] * 2
            assert ask(server, "select 1", "d") == "1"
            assert server.socket.parent == odd
        finally:
            server.stop()


def test_where_no_user_can_be_created_for_root_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = tmp_path / "useradd"
    tool.write_text("#!/bin/sh\necho 'cannot lock /etc/passwd' >&2\nexit 1\n")
    tool.chmod(0o755)

    def unknown(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", unknown)
    monkeypatch.setattr(embedded, "ACCOUNT_LOCK", tmp_path / "lock")
    with pytest.raises(PostgresFailed, match="useradd --system --no-create-home pgserver: cannot lock /etc/passwd"):
        EmbeddedPostgres(tmp_path / "home").start()
    assert "Running as root, and Postgres must not: useradd --system" in caplog.text


def test_of_two_first_starts_by_root_one_creates_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock, made = tmp_path / "lock", tmp_path / "made"
    ours = pwd.getpwuid(os.getuid())

    def known(name: str) -> pwd.struct_passwd:
        if not made.exists():
            raise KeyError(name)
        return ours

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.setattr(embedded, "ACCOUNT_LOCK", lock)
    with ThreadPoolExecutor() as threads:
        with only_one(lock):
            second = threads.submit(lambda: EmbeddedPostgres(tmp_path / "home")._account)
            waits = f"-> FLOCK  ADVISORY  WRITE {os.getpid()} "
            wait_until(lambda: waits in Path("/proc/locks").read_text(), "the second waits for the first")
            made.touch()
        assert second.result(patience()) == ours
    assert "useradd" not in caplog.text


def test_root_follows_no_link_of_the_account_that_the_server_runs_as(running: EmbeddedPostgres) -> None:
    if os.geteuid() != 0:
        pytest.skip("Only root starts the server under another account: run this test as root.")
    roots = running.directory.parent / "roots.conf"
    owner = (running.data / "PG_VERSION").stat().st_uid
    assert pwd.getpwuid(owner).pw_name == "pgserver"
    running.stop()
    for name in ("millrace.conf", "millrace.conf.new"):
        for link in (os.symlink, os.link):
            roots.write_text("of root's alone")
            roots.chmod(0o600)
            (running.data / name).unlink(missing_ok=True)
            link(roots, running.data / name)
            os.chown(running.data / name, owner, -1, follow_symlinks=False) if link is os.symlink else None
            running.start()
            assert not (running.data / "millrace.conf").is_symlink()
            assert (roots.read_text(), roots.stat().st_uid) == ("of root's alone", 0)
            running.stop()
    for name in ("server.log", "lock"):
        (running.directory / name).unlink()
        (running.directory / name).symlink_to(roots)
        with pytest.raises((PostgresFailed, OSError), match=r"is a link; remove it|symbolic links"):
            running.start()
        assert (roots.read_text(), roots.stat().st_uid) == ("of root's alone", 0)
        (running.directory / name).unlink()
