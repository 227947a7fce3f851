"""A user's own tools reach the embedded store's read models by TCP, and nothing else of it."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millrace.event_store.migrations import migrate
from millrace.platform_defs.local.services import free_port
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.postgres.logins import DRAIN, let_readers_in, prepare_store
from millrace.read_models.stored.versions import ensure_version
from tests.support.building.drains import Everything


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[EmbeddedPostgres]:
    """Start a listening server; its store has a read model older than the login."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("pg"), tcp_port=port) as server:
        server.create_database("millrace")
        migrate(server.dsn("millrace"))
        prepare_store(server, "millrace")
        with psycopg.connect(server.dsn("millrace", DRAIN), autocommit=True) as drain:
            ensure_version(drain, Everything)
        yield server


@pytest.fixture(scope="module")
def file(server: EmbeddedPostgres, port: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home") / "reader.pgpass"
    let_readers_in(server, "millrace", port, path)
    return path


def reader(port: int, file: Path, **options: str) -> psycopg.Connection:
    named = {"user": "millrace_reader", "dbname": "millrace", "passfile": str(file), **options}
    return psycopg.connect(make_conninfo(host="127.0.0.1", port=port, **named), autocommit=True)


def test_a_tool_reads_what_there_is_and_what_is_made_later(server: EmbeddedPostgres, port: int, file: Path) -> None:
    with psycopg.connect(server.dsn("millrace", DRAIN), autocommit=True) as drain:
        drain.execute("create table read_models.later (n int)")
        drain.execute("set role event_store_owner")
        drain.execute("create table reports.daily (n int)")
    with reader(port, file) as tool:
        for table in ("read_models.everything", "read_models.later", "reports.daily"):
            assert tool.execute(f"select count(*) from {table}".encode()).fetchall() == [(0,)]


def test_it_reads_nothing_else_and_changes_nothing(port: int, file: Path) -> None:
    for statement in (
        "select * from event_store.events",
        "select * from event_store.view_info()",
        "select event_store_platform.sequence_events()",
        "create table read_models.mine ()",
        "create temporary table mine ()",
        "begin read write; create temporary table mine ()",
        "select pg_advisory_lock(1)",
        "select pg_try_advisory_xact_lock_shared(1, 1)",
        "begin read write; select lo_create(0)",
        "delete from read_models.everything",
        "begin read write; delete from read_models.everything_state",
        "set role millrace_drain",
        "copy (select 1) to program 'true'",
        "select pg_read_file('/etc/passwd')",
    ):
        with (
            reader(port, file) as tool,
            pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)),
        ):
            tool.execute(statement.encode())


def test_nobody_else_gets_in_by_tcp(port: int, file: Path) -> None:
    for options in (
        {"passfile": "/dev/null"},
        {"password": "guessed"},
        {"user": "postgres"},
        {"user": DRAIN},
        {"dbname": "postgres"},
    ):
        refusals = r"no password|password authentication|pg_hba|permission denied"
        with pytest.raises(psycopg.OperationalError, match=refusals):
            reader(port, file, **options)


def test_it_listens_on_loopback_alone(server: EmbeddedPostgres, port: int) -> None:
    pid = server.pid()
    assert pid is not None
    listening = {c.laddr for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", port)}


def test_the_password_is_for_this_account_alone_and_stays(server: EmbeddedPostgres, port: int, file: Path) -> None:
    before = file.read_text()
    let_readers_in(server, "millrace", port, file)
    assert file.read_text() == before
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    let_readers_in(server, "millrace", port, file)
    assert file.read_text() != before
    with reader(port, file) as tool:
        assert tool.execute("select count(*) from read_models.everything").fetchall() == [(0,)]


def test_without_a_port_it_listens_no_more_and_everybody_keeps_his_dsn(server: EmbeddedPostgres, port: int) -> None:
    dsn = server.dsn("postgres")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("show port").fetchall() == [(str(port),)]
    server.stop()
    with EmbeddedPostgres(server.directory) as without, psycopg.connect(dsn) as connection:
        assert connection.execute("show listen_addresses").fetchall() == [("",)]
        assert without.dsn("postgres") == dsn
    server.start()
