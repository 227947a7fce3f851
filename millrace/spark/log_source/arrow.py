"""Rows of Postgres as Arrow: one connection through ADBC, in one transaction that reads one snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .log import Unreadable, in_utf8, without_password

if TYPE_CHECKING:
    import adbc_driver_manager as adbc
    import pyarrow as pa

# A task holds a few batches of this size at once, or one event if that is larger.
BATCH_BYTES = 4 * 1024 * 1024
# event stores whose types a process knows
KEPT = 8
# A task reads, or stages, as much as it was given: the login, or the database, may limit others. For a transaction.
NO_LIMITS_IN_TRANSACTION = (
    "select set_config(name, '0', true) from unnest('{statement_timeout, transaction_timeout}'::text[]) name"
    " where current_setting(name, true) is not null"
)


class ArrowConnection:
    """Sends one statement after the other; all see the same snapshot.

    Raises:
        Unreadable: Postgres does not do what a statement says.
    """

    def __init__(self, dsn: str, statement: "adbc.AdbcStatement") -> None:
        self._dsn = dsn
        self._statement = statement
        self._reader: pa.RecordBatchReader | None = None

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return all rows of a statement that has few; its columns must have different names."""
        return [row for batch in self.batches(statement) for row in zip(*batch.to_pydict().values(), strict=True)]

    def batches(self, statement: str) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a statement; the next statement ends them."""
        import adbc_driver_manager as adbc
        import pyarrow as pa

        self.close()
        try:
            self._statement.set_sql_query(statement)
            stream, _ = self._statement.execute_query()
            self._reader = pa.RecordBatchReader.from_stream(stream)
            yield from self._reader
        except (adbc.Error, pa.ArrowException, OSError) as error:
            # by itself: of a chain of errors a driver sees the class of the first one
            raise Unreadable(self._dsn, error) from None

    def close(self) -> None:
        """End the rows of the last statement."""
        # ADBC reads them from the connection: they must be closed before it is
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@contextmanager
def arrow_connection(dsn: str) -> Iterator[ArrowConnection]:
    """Connect until the end of a `with`.

    Raises:
        InvalidOption: The DSN is unreadable.
        Unreadable: Postgres does not answer.
    """
    with connected(dsn) as connection, snapshot(dsn, connection) as opened:
        yield opened


@contextmanager
def connected(dsn: str) -> "Iterator[adbc.AdbcConnection]":
    """Connect until the end of a `with`.

    Raises:
        InvalidOption: The DSN is unreadable.
        Unreadable: Postgres does not answer.
    """
    # not ADBC's `dbapi`: it imports pandas, half a second for each new Python process of Spark's
    import adbc_driver_manager as adbc
    import adbc_driver_postgresql as postgresql

    without_password(dsn)  # a DSN that cannot be read is refused before anybody quotes it
    # A database has no connection of its own, but the types in Postgres' catalogs: ADBC reads all of them as it makes
    # one, which takes ten times as long as to connect, and we read built-in types alone. So databases are kept, in a
    # module of which a process has one: of ours Spark unpickles a copy for each task.
    kept: dict[str, adbc.AdbcDatabase] = vars(postgresql).setdefault("_millrace_databases", {})
    try:
        database = kept.get(dsn)
        if database is None:
            database = postgresql.connect(in_utf8(dsn))
            for oldest in [*kept][: max(len(kept) - KEPT + 1, 0)]:
                kept.pop(oldest, None)
            kept[dsn] = database
        with adbc.AdbcConnection(database) as connection:
            connection.set_autocommit(False)
            yield connection
    except adbc.Error as error:
        raise Unreadable(dsn, error) from None


@contextmanager
def snapshot(dsn: str, connection: "adbc.AdbcConnection") -> Iterator[ArrowConnection]:
    """Read one snapshot through a connection, in a transaction that ends with the `with` if nothing fails.

    Raises:
        Unreadable: Postgres does not answer.
    """
    import adbc_driver_manager as adbc
    import adbc_driver_postgresql as postgresql

    size = {postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)}
    try:
        with adbc.AdbcStatement(connection) as statement:
            statement.set_options(**size)
            opened = ArrowConnection(dsn, statement)
            # one snapshot: history that is removed meanwhile is still there for the SELECT that follows the marks
            opened.rows("set transaction isolation level repeatable read, read only")
            opened.rows(NO_LIMITS_IN_TRANSACTION)
            try:
                yield opened
            finally:
                opened.close()
        connection.rollback()
    except adbc.Error as error:
        raise Unreadable(dsn, error) from None
