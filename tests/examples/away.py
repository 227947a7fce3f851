"""A database that is away for a while, as for those whose server restarts: sessions are cut, new ones are refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from millrace.resources.postgres.embedded import EmbeddedPostgres


@contextmanager
def away(postgres: EmbeddedPostgres, name: str) -> Iterator[None]:
    """Let nobody into a database during the block."""
    allow = sql.SQL("alter database {} allow_connections {}")
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(allow.format(sql.Identifier(name), sql.Literal(False)))
        try:
            admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", (name,))
            yield
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.Literal(True)))
