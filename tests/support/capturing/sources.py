"""Databases whose changes are captured, for tests: each with a slot and a publication of all its tables.

Belongs here: a source and its stream, read with the server's own functions. Not here: our own reader
(`capture.source.slot`), which tests try.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import psycopg
import pytest

from millrace.resources.capture.decoding.pgoutput import Message, decode
from millrace.resources.postgres.embedded import EmbeddedPostgres

_numbers = count()


class Source:
    """A database with `wal_level` logical and a session in it.

    Attributes:
        slot: The name for its slot, and for its publication, which nobody made yet.
    """

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.slot = name
        self.connection = psycopg.connect(dsn, autocommit=True, client_encoding="utf8")

    def run(self, *statements: str) -> None:
        """Do each statement in a transaction of its own; several in one text share one."""
        for statement in statements:
            self.connection.execute(statement.encode())

    def listen(self) -> None:
        """Publish all tables, and keep what happens from now on."""
        self.connection.execute(
            f"create publication {self.slot} for all tables with (publish_via_partition_root)".encode()
        )
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
        """Consume the messages since the last call, decoded."""
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
            admin.execute(
                "select pg_terminate_backend(active_pid, 20000) from pg_replication_slots where database = %s",
                (source.slot,),
            )
            with suppress(psycopg.errors.UndefinedObject):
                admin.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                    (source.slot,),
                )
            admin.execute(f"drop database {source.slot} with (force)".encode())


@pytest.fixture
def source(new_source: Callable[[], Source]) -> Source:
    """Make a source."""
    return new_source()
