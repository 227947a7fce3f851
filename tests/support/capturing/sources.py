"""Source databases for tests of captures: each with a slot and a publication of all its tables."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import psycopg
import pytest

from millrace.capture.decoding.pgoutput import Message, decode
from millrace.postgres.embedded import EmbeddedPostgres

_numbers = count()


class Source:
    """A database with `wal_level` logical and a session in it, still without its slot and publication."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.slot = name
        self.connection = psycopg.connect(dsn, autocommit=True, client_encoding="utf8")

    def run(self, *statements: str) -> None:
        """Execute each statement in its own transaction; several in one text share one."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def listen(self) -> None:
        """Publish all tables, and retain changes from now on."""
        publication = f"create publication {self.slot} for all tables with (publish_via_partition_root)"
        self.connection.execute(publication.encode())
        self.connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,))

    def take(self) -> list[bytes]:
        """Consume the messages since the last call."""
        found = self.connection.execute(
            "select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1',"
            " 'publication_names', %s, 'messages', 'true')",
            (self.slot, self.slot),
        )
        return [row[0] for row in found]

    def messages(self) -> list[Message]:
        return [decode(raw) for raw in self.take()]


@pytest.fixture
def new_source(postgres: EmbeddedPostgres) -> Iterator[Callable[[], Source]]:
    """Return a function that makes sources; they and their slots are gone when the test ends."""
    made: list[Source] = []

    def make(encoding: str | None = None) -> Source:
        name = f"source_{next(_numbers)}"
        if encoding is None:
            postgres.create_database(name)
        else:
            with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
                create = f"create database {name} template template0 encoding '{encoding}' locale 'C'"
                admin.execute(create.encode())
        made.append(Source(postgres.dsn(name), name))
        return made[-1]

    yield make
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        for source in made:
            source.connection.close()
            own = ("from pg_replication_slots where database = %s", (source.slot,))
            admin.execute(f"select pg_terminate_backend(active_pid, 20000) {own[0]}".encode(), own[1])
            with suppress(psycopg.errors.UndefinedObject):
                admin.execute(f"select pg_drop_replication_slot(slot_name) {own[0]}".encode(), own[1])
            admin.execute(f"drop database {source.slot} with (force)".encode())


@pytest.fixture
def source(new_source: Callable[[], Source]) -> Source:
    return new_source()
