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
# the number of databases that a process keeps
MOST_DATABASES = 8
# Timeouts of the login or the database are for other work: a task reads, or stages, all of its part. Per transaction.
NO_LIMITS_IN_TRANSACTION = (
    "select set_config(name, '0', true) from unnest('{statement_timeout, transaction_timeout}'::text[]) name"
    " where current_setting(name, true) is not null"
)


class ArrowConnection:
    """Sends one statement after the other; all see the same snapshot.

    Raises:
        Unreadable: A statement fails.
    """

    def __init__(self, dsn: str, statement: "adbc.AdbcStatement") -> None:
        self._dsn = dsn
        self._statement = statement
        self._reader: pa.RecordBatchReader | None = None

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return all rows of a statement with few rows; its columns must have different names."""
        return [row for batch in self.batches(statement) for row in zip(*batch.to_pydict().values(), strict=True)]

    def batches(self, statement: str) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a statement, until the next statement."""
        import adbc_driver_manager as adbc
        import pyarrow as pa

        self.close()
        try:
            self._statement.set_sql_query(statement)
            stream, _ = self._statement.execute_query()
            self._reader = pa.RecordBatchReader.from_stream(stream)
            yield from self._reader
        except (adbc.Error, pa.ArrowException, OSError) as error:
            # without a cause: of a chain of errors the driver sees the class of the first
            raise Unreadable(self._dsn, error) from None

    def close(self) -> None:
        """End the rows of the last statement."""
        # ADBC reads them from the connection: close them before the connection
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

    without_password(dsn)  # refuse an unreadable DSN before an error quotes it
    # An ADBC database holds no connection, but the types in Postgres' catalogs. ADBC reads all of them when it makes a
    # database, which takes ten times as long as to connect; we read built-in types only. So keep databases, in a module
    # that exists once in a process: of our own modules Spark unpickles a copy for each task.
    databases: dict[str, adbc.AdbcDatabase] = vars(postgresql).setdefault("_millrace_databases", {})
    try:
        database = databases.get(dsn)
        if database is None:
            database = postgresql.connect(in_utf8(dsn))
            for oldest in [*databases][: max(len(databases) - MOST_DATABASES + 1, 0)]:
                databases.pop(oldest, None)
            databases[dsn] = database
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
            # one snapshot: the SELECT after the marks still sees history that is removed in between
            opened.rows("set transaction isolation level repeatable read, read only")
            opened.rows(NO_LIMITS_IN_TRANSACTION)
            try:
                yield opened
            finally:
                opened.close()
        connection.rollback()
    except adbc.Error as error:
        raise Unreadable(dsn, error) from None
