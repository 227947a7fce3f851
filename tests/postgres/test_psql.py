"""Which psql is started, and that it reaches the database. Not here: the command that starts it."""

import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millrace.errors import Unreachable
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres
from millrace.postgres.psql import PsqlMissing, find_psql, psql_command
from tests.support.patience import patience


def fake_psql(folder: Path, version: str) -> Path:
    folder.mkdir()
    script = folder / "psql"
    script.write_text(f"#!/bin/sh\necho 'psql (PostgreSQL) {version}'\n")
    script.chmod(0o755)
    return script


def run(dsn: str, *arguments: str) -> str:
    command = psql_command(dsn, arguments)
    done = subprocess.run(
        command.argv, env=command.env, capture_output=True, text=True, timeout=patience(), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_answers_from_the_database_of_the_dsn(dsn: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    assert run(dsn, "-XAt", "-c", "select current_database()") == f"{name}\n"
    assert "append_event" in run(dsn, "-X", "-c", r"\df event_store.append_event")


def test_a_password_is_in_its_environment_and_not_in_its_arguments(postgres: EmbeddedPostgres) -> None:
    dsn = postgres.dsn("postgres").replace("postgres@", "postgres:it's%20secret@")
    command = psql_command(dsn, ["-c", "select 1"], {"PATH": ""})
    assert command.env["PGPASSWORD"] == "it's secret"
    assert "secret" not in " ".join(command.argv) + repr(command)


def test_a_database_with_an_odd_name_is_reached(postgres: EmbeddedPostgres) -> None:
    name = "it's 5% & ü"
    postgres.create_database(name)
    try:
        assert run(postgres.dsn(name), "-XAt", "-c", "select current_database()") == f"{name}\n"
    finally:
        with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))


def test_the_embedded_one_comes_first_unless_the_server_is_newer(tmp_path: Path) -> None:
    newer = fake_psql(tmp_path / "newer", "99.1")
    environ = {"PATH": str(newer.parent)}
    assert find_psql(15, environ) == PROGRAMS / "psql"
    assert find_psql(99, environ) == newer


def test_the_newest_one_is_taken_where_all_are_older_than_the_server(tmp_path: Path) -> None:
    older = fake_psql(tmp_path / "older", "15.3")
    assert find_psql(99, {"PATH": str(older.parent)}) == PROGRAMS / "psql"
    assert find_psql(15, {"PATH": str(older.parent)}, tmp_path) == older


def test_without_any_psql_the_remedy_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "psql"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(PsqlMissing, match="no psql that runs here") as refusal:
        find_psql(18, {"PATH": str(tmp_path)}, tmp_path / "nothing")
    assert "Install" in (refusal.value.hint or "")


def test_a_server_that_does_not_answer_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        psql_command(f"postgresql://postgres@/postgres?host={tmp_path}")


def test_a_dsn_that_is_none_is_not_quoted() -> None:
    with pytest.raises(Unreachable, match="unreadable") as refusal:
        psql_command("hunter2")
    assert "hunter2" not in str(refusal.value)
