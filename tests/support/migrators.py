"""Helpers for tests of the migrator: a database without a store, its applied migrations, waiting sessions."""

from collections.abc import Iterator

import psycopg
import pytest

from millrace.event_store.migrations import read_migrations
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.factories import rows

VERSIONS = len(read_migrations())
WAITING = "from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
def empty(postgres: EmbeddedPostgres) -> Iterator[str]:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create database empty")
        yield postgres.dsn("empty")
        admin.execute("drop database empty with (force)")


def applied(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in rows(connection, "select version from event_store.migrations order by version")]


def consume_rows(connection: psycopg.Connection) -> list[int]:
    """Consume all events of the view invoices one by one."""
    delivered = []
    while batch := rows(connection, """select decider_id, "offset" from event_store.stream_events('invoices', 5)"""):
        for decider_id, offset in batch:
            delivered.append(offset)
            connection.execute("select from event_store.ack_event('invoices', %s::text, %s)", (decider_id, offset))
    return delivered
