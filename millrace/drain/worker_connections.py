"""The connections that a Spark worker keeps from round to round: connecting costs more than reading a few events."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.patience import POLL_S
from millrace.read_models.built.fold_task import TaskQuery
from millrace.read_models.stored.tables import wait_for_locks_at_most
from millrace.spark.log_source import Unreadable
from millrace.spark.log_source.arrow import ArrowConnection, connected, snapshot
from millrace.spark.workers import spare_imports

if TYPE_CHECKING:
    import adbc_driver_manager as adbc
    import psycopg


Read = TypeVar("Read")

# the kept connections, by connection string
_arrow: "dict[str, tuple[ExitStack, adbc.AdbcConnection]]" = {}
_queries: "dict[str, psycopg.Connection]" = {}


def read(dsn: str, read_snapshot: Callable[[ArrowConnection], Read]) -> Read:
    """Read one snapshot, through the connection that is kept; if that one is lost, through a new one.

    Raises:
        Unreadable: Postgres does not answer.
    """
    if dsn in _arrow:
        try:
            return _in_snapshot(dsn, read_snapshot)
        except Unreadable:
            _forget(dsn)
        except BaseException:
            _forget(dsn)
            raise
    stack = ExitStack()
    _arrow[dsn] = (stack, stack.enter_context(connected(dsn)))
    try:
        return _in_snapshot(dsn, read_snapshot)
    except BaseException:
        _forget(dsn)
        raise
    finally:
        spare_imports()


def _forget(dsn: str) -> None:
    # after any error the connection may be in the middle of a statement
    stack, _ = _arrow.pop(dsn)
    stack.close()


def _in_snapshot(dsn: str, read_snapshot: Callable[[ArrowConnection], Read]) -> Read:
    with snapshot(dsn, _arrow[dsn][1]) as connection:
        return read_snapshot(connection)


class KeptQuery(TaskQuery):
    """A query that a task runs through a connection that outlives it.

    Raises, when it runs, psycopg's LockNotAvailable if another session has locked the table.
    """

    def __exit__(self, *_: object) -> None:
        """Keep the connection."""

    def rows(self, parameters: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
        """Return the rows of the query, given its parameters."""
        import psycopg

        from millrace.postgres.connecting import connect

        connection = _queries.get(self._dsn)
        if connection is not None:
            try:
                return connection.execute(self._query, parameters).fetchall()
            except psycopg.errors.LockNotAvailable:
                raise
            except psycopg.OperationalError:
                connection.close()
        connection = _queries[self._dsn] = connect(self._dsn)
        # another session may have locked the table: the other models do not wait for that, but a view's own run does
        wait_for_locks_at_most(connection, POLL_S, always=True)
        return connection.execute(self._query, parameters).fetchall()
