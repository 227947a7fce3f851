"""Which database this is, and no copy of it."""

import psycopg

from millrace.resources.event_store import EventStore
from millrace.resources.postgres.embedded import EmbeddedPostgres


def test_a_copy_of_a_database_is_another_one(store: EventStore, postgres: EmbeddedPostgres) -> None:
    original = store.database_identity()
    assert original.database == store.connection.info.dbname
    store.connection.close()
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"create database copied template {original.database}".encode())
        try:
            with psycopg.connect(postgres.dsn("copied"), autocommit=True) as connection:
                copied = EventStore(connection).database_identity()
        finally:
            admin.execute("drop database copied with (force)")
    assert copied.system_identifier == original.system_identifier
    assert copied.database_oid != original.database_oid
