"""The identity of a database, which its copies do not share."""

from collections.abc import Callable

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres


def test_two_copies_of_a_database_are_two_databases(
    store: PlatformStore, postgres: EmbeddedPostgres, spares: Callable[[], str]
) -> None:
    original = store.database_identity()
    assert original.database == store.connection.info.dbname
    with psycopg.connect(postgres.dsn(spares()), autocommit=True) as connection:
        copied = PlatformStore(connection).database_identity()
    assert copied.system_identifier == original.system_identifier
    assert copied.database_oid != original.database_oid
