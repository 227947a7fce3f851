"""The embedded server through starts, kills and odd folders. Not here: what is stored in it."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from millrace.resources.postgres.embedded import EmbeddedPostgres, PostgresFailed
from millrace.resources.processes import wait_ended


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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("wal_level", "logical"),
        ("unix_socket_permissions", "0700"),
        ("listen_addresses", ""),
        ("max_connections", "200"),
        ("shared_buffers", "256MB"),
        ("TimeZone", "UTC"),
        ("server_encoding", "UTF8"),
        ("idle_in_transaction_session_timeout", "5min"),
    ],
)
def test_the_first_start_has_our_settings(postgres: EmbeddedPostgres, setting: str, value: str) -> None:
    assert ask(postgres, f"show {setting}") == value


def test_it_listens_on_no_tcp_port(postgres: EmbeddedPostgres) -> None:
    pid = postgres.pid()
    assert pid is not None
    listening = [c for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == []


def test_creating_a_database_again_keeps_it(postgres: EmbeddedPostgres) -> None:
    postgres.create_database("shop & co")
    with psycopg.connect(postgres.dsn("shop & co"), autocommit=True) as connection:
        connection.execute("create table kept ()")
    postgres.create_database("shop & co")
    assert ask(postgres, "select to_regclass('kept')", "shop & co") == "kept"


def test_starting_again_leaves_the_server_alone(postgres: EmbeddedPostgres) -> None:
    before = postgres.pid()
    postgres.start()
    EmbeddedPostgres(postgres.directory).start()
    assert postgres.pid() == before


def test_two_processes_starting_at_once_share_one_server(tmp_path: Path) -> None:
    start = (
        "import sys, pathlib, millrace.resources.postgres.embedded as e;"
        "s = e.EmbeddedPostgres(pathlib.Path(sys.argv[1])); s.start(); s.create_database('d'); print(s.pid())"
    )
    command = [sys.executable, "-c", start, str(tmp_path)]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [starter.communicate(timeout=60)[0] for starter in starters]
    server = EmbeddedPostgres(tmp_path)
    try:
        # Both starters are gone; their server is not.
        assert said == [f"{server.pid()}\n"] * 2
        assert ask(server, "select 1", "d") == "1"
    finally:
        server.stop()


def test_it_goes_on_after_the_postmaster_was_killed(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        server.create_database("kept")
        killed = server.pid()
        assert killed is not None
        psutil.Process(killed).kill()
        server.start()
        assert ask(server, "select 1", "kept") == "1"
        assert server.pid() != killed


def test_a_stale_pid_file_that_names_another_living_process_is_ignored(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        lines = (server.data / "postmaster.pid").read_text().splitlines()
        server.stop()
        stale = "\n".join([str(os.getpid()), *lines[1:]]) + "\n"
        (server.data / "postmaster.pid").write_text(stale)
        assert server.pid() is None
        server.start()
        assert ask(server, "select 1") == "1"


def test_changed_settings_restart_a_running_server_once(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path) as server:
        first = server.pid()
        (server.data / "millrace.conf").write_text("# of an older version\n")
        server.start()
        second = server.pid()
        server.start()
        assert first != second == server.pid()


def test_stopping_leaves_no_process_and_is_idempotent(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.stop()
    server.start()
    with psycopg.connect(server.dsn("postgres")):
        before = processes_in(tmp_path)
        server.stop()
    server.stop()
    assert before
    assert wait_ended(before, 10) == []
    assert processes_in(tmp_path) == []
    assert server.pid() is None


def test_a_killed_initdb_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "half").touch()
    (tmp_path / "data").mkdir()
    with EmbeddedPostgres(tmp_path) as server:
        assert ask(server, "select 1") == "1"


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
    with pytest.raises(PostgresFailed, match="useradd --system --no-create-home pgserver: cannot lock /etc/passwd"):
        EmbeddedPostgres(tmp_path / "home").start()
    assert "Running as root, and Postgres must not: useradd --system" in caplog.text


def test_a_deep_folder_with_odd_characters_gets_a_short_private_socket(tmp_path: Path) -> None:
    deep = tmp_path / "a folder's name & 100%" / ("deep" * 30)
    with EmbeddedPostgres(deep) as server:
        assert ask(server, "select 1") == "1"
        assert server.socket.stat().st_mode & 0o777 == 0o700
        assert not server.socket.is_relative_to(deep)
    assert not server.socket.exists()


def test_an_odd_folder_keeps_its_socket_inside() -> None:
    # not pytest's tmp_path, which may be too long for a socket
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(odd := Path(folder) / "it's 5% & ü") as server:
        assert ask(server, "select 1") == "1"
        assert server.socket.parent == odd


def test_root_follows_no_link_of_the_account_that_the_server_runs_as(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("Only root starts the server under another account: run this test as root.")
    roots = tmp_path / "roots.conf"
    with EmbeddedPostgres(tmp_path / "server") as server:
        owner = (server.data / "PG_VERSION").stat().st_uid
        assert pwd.getpwuid(owner).pw_name == "pgserver"
        server.stop()
        for name in ("millrace.conf", "millrace.conf.new"):
            for link in (os.symlink, os.link):
                roots.write_text("of root's alone")
                roots.chmod(0o600)
                (server.data / name).unlink(missing_ok=True)
                link(roots, server.data / name)
                os.chown(server.data / name, owner, -1, follow_symlinks=False) if link is os.symlink else None
                server.start()
                assert not (server.data / "millrace.conf").is_symlink()
                assert (roots.read_text(), roots.stat().st_uid) == ("of root's alone", 0)
                server.stop()
        for name in ("server.log", "lock"):
            (server.directory / name).unlink()
            (server.directory / name).symlink_to(roots)
            with pytest.raises((PostgresFailed, OSError), match=r"is a link; remove it|symbolic links"):
                server.start()
            assert (roots.read_text(), roots.stat().st_uid) == ("of root's alone", 0)
            (server.directory / name).unlink()


def test_nobody_gets_in_by_tcp_even_if_the_server_listens(postgres: EmbeddedPostgres) -> None:
    lines = [line.split() for line in (postgres.data / "millrace_hba.conf").read_text().splitlines()]
    methods = {(words[0], words[-1]) for words in lines if words and not words[0].startswith("#")}
    assert methods == {("local", "trust"), ("host", "reject")}
