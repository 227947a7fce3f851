"""Event stores for tests: emptied after a test and reused; copied anew if a test left more than rows.

An emptied database is cheaper than a new one: no files are copied and removed, and sessions keep their compiled
functions. A test notices no difference: leftovers other than rows (tables, functions, grants, statistics, replication
slots, prepared transactions) show in the catalog, and such a database is dropped.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql

from millrace.postgres.embedded import EmbeddedPostgres

# Sessions that wait for the next test. Most tests need one or two.
KEPT = 3
# Resets everything that a session can have changed, except its compiled functions.
SESSION: LiteralString = """
    close all; set session authorization default; reset all; deallocate all; unlisten *;
    select pg_advisory_unlock_all(); discard temp; discard sequences; discard plans;
    select pg_stat_force_next_flush()
"""
# One row that is equal for two databases that differ only in rows of tables. A truncated table has other files, so only
# the declared columns of `pg_class` count.
CATALOG: LiteralString = (
    "select (select sum(hashtext(row(oid, relname, relnamespace, relowner, relkind, relpersistence, relhastriggers,"
    " relrowsecurity, relacl, reloptions)::text)::numeric) from pg_class where relkind not in ('t', 'i')),"
    " (select count(*) from pg_replication_slots where database = current_database()),"
    " (select count(*) from pg_prepared_xacts where database = current_database()),"
    " (select count(*) from pg_db_role_setting where setdatabase ="
    "   (select oid from pg_database where datname = current_database())), "
    + ", ".join(
        f"(select count(*) || ':' || sum(xmin::text::numeric) from pg_{name})"
        for name in (
            "attrdef", "attribute", "cast", "constraint", "default_acl", "event_trigger", "extension", "index",
            "inherits", "largeobject_metadata", "namespace", "operator", "policy", "proc", "publication",
            "publication_rel", "rewrite", "sequence", "statistic", "statistic_ext", "trigger", "type",
        )
    )
)  # fmt: skip
OURS: LiteralString = "('event_store'::regnamespace, 'event_store_keys'::regnamespace, 'read_models'::regnamespace)"
# The tables with rows, and the tables that refer to them: none can be truncated without the others.
FILLED: LiteralString = f"""
    with recursive filled as (
      select oid from pg_class where relkind = 'r' and relnamespace in {OURS} and pg_relation_size(oid) > 0
      union select conrelid from pg_constraint join filled on confrelid = filled.oid where contype = 'f'
    )
    select array_agg(oid::regclass::text order by oid) from filled
"""
SEQUENCES: LiteralString = f"""
    select c.oid::regclass::text, coalesce(pg_sequence_last_value(c.oid), s.seqstart),
      pg_sequence_last_value(c.oid) is not null
    from pg_class c join pg_sequence s on s.seqrelid = c.oid where c.relnamespace in {OURS} order by 1
"""


@dataclass(frozen=True)
class Contents:
    """The template's contents: its catalog, the rows of its tables, the values of its sequences."""

    catalog: tuple[Any, ...]
    tables: dict[str, bytes]
    sequences: list[tuple[Any, ...]]


@dataclass
class Database:
    name: str
    # for each table in which the template has rows, the present versions of these rows
    versions: dict[str, tuple[Any, ...]]
    idle: list[psycopg.Connection] = field(default_factory=list)
    used: list[psycopg.Connection] = field(default_factory=list)


class Databases:
    """Event stores of one server. A thread makes and drops them, ahead of their use and behind it."""

    def __init__(self, server: EmbeddedPostgres, template: str) -> None:
        self._server, self._template = server, template
        self._worker = ThreadPoolExecutor(1, "databases")
        self._numbers = count()
        self._emptied: list[Database] = []
        self._ahead: Future[str] | None = None
        with self._open(template) as connection:
            tables = {name: _copied(connection, name) for name in connection.execute(FILLED).fetchone()[0]}  # type: ignore[index]
            self._contents = Contents(
                connection.execute(CATALOG).fetchone() or (),
                {name: rows for name, rows in tables.items() if rows},
                connection.execute(SEQUENCES).fetchall(),
            )
            self._versions = self._versions_of(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, trace: TracebackType | None) -> None:
        for database in self._emptied:
            _close(database.idle)
        self._worker.shutdown()

    def take(self) -> Database:
        """Return an empty event store that no other test uses."""
        return self._emptied.pop() if self._emptied else Database(self.spare(), self._versions)

    def spare(self) -> str:
        """Return the name of a new event store, which is not given back. The next one is copied meanwhile."""
        made = (self._ahead or self._worker.submit(self._make)).result()
        self._ahead = self._worker.submit(self._make)
        return made

    def connect(self, database: Database, *, autocommit: bool) -> psycopg.Connection:
        """Open a session; one left by an earlier test is as good as new."""
        connection = database.idle.pop() if database.idle else self._open(database.name)
        connection.autocommit = autocommit
        database.used.append(connection)
        return connection

    def give_back(self, database: Database) -> None:
        """End a test's sessions and transactions, and empty the store, or drop it."""
        database.idle += [renewed for each in database.used if (renewed := _renewed(each))]
        database.used = []
        with suppress(psycopg.Error):
            if self._empty(database):
                _close(database.idle[KEPT:])
                del database.idle[KEPT:]
                self._emptied.append(database)
                return
        _close(database.idle)
        self._worker.submit(self._drop, database.name)

    def _empty(self, database: Database) -> bool:
        if not database.idle:
            database.idle.append(self._open(database.name))
        connection = database.idle[0]
        ours = [each.info.backend_pid for each in database.idle]
        connection.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> all(%s)",
            (ours,),
        )
        if connection.execute(CATALOG).fetchone() != self._contents.catalog:
            return False
        kept = self._versions_of(connection)
        same = {name for name, version in kept.items() if version == database.versions[name]}
        (filled,) = connection.execute(FILLED).fetchone() or (None,)
        names = [name for name in filled or () if name not in same]
        # events refuse to be deleted; a replica's session fires no trigger
        connection.execute("set session_replication_role = replica")
        if names:
            connection.execute(f"truncate {', '.join(names)} cascade".encode())
        for name, (number, _) in self._versions_of(connection).items():
            if not number:
                with connection.cursor().copy(f"copy {name} from stdin".encode()) as copy:
                    copy.write(self._contents.tables[name])
        for name, last, called in connection.execute(SEQUENCES).fetchall():
            was = next(each for each in self._contents.sequences if each[0] == name)
            if (name, last, called) != was:
                connection.execute("select setval(%s, %s, %s)", was)
        connection.execute("reset session_replication_role")
        database.versions = self._versions_of(connection)
        return True

    def _versions_of(self, connection: psycopg.Connection) -> dict[str, tuple[Any, ...]]:
        asked = "select count(*), sum(xmin::text::numeric) from "
        return {name: connection.execute(f"{asked}{name}".encode()).fetchall()[0] for name in self._contents.tables}

    def _open(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self._server.dsn(name), autocommit=True)

    def _make(self) -> str:
        name = f"test_{next(self._numbers)}"
        with self._open("postgres") as admin:
            made = sql.SQL("create database {} template {} strategy file_copy")
            admin.execute(made.format(sql.Identifier(name), sql.Identifier(self._template)))
        return name

    def _drop(self, name: str) -> None:
        with self._open("postgres") as admin:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _copied(connection: psycopg.Connection, table: str) -> bytes:
    with connection.cursor().copy(f"copy {table} to stdout".encode()) as rows:
        return b"".join(rows)


def _renewed(connection: psycopg.Connection) -> psycopg.Connection | None:
    """Return the session in a new connection object, without a test's settings; None if it has ended."""
    with suppress(psycopg.Error):
        connection.rollback()
        session = connection.pgconn
        renewed = psycopg.Connection(session)
        renewed.autocommit = True
        renewed.execute(SESSION)
        del connection.pgconn
        return renewed
    connection.close()
    return None


def _close(connections: list[psycopg.Connection]) -> None:
    for connection in connections:
        connection.close()
