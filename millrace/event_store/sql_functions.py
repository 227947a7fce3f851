"""Calling SQL functions over the caller's connection, or a pool: the base of every client of the store."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from msgspec import Struct, structs
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import BaseRowFactory, scalar_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from millrace.event_store.refusals import refusals
from millrace.postgres.connecting import require_iso

if TYPE_CHECKING:
    from psycopg._cursor_base import BaseCursor
    from psycopg_pool import ConnectionPool

    from millrace.personal.sealer import Sealer

Row = TypeVar("Row")
Loaders = Mapping[str, type[Loader]]

# a cursor with a larger result is not kept, so that its rows can be freed
MOST_KEPT_ROWS = 1000
# ask only after this many calls over a connection whether the session behind it is always the same
CHECK_AFTER_CALLS = 5
# the answer; before the question, the number of calls
can_prepare = WeakKeyDictionary[psycopg.Connection | psycopg.AsyncConnection, bool | int]()


class InfinityLoader(TimestamptzLoader):
    """Reads Postgres' infinite timestamps as the ends of Python's range."""

    def load(self, data: Buffer) -> datetime:
        """Return the time; the first or the last of Python's range for an infinite one."""
        text = bytes(data)
        if text == b"-infinity":
            return datetime.min.replace(tzinfo=UTC)
        if text == b"infinity":
            return datetime.max.replace(tzinfo=UTC)
        return super().load(data)


class SqlFunctions:
    """Calls over the caller's connection, without changing its transactions, its settings or its queries' loaders.

    With a pool each call takes a connection from it, and is a transaction of its own.

    Attributes:
        sealer: Seals personal values of appended events, and opens them in those that are read.
        loaders: The loaders for values of some types, by the type's name.
    """

    loaders: ClassVar[Loaders] = {"timestamptz": InfinityLoader}

    def __init__(self, connection: "psycopg.Connection | ConnectionPool", *, sealer: "Sealer | None" = None) -> None:
        self._source, self.sealer = connection, sealer
        # idle cursors of the connection: making one and registering its loaders takes as long as a call
        self._cursors = defaultdict[tuple[BaseRowFactory[Any], str], list[psycopg.Cursor[Any]]](list)

    @property
    def connection(self) -> psycopg.Connection:
        """The connection that all calls use.

        Raises:
            TypeError: The calls go to a pool, which gives each call another connection.
        """
        if not isinstance(self._source, psycopg.Connection):
            raise TypeError("Its calls go to a pool: on_one_connection() gives a store that has one connection.")
        return self._source

    @contextmanager
    def on_one_connection(self) -> Iterator[Self]:
        """Yield a store with all calls on one connection: this store's, or one that the pool lends for this block.

        A pool commits at the end of the block, or rolls back if it raises, as `ConnectionPool.connection` says.
        """
        with self._connected() as connection:
            yield self if connection is self._source else type(self)(connection, sealer=self.sealer)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Keep an open transaction of the connection usable after a refusal in this block."""
        if self._status == psycopg.pq.TransactionStatus.INTRANS:
            with self.connection.transaction():
                yield
        else:
            yield

    @property
    def _status(self) -> psycopg.pq.TransactionStatus | None:
        return self._source.info.transaction_status if isinstance(self._source, psycopg.Connection) else None

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        if isinstance(self._source, psycopg.Connection):
            yield self._source
        else:
            with self._source.connection() as connection:
                yield connection

    def _all(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the rows of a call in order, as objects of a row class."""
        return self._fetched(shape_of(row), query, arguments, loaders_of(row, self.loaders))

    def _one(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only row of a call, as an object of a row class."""
        (only,) = self._all(row, query, arguments)
        return only

    def _first(self, row: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row | None:
        """Return the first row of a call, as an object of a row class; None without rows."""
        return next(iter(self._all(row, query, arguments)), None)

    def _values(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> list[Row]:
        """Return the values of a call with a single column, in order."""
        values = self._fetched(scalar_row, query, arguments, self.loaders)
        assert all(isinstance(value, kind) for value in values)
        return values

    def _value(self, kind: type[Row], query: str, arguments: tuple[object, ...] = ()) -> Row:
        """Return the only value of a call; a function without a result gives an empty text."""
        (only,) = self._values(kind, query, arguments)
        return only

    def _fetched(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders | None
    ) -> list[Row]:
        with refusals():
            return self._rows(shape, query, arguments, loaders)

    def _rows(
        self, shape: BaseRowFactory[Row], query: str, arguments: tuple[object, ...], loaders: Loaders | None
    ) -> list[Row]:
        with self._connected() as connection:
            require_iso(connection)
            cursors = self._cursors[shape, connection.info.encoding] if connection is self._source else []
            # threads and tasks may call concurrently: each takes its own cursor
            cursor = cursors.pop() if cursors else self._cursor(connection, shape, loaders)
            # an int sent as text gets the parameter's type, or is refused as out of range
            parameters = tuple([str(value) if type(value) is int else value for value in arguments])
            self._execute(cursor, encoded(query), parameters, None if self._can_prepare(connection) else False)
            rows = cursor.fetchall()
            if len(rows) <= MOST_KEPT_ROWS:
                cursors += [cursor]
            return rows

    def _execute(
        self, cursor: psycopg.Cursor[Any], query: bytes, parameters: Sequence[object], prepare: bool | None
    ) -> None:
        cursor.execute(query, parameters, prepare=prepare)

    def _cursor(
        self, connection: psycopg.Connection, shape: BaseRowFactory[Row], loaders: Loaders | None
    ) -> psycopg.Cursor[Row]:
        cursor = connection.cursor(row_factory=shape, binary=loaders is None)
        for name, loader in (loaders or {}).items():
            # for this cursor only: the connection, and so the caller's own queries, stay as they are
            cursor.adapters.register_loader(name, loader)
        return cursor

    def _can_prepare(self, connection: psycopg.Connection) -> bool:
        """Say whether statements may be prepared: behind a pool such as pgbouncer the next session would not know them.

        A server tells a new connection its process id; a pool cannot. Few calls are not worth the question.
        """
        cached = can_prepare.get(connection, 0)
        if isinstance(cached, bool):
            return cached
        can_prepare[connection] = cached + 1
        if cached < CHECK_AFTER_CALLS:
            return False
        with connection.cursor(row_factory=scalar_row) as cursor:
            cursor.execute("select pg_backend_pid()", prepare=False)
            can_prepare[connection] = allowed = cursor.fetchall() == [connection.info.backend_pid]
        return allowed


@cache
def encoded(query: str) -> bytes:
    """Return a query as bytes, the same object each time: so a cursor recognizes the query that it sent last."""
    return query.encode()


def shape_of(row: type[Row]) -> BaseRowFactory[Row]:
    """Return psycopg's row factory for a row class; its field `<name>_json` gets the column `<name>`."""
    row_class: Any = row
    return _shape(row_class)


@cache
def _shape(row: Any) -> BaseRowFactory[Any]:  # noqa: ANN401 - as _json_fields
    def factory(cursor: "BaseCursor[Any, Any]") -> Callable[[Sequence[Any]], Any]:
        result = cursor.pgresult
        return _maker(row, tuple([result.fname(n) for n in range(result.nfields)]) if result else ())

    return factory


@cache
def _maker(row: Any, names: tuple[bytes | None, ...]) -> Callable[[Sequence[Any]], Any]:  # noqa: ANN401 - as _json_fields
    """Return a function that makes a row from the values of columns; a newer store may return more columns."""
    texts, columns = _json_fields(row), [(name or b"").decode() for name in names]
    place = {texts.get(name, name): number for number, name in enumerate(columns)}
    defaults = _fields(row)
    if missing := [name for name, default in defaults.items() if default is MISSING and name not in place]:
        raise TypeError(f"The columns {', '.join(columns)} lack some of {row.__name__}: {', '.join(missing)}.")
    if tuple(place) == tuple(defaults)[: len(place)]:
        return lambda values: row(*values)
    absent = [name for name in defaults if name not in place]
    filled = tuple(defaults[name] for name in absent)
    place |= {name: len(columns) + number for number, name in enumerate(absent)}
    chosen = itemgetter(*[place[name] for name in defaults])
    return lambda values: row(*chosen((*values, *filled)))


def _fields(row: Any) -> dict[str, Any]:  # noqa: ANN401 - as _json_fields
    """Return the fields of a dataclass or a struct with their defaults, `MISSING` for none."""
    if not issubclass(row, Struct):
        return {field.name: field.default for field in fields(row)}
    return {field.name: MISSING if field.required else field.default for field in structs.fields(row)}


def loaders_of(row: type, loaders: Loaders) -> Loaders | None:
    """Return the loaders for a row class: JSON stays text if the class parses it on access.

    None: in binary, with the driver's own loaders; then the query selects JSON as text.
    """
    if getattr(row, "in_binary", False):
        return None
    return {**loaders, "jsonb": TextLoader} if json_fields(row) else loaders


def json_fields(row: type) -> Mapping[str, str]:
    """Return the JSON columns that a row class keeps as text, with the names of their fields."""
    return _json_fields(row)


@cache
def _json_fields(row: Any) -> Mapping[str, str]:  # noqa: ANN401 - mypy takes no generic class for hashable
    return {name.removesuffix("_json"): name for name in _fields(row) if name.endswith("_json")}
