"""Calling SQL functions over a connection of the caller's: what every client of the event store is made of.

Belongs here: sending one call, its rows as dataclasses, its refusal as an exception. Not here: which functions there
are; those are in `client` and in the `store` of producers, captures, archive and backup.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import ClassVar, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import RowFactory, class_row, scalar_row
from psycopg.types.datetime import TimestamptzLoader

from millrace.resources.event_store.refusals import refusals

Row = TypeVar("Row")


class InfinityLoader(TimestamptzLoader):
    """Reads Postgres' infinite timestamps as the ends of Python's range."""

    def load(self, data: Buffer) -> datetime:
        """Return the time; the first or the last of all for an infinite one."""
        text = bytes(data)
        if text == b"-infinity":
            return datetime.min.replace(tzinfo=UTC)
        if text == b"infinity":
            return datetime.max.replace(tzinfo=UTC)
        return super().load(data)


class SqlFunctions:
    """Calls over one connection, which stays the caller's: its transactions, its settings, the loaders of its queries.

    Attributes:
        connection: Where the calls go.
        loaders: How values of some types are read, by the type's name.
    """

    loaders: ClassVar[Mapping[str, type[Loader]]] = {"timestamptz": InfinityLoader}

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def _all(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the rows of a call in order, as a dataclass."""
        return self._fetched(class_row(row), query, arguments)

    def _one(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only row of a call, as a dataclass."""
        (only,) = self._all(row, query, arguments)
        return only

    def _first(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row | None:
        """Return the first row of a call, as a dataclass; None without rows."""
        return next(iter(self._all(row, query, arguments)), None)

    def _values(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the values of a call whose rows have one column, in order."""
        values = self._fetched(scalar_row, query, arguments)
        assert all(isinstance(value, kind) for value in values)
        return values

    def _value(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only value of a call; that of a function without a result is an empty text."""
        (only,) = self._values(kind, query, arguments)
        return only

    def _fetched(self, shape: RowFactory[Row], query: str, arguments: tuple[object, ...]) -> list[Row]:
        with refusals(), self.connection.cursor(row_factory=shape) as cursor:
            for name, loader in self.loaders.items():
                # of this cursor only: the connection, and so the caller's own queries, stay as they are
                cursor.adapters.register_loader(name, loader)
            return cursor.execute(query.encode(), arguments).fetchall()
