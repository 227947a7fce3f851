"""The servers that a benchmark starts: ours, or other programs with their own settings."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from rich.console import Console

from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres


def add_postgres_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `postgres` for other server programs; ours by default."""
    parser.add_argument(
        "--postgres",
        type=lambda folder: Path(folder).resolve(),
        default=PROGRAMS,
        metavar="DIR",
        help="the programs of another server, which runs with its own settings",
    )


@contextmanager
def started(directory: Path, programs: Path, console: Console, *, logical: bool = False) -> Iterator[EmbeddedPostgres]:
    """Start a server for a run: ours, or other programs with their own settings; say which.

    Args:
        directory: The folder of its data.
        programs: The folder of its programs.
        console: Gets a line that names the server.
        logical: Whether its tables are captured, which no default settings allow.
    """
    with EmbeddedPostgres(directory, programs) as server:
        if programs != PROGRAMS:
            reset_settings(server, logical=logical)
        console.log(described(server))
        yield server


def reset_settings(server: EmbeddedPostgres, *, logical: bool) -> None:
    """Run a server with its default settings; only its address stays, and `wal_level` where asked."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        ours = connection.execute(
            "select name, boot_val from pg_settings where sourcefile like '%/millrace.conf' "
            "and name !~ '^(listen_addresses|unix_socket|cluster_name|timezone|log_timezone)'"
        ).fetchall()
        for name, value in ours:
            if logical and name == "wal_level":
                continue
            connection.execute(sql.SQL("alter system set {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    server.stop()
    server.start()


def described(server: EmbeddedPostgres) -> str:
    """Describe a server."""
    with psycopg.connect(server.dsn("postgres")) as connection:
        row = connection.execute(
            "select current_setting('server_version'), pg_jit_available(), current_setting('shared_buffers'), "
            "current_setting('wal_level'), current_setting('max_wal_size')"
        ).fetchone()
    version, jit, buffers, level, wal = row or ()
    return (
        f"PostgreSQL {version} of {server.programs}, JIT {'on' if jit else 'off'}, shared_buffers {buffers}, "
        f"wal_level {level}, max_wal_size {wal}"
    )
