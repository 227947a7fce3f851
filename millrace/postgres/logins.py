"""The logins of the embedded server beside its superuser, and the databases that each may enter.

    postgres           the superuser: migrates at the start of `millrace up`, and is the operator at the command line
    millrace_drain     a member of event_store_owner, and nothing else: services, runs, sensors, Spark's tasks
    millrace_reader    reads read models and reports, and nothing else: people's own tools, by TCP with its password
    owner_of_<name>    owns one database beside the store, such as Dagster's, and may not enter another one

Members of event_store_owner own the tables of read models. A trigger or a view's function that one of them adds to such
a table runs with the rights of the drain's login: that must be neither a superuser nor the login that migrated.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from millrace.postgres.connecting import connect
from millrace.postgres.embedded import LOOPBACK, READER, SUPERUSER, EmbeddedPostgres
from millrace.settings import PACKAGE

DRAIN = "millrace_drain"
OWNERS = "event_store_owner"
ROLES = ("event_store_writer", "event_store_consumer", "event_store_reader", "event_store_personal", OWNERS)
# the server's own databases, for its superuser only
MAINTENANCE = ("postgres", "template1")
READ_MODELS = "read_models"
# the schema that reports write into; a drain may not create it in a database that it does not own
REPORTS = "reports"


def prepare_store(postgres: EmbeddedPostgres, database: str) -> None:
    """Make the login that drains a migrated store, and let only the store's roles connect; existing objects stay.

    All of it is made, or nothing, even after a kill.
    """
    with connect(postgres.dsn(database)) as connection, _alone(connection):
        _make_login(connection, DRAIN, "noreplication")
        connection.execute(sql.SQL("grant {} to {}").format(sql.Identifier(OWNERS), sql.Identifier(DRAIN)))
        for name in (database, *MAINTENANCE):
            _close(connection, name)
        connection.execute(
            sql.SQL("grant connect on database {} to {}").format(
                sql.Identifier(database), sql.SQL(", ").join(map(sql.Identifier, ROLES))
            )
        )
        connection.execute((PACKAGE / "sql" / "keep_locks.sql").read_bytes())
        connection.execute(
            sql.SQL("create schema if not exists {} authorization {}").format(
                sql.Identifier(REPORTS), sql.Identifier(OWNERS)
            )
        )


def let_readers_in(postgres: EmbeddedPostgres, database: str, port: int, file: Path) -> None:
    """Make the login that reads present and future read models and reports, and write its password to a file.

    Args:
        postgres: The server, which listens for the login.
        database: The migrated store.
        port: The port that the server listens on.
        file: The password file, in libpq's format; an existing password stays.
    """
    stored = file.read_text().rstrip("\n").rpartition(":")[2] if file.is_file() else None
    password = stored or secrets.token_urlsafe(24)
    with connect(postgres.dsn(database)) as connection, _alone(connection):
        _make_login(connection, READER, "noreplication")
        reader = sql.Identifier(READER)
        # so that no password gets into a log of the server
        secret = connection.pgconn.encrypt_password(password.encode(), READER.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("alter role {} password {} connection limit 20").format(reader, sql.Literal(secret)))
        connection.execute(sql.SQL("alter role {} set default_transaction_read_only = on").format(reader))
        # a forgotten query would keep the next version of a model from serving
        connection.execute(sql.SQL("alter role {} set statement_timeout = '10min'").format(reader))
        connection.execute(sql.SQL("grant connect on database {} to {}").format(sql.Identifier(database), reader))
        for schema in map(sql.Identifier, (READ_MODELS, REPORTS)):
            connection.execute(sql.SQL("grant usage on schema {} to {}").format(schema, reader))
            connection.execute(sql.SQL("grant select on all tables in schema {} to {}").format(schema, reader))
            # the roles that make tables there
            for maker in map(sql.Identifier, (SUPERUSER, OWNERS, DRAIN)):
                connection.execute(
                    sql.SQL("alter default privileges for role {} in schema {} grant select on tables to {}").format(
                        maker, schema, reader
                    )
                )
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(f"{LOOPBACK}:{port}:{database}:{READER}:{password}\n")
    fresh.replace(file)


def owned_database(postgres: EmbeddedPostgres, name: str, *, captured: bool = False) -> str:
    """Make a database that only its own login may enter, unless it exists, and return that login's DSN.

    Args:
        postgres: The server.
        name: The database's name.
        captured: Whether the login may read the changes of its tables.
    """
    postgres.create_database(name)
    with connect(postgres.dsn("postgres")) as connection, _alone(connection):
        _make_login(connection, owner_of(name), "replication" if captured else "noreplication")
        connection.execute(
            sql.SQL("alter database {} owner to {}").format(sql.Identifier(name), sql.Identifier(owner_of(name)))
        )
        _close(connection, name)
    return postgres.dsn(name, owner_of(name))


def owner_of(database: str) -> str:
    """Return the login that owns a database beside the store."""
    # Postgres cuts a name at 63 bytes
    return f"owner_of_{database}".encode()[:63].decode(errors="ignore")


def too_mighty(dsn: str, *, beside_others: bool = False) -> str | None:
    """Say why the login of a store should not drain it; None if it may. With `beside_others` it may if no others exist.

    Raises:
        psycopg.OperationalError: The server does not answer.
    """
    with connect(dsn) as connection:
        ((user, superuser, owns, others),) = connection.execute(
            """
            select
              rolname, rolsuper,
              coalesce(
                (select pg_has_role(rolname, nspowner, 'member') from pg_namespace where nspname = 'event_store'), false),
              exists (
                select from pg_roles o cross join pg_roles m
                where o.rolname = %s and m.rolcanlogin and not m.rolsuper and m.rolname <> me.rolname
                  and pg_has_role(m.oid, o.oid, 'member'))
            from pg_roles me
            -- not current_user: a function that runs under another role may take the login's own again
            where rolname = session_user
            """,
            (OWNERS,),
        ).fetchall()
    if not (superuser or owns) or (beside_others and not others):
        return None
    why = "is a superuser" if superuser else "owns the schema event_store"
    return (
        f"The login {user} of the store {why}: triggers of any event_store_owner on read models run with its rights."
        " Give drains a login of their own, see docs/operating.md."
    )


@contextmanager
def _alone(connection: psycopg.Connection) -> Iterator[None]:
    """Change roles and rights in one transaction; concurrent changes wait, or Postgres would fail one of them."""
    with connection.transaction():
        # a lock for the whole server, which only a superuser can take
        connection.execute("lock table pg_catalog.pg_authid in share row exclusive mode")
        yield


def _make_login(connection: psycopg.Connection, name: str, replication: LiteralString) -> None:
    login = sql.Identifier(name)
    if connection.execute("select from pg_roles where rolname = %s", (name,)).fetchone() is None:
        connection.execute(sql.SQL("create role {}").format(login))
    rights = sql.SQL("alter role {} login nosuperuser nocreatedb nocreaterole nobypassrls " + replication)
    connection.execute(rights.format(login))


def _close(connection: psycopg.Connection, database: str) -> None:
    connection.execute(sql.SQL("revoke connect on database {} from public").format(sql.Identifier(database)))
