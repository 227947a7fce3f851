"""Brings a database to the schema of this code: numbered migrations once each, then the functions.

Belongs here: running `sql/`. Not here: any SQL of the schema itself.

A migration and its row in `event_store.migrations` commit together, the row first: of several migrators the first one wins
and the others wait for it and find it done. Killed anywhere, the next call goes on after the last committed migration.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import psycopg

from resources.errors import SchemaMismatch
from resources.settings import PROJECT

SQL = PROJECT / "sql"

_BOOTSTRAP = """
select pg_advisory_xact_lock(hashtextextended('event_store.migrations', 0));
create schema if not exists event_store;
comment on schema event_store is 'Events, their order, and who has consumed them.';
create table if not exists event_store.migrations (
  version int not null,
  name text not null,
  applied_at timestamptz not null default clock_timestamp(),
  constraint migrations_pkey primary key (version)
);
comment on table event_store.migrations is 'Which migrations are applied. Version 0 stands for the functions; its name is their hash.';
comment on column event_store.migrations.version is 'The migration''s number.';
comment on column event_store.migrations.name is 'The migration''s file, or the hash of the functions for version 0.';
comment on column event_store.migrations.applied_at is 'When it was applied.';
"""


@dataclass(frozen=True)
class Migration:
    """One numbered file of `sql/migrations`."""

    version: int
    name: str
    sql: str


@dataclass(frozen=True)
class MigrationReport:
    """What one call of `migrate` did."""

    applied: tuple[str, ...]
    functions_replaced: bool
    version: int


def known_migrations(directory: Path = SQL / "migrations") -> list[Migration]:
    """List the migrations of this code in order.

    Raises:
        SchemaMismatch: The numbers are not 1, 2, 3, …
    """
    migrations = [
        Migration(int(path.stem.split("_", 1)[0]), path.stem, path.read_text())
        for path in sorted(directory.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    ]
    if [m.version for m in migrations] != list(range(1, len(migrations) + 1)):
        raise SchemaMismatch(
            f"The migrations in {directory} are not numbered 0001, 0002, … without gaps.",
            detail=", ".join(m.name for m in migrations),
        )
    return migrations


def _functions(directory: Path = SQL / "functions") -> tuple[str, str]:
    sql = "\n".join(path.read_text() for path in sorted(directory.glob("*.sql")))
    return sql, hashlib.sha256(sql.encode()).hexdigest()


def migrate(dsn: str, *, log_partitions: int = 16) -> MigrationReport:
    """Bring the database to the schema of this code; a database that is up to date is left as it is.

    Args:
        dsn: The database.
        log_partitions: The number of log partitions of a new database. An existing one keeps its number.

    Raises:
        SchemaMismatch: The database is newer than the code, or has another number of log partitions.
    """
    migrations = known_migrations()
    functions, functions_hash = _functions()
    applied = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for migration in migrations:
            with connection.transaction():
                connection.execute(_BOOTSTRAP)
                _refuse_newer(connection, len(migrations))
                cursor = connection.execute(
                    "insert into event_store.migrations (version, name) values (%s, %s) on conflict do nothing",
                    (migration.version, migration.name),
                )
                if cursor.rowcount:
                    connection.execute(
                        "select set_config('event_store.log_partitions', %s, true)", (str(log_partitions),)
                    )
                    connection.execute(migration.sql.encode())
                    applied.append(migration.name)
        with connection.transaction():
            connection.execute(_BOOTSTRAP)
            stale = connection.execute(
                """
                insert into event_store.migrations as m (version, name) values (0, %s)
                on conflict (version) do update set name = excluded.name, applied_at = excluded.applied_at
                where m.name <> excluded.name
                """,
                (functions_hash,),
            ).rowcount
            if stale:
                # functions call each other, in files sorted by name
                connection.execute("set local check_function_bodies = off")
                connection.execute(functions.encode())
        _require_log_partitions(connection, log_partitions)
    return MigrationReport(tuple(applied), bool(stale), len(migrations))


def validate(dsn: str) -> None:
    """Check that the database has exactly the schema of this code, changing nothing.

    Raises:
        SchemaMismatch: It is behind, ahead, or has other functions; the hint names the remedy.
    """
    migrations = known_migrations()
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select to_regclass('event_store.migrations') is not null").fetchone()
        applied: dict[int, str] = {}
        if row and row[0]:
            applied = dict(connection.execute("select version, name from event_store.migrations").fetchall())
            _refuse_newer(connection, len(migrations))
    missing = [m.name for m in migrations if m.version not in applied]
    if missing:
        raise SchemaMismatch(
            "The database is behind the code.", detail=f"missing: {', '.join(missing)}", hint="Run: millrace migrate"
        )
    if applied.get(0) != _functions()[1]:
        raise SchemaMismatch("The database has functions of another version of the code.", hint="Run: millrace migrate")


def _refuse_newer(connection: psycopg.Connection, version: int) -> None:
    row = connection.execute("select max(version) from event_store.migrations").fetchone()
    found = row[0] if row and row[0] is not None else 0
    if found > version:
        raise SchemaMismatch(
            "The database is newer than this code.",
            detail=f"database: version {found}; code: version {version}",
            hint="Update Millrace on this machine.",
        )


def _require_log_partitions(connection: psycopg.Connection, expected: int) -> None:
    row = connection.execute("select count(*) from event_store.partitions").fetchone()
    if row is None or row[0] != expected:
        raise SchemaMismatch(
            f"The database has {row and row[0]} log partitions, not {expected}.",
            detail="Their number is fixed when a database is made.",
            hint=f"Set MILLRACE_LOG_PARTITIONS={row and row[0]}.",
        )
