"""Brings a database to the schema of this code: numbered migrations once each, then roles, functions and privileges.

A migration and its row in `event_store.migrations` commit together; the last one commits with the functions and the
privileges, so no session sees its tables with the old functions. After a kill at any point, the next call continues.

All functions are replaced when one of their files, `sql/roles.sql` or `sql/privileges.sql` has changed. The schemas
`event_store`, `event_store_platform` and `event_store_private` belong to Millrace: the migrator drops a function in
them that no file makes. If its trigger must go too, a migration drops the trigger.

If another session's open transaction blocks the migrator, the migrator leaves the lock queue before sessions behind it
notice, and retries for a minute. On a busy store a migration finds a gap if it first locks the tables that every
consumer's call takes first: `lock table event_store.views, event_store.sequencer in access exclusive mode`. A call that
began before the migration continues in the old function: a column that it uses is dropped one version later.

The migrator refuses to run from older code, recognized by the number of its last migration. So a release that changes
only functions has a migration too, of one comment. Until the first release a table is changed in its subject's
migration; a store made before that change is refused by the names of its migrations.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.errors import DeadlockDetected, DuplicateSchema, DuplicateTable, LockNotAvailable, UniqueViolation

from millrace.errors import MillraceError, SchemaMismatch
from millrace.patience import LOOK_S, PATIENCE_S, while_held
from millrace.postgres.connecting import connect
from millrace.settings import PACKAGE

SQL = PACKAGE / "sql"

# the default for a new database
LOG_PARTITIONS = 16
# errors of a migration that other sessions' transactions block
IN_THE_WAY = (LockNotAvailable, DeadlockDetected)
# errors of a migrator that made the table of migrations at the same time as another one
MADE_BEFORE = (DuplicateSchema, DuplicateTable, UniqueViolation)


@dataclass(frozen=True)
class Migration:
    """One numbered file of `sql/migrations`."""

    version: int
    name: str
    sql: str


@dataclass(frozen=True)
class MigrationReport:
    """The changes of one call of `migrate`."""

    applied: tuple[str, ...]
    functions_replaced: bool
    version: int


def read_migrations(directory: Path = SQL / "migrations") -> list[Migration]:
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


@dataclass(frozen=True)
class Replaceable:
    """The roles, each function's file by its name, the privileges: all are applied again when a part has changed.

    `uuid_forms` and `planner` apply to all functions: variants that take UUIDs, and settings of the planner.
    """

    roles: str
    functions: dict[str, str]
    uuid_forms: str
    planner: str
    privileges: str

    @property
    def hash(self) -> str:
        """Return a hash that differs between two versions."""
        parts = [self.roles, *self.functions.values(), self.uuid_forms, self.planner, self.privileges]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def function_files(directory: Path = SQL) -> list[Path]:
    """List the files of the functions in the order in which they are applied.

    Raises:
        SchemaMismatch: Two files have the same name.
    """
    found: dict[str, Path] = {}
    for path in sorted((directory / "functions").rglob("*.sql")):
        if found.setdefault(path.stem, path) != path:
            raise SchemaMismatch(
                f"Two files are named {path.name}.",
                detail=", ".join(str(each.relative_to(directory)) for each in (found[path.stem], path)),
                hint="A function has one file; give one of the two another name.",
            )
    return list(found.values())


def read_replaceable(directory: Path = SQL) -> Replaceable:
    """Read the roles, functions and privileges of this code."""
    return Replaceable(
        (directory / "roles.sql").read_text(),
        {path.stem: path.read_text() for path in function_files(directory)},
        (directory / "uuid_forms.sql").read_text(),
        (directory / "planner.sql").read_text(),
        (directory / "privileges.sql").read_text(),
    )


def migrate(dsn: str, *, log_partitions: int | None = LOG_PARTITIONS) -> MigrationReport:
    """Bring the database to the schema of this code; a database that is up to date is only read.

    Args:
        dsn: The database.
        log_partitions: The number of log partitions of a new database. An existing database with another number is
            refused. None accepts any number, and refuses a database without a store.

    Raises:
        SchemaMismatch: The database is not UTF8, newer than the code, older than its first release, or has another
            number of log partitions; or a foreign object depends on a function that the migrator must drop.
        MillraceError: The role lacks a right, or another session's open transaction blocked the migration for a minute.
    """
    migrations = read_migrations()
    replaceable = read_replaceable()
    applied: list[str] = []
    replaced = False
    with connect(dsn) as connection:
        _require_utf8(connection)
        found = _found(connection)
        if not found and log_partitions is None:
            raise SchemaMismatch("The database has no event store.", hint="Run: millrace migrate")
        _refuse_unreleased(found, migrations)
        if not _is_current(found, migrations, replaceable):
            todo = [m for m in migrations if m.version not in found or m is migrations[-1]]
            patiently = while_held((*IN_THE_WAY, _MadeMeanwhileError), PATIENCE_S)
            with _explained(connection):
                for migration in todo:
                    final = replaceable if migration is migrations[-1] else None
                    number = log_partitions or LOG_PARTITIONS
                    is_new, replaced = patiently(_apply, connection, migrations, migration, final, number)
                    applied += [migration.name] if is_new else []
        if log_partitions is not None:
            row = connection.execute("select count(*) from event_store.partitions").fetchone()
            if row is None or row[0] != log_partitions:
                raise SchemaMismatch(
                    f"The database has {row and row[0]} log partitions, not {log_partitions}.",
                    detail="Their number is fixed when a database is made.",
                    hint=f"Set MILLRACE_LOG_PARTITIONS={row and row[0]}.",
                )
    return MigrationReport(tuple(applied), replaced, len(migrations))


def validate(dsn: str) -> None:
    """Check that the database has exactly the schema of this code, changing nothing.

    Raises:
        SchemaMismatch: The database is behind, ahead, or has other functions; the hint names the remedy.
    """
    migrations = read_migrations()
    with connect(dsn) as connection:
        found = _found(connection)
    _refuse_unreleased(found, migrations)
    _refuse_newer(found, migrations)
    missing = [m.name for m in migrations if m.version not in found]
    if missing:
        raise SchemaMismatch(
            "The database is behind the code.", detail=f"missing: {', '.join(missing)}", hint="Run: millrace migrate"
        )
    if not _is_current(found, migrations, read_replaceable()):
        raise SchemaMismatch("The database has functions of another version of the code.", hint="Run: millrace migrate")


def _require_utf8(connection: psycopg.Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"The database is encoded as {encoding}; an event store must be UTF8.",
            detail=f"An event may have any text, and {encoding} does not hold every one.",
            hint="Make one: create database … encoding 'UTF8' template template0. A store that is in this database moves"
            " there by a backup, taken with the code that made it, and a restore.",
        )


def _found(connection: psycopg.Connection) -> dict[int, str]:
    """Read the database's migrations by number, and under 0 the hash of its functions."""
    # not to_regclass: after waiting for a lock it may still answer from the session's cache
    book = connection.execute("select from pg_tables where schemaname = 'event_store' and tablename = 'migrations'")
    if book.fetchone() is None:
        return {}
    return dict(connection.execute("select version, name from event_store.migrations").fetchall())


def _is_current(found: dict[int, str], migrations: list[Migration], replaceable: Replaceable) -> bool:
    return found.keys() == {0, *(m.version for m in migrations)} and found[0] == replaceable.hash


class _MadeMeanwhileError(Exception):
    """Another migrator made the table of migrations while this one waited for it."""


def _apply(
    connection: psycopg.Connection,
    migrations: list[Migration],
    migration: Migration,
    final: Replaceable | None,
    log_partitions: int,
) -> tuple[bool, bool]:
    """Apply a missing migration, and with the last one the replaceable parts; return whether each was necessary.

    All happens in one transaction, one migrator at a time, on a store that this code may change.
    """
    with connection.transaction():
        if not _found(connection):
            try:
                connection.execute((SQL / "bookkeeping.sql").read_bytes())
            except MADE_BEFORE as error:
                raise _MadeMeanwhileError from error
        # a table lock needs a right to the table; any login could hold an advisory lock
        connection.execute("lock table event_store.migrations in exclusive mode")
        found = _found(connection)
        _refuse_unreleased(found, migrations)
        _refuse_newer(found, migrations)
        # below Postgres' deadlock_timeout: in a deadlock with another session the migrator gives way
        connection.execute("select set_config('lock_timeout', %s, true)", (f"{LOOK_S}s",))
        cursor = connection.execute(
            "insert into event_store.migrations (version, name) values (%s, %s) on conflict do nothing",
            (migration.version, migration.name),
        )
        is_new = cursor.rowcount == 1
        if is_new:
            connection.execute("select set_config('event_store.log_partitions', %s, true)", (str(log_partitions),))
            connection.execute(migration.sql.encode())
        return is_new, final is not None and _replace(connection, final)


def _replace(connection: psycopg.Connection, replaceable: Replaceable) -> bool:
    """Replace functions and privileges by those of this code; return whether they differed."""
    stale = connection.execute(
        """
        insert into event_store.migrations as m (version, name) values (0, %s)
        on conflict (version) do update set name = excluded.name, applied_at = excluded.applied_at
        where m.name <> excluded.name
        returning xmax <> '0'::xid -- whether there was another version before
        """,
        (replaceable.hash,),
    ).fetchall()
    if not stale:
        return False
    connection.execute(replaceable.roles.encode())
    # functions call each other, in files of any order
    connection.execute("set local check_function_bodies = off")
    before = _routines(connection)
    for name, sql in replaceable.functions.items():
        try:
            with connection.transaction():
                connection.execute(sql.encode())
        except psycopg.errors.InvalidFunctionDefinition:
            # Postgres cannot replace a function with another result or other argument names: drop it. All others are
            # replaced, not dropped: a session that has just looked a function up would miss it.
            _drop(connection, [routine for routine in before if routine.name == name])
            connection.execute(sql.encode())
    connection.execute(replaceable.uuid_forms.encode())
    after = _routines(connection)
    _drop(connection, before & after)
    connection.execute(replaceable.planner.encode())
    connection.execute(replaceable.privileges.encode())
    if stale == [(True,)]:
        connection.execute(
            "select event_store_private.audit('migrate', null, null, jsonb_build_object('functions', %s::text))",
            (replaceable.hash,),
        )
    return True


@dataclass(frozen=True)
class _Routine:
    """A stored function; replacing it changes `row`, also within one transaction."""

    name: str
    signature: str
    row: str


def _routines(connection: psycopg.Connection) -> set[_Routine]:
    found = connection.execute(
        """
        select proname, oid::regprocedure::text, ctid::text
        from pg_proc
        where pronamespace::regnamespace::text in ('event_store', 'event_store_platform', 'event_store_private')
        """
    )
    return {_Routine(*row) for row in found}


def _drop(connection: psycopg.Connection, routines: Iterable[_Routine]) -> None:
    for routine in sorted(routines, key=lambda routine: routine.signature):
        try:
            with connection.transaction():
                connection.execute(f"drop routine {routine.signature}".encode())
        except psycopg.errors.DependentObjectsStillExist as error:
            raise SchemaMismatch(
                f"The function {routine.signature} of an older version must go, but something needs it.",
                detail=error.diag.message_detail,
                hint="Drop what needs it, run `millrace migrate` again, and make it anew.",
            ) from error


@contextmanager
def _explained(connection: psycopg.Connection) -> Iterator[None]:
    """Turn Postgres' errors about missing rights and blocking sessions into errors with a remedy."""
    try:
        yield
    except IN_THE_WAY as error:
        raise MillraceError(
            "The schema was not changed: an open transaction is in the way.",
            detail=f"Postgres says: {error.diag.message_primary}; {error.diag.context}",
            hint="End it, or stop the services that use the store, then run `millrace migrate` again. To find it: "
            "select pid, xact_start, state, query from pg_stat_activity where datname = current_database() "
            "order by xact_start",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise MillraceError(
            f"The role {connection.info.user} may not bring the database to the schema of this code.",
            detail=f"Postgres says: {error.diag.message_primary}.",
            hint="Run `millrace migrate` as the owner of the schema event_store; it also needs CREATEROLE while the roles of "
            "sql/roles.sql are missing, or an administrator makes those roles first.",
        ) from error


def _refuse_unreleased(found: dict[int, str], migrations: list[Migration]) -> None:
    for migration in migrations:
        name = found.get(migration.version, migration.name)
        if name != migration.name:
            raise SchemaMismatch(
                "The database was made by an unreleased version of Millrace.",
                detail=f"its migration {migration.version} is {name}, and not {migration.name}",
                hint="Take a backup with the code that made it (millrace backup), and restore it with this code into a new "
                "database (millrace restore).",
            )


def _refuse_newer(found: dict[int, str], migrations: list[Migration]) -> None:
    version = max(found, default=0)
    if version > len(migrations):
        raise SchemaMismatch(
            "The database is newer than this code.",
            detail=f"database: version {version}; code: version {len(migrations)}",
            hint="Update Millrace on this machine.",
        )
