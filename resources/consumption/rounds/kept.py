"""The connections that a Spark worker keeps from round to round: connecting costs more than reading a few events.

Belongs here: keeping them, and connecting anew where one was lost. Not here: what is read through them (`leaf`).
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.resources.event_log_source import Unreadable
from millrace.resources.event_log_source.arrow import ArrowConnection, connected, snapshot
from millrace.resources.read_models.fold_task import StoredStates

if TYPE_CHECKING:
    import adbc_driver_manager as adbc
    import psycopg

Read = TypeVar("Read")

# by connection string
_arrow: "dict[str, tuple[ExitStack, adbc.AdbcConnection]]" = {}
_states: "dict[str, psycopg.Connection]" = {}


def read(dsn: str, look: Callable[[ArrowConnection], Read]) -> Read:
    """Look at one snapshot, through the connection that is kept; if that one is lost, through a new one.

    Raises:
        Unreadable: Postgres does not answer.
    """
    if dsn in _arrow:
        try:
            return _look(dsn, look)
        except Unreadable:
            stack, _ = _arrow.pop(dsn)
            stack.close()
    stack = ExitStack()
    _arrow[dsn] = (stack, stack.enter_context(connected(dsn)))
    try:
        return _look(dsn, look)
    except BaseException:
        # whatever it is, it may be in the middle of something
        del _arrow[dsn]
        stack.close()
        raise


def _look(dsn: str, look: Callable[[ArrowConnection], Read]) -> Read:
    with snapshot(dsn, _arrow[dsn][1]) as connection:
        return look(connection)


class KeptStates(StoredStates):
    """The stored states of streams, looked up through a connection that outlives the task."""

    def __exit__(self, *_: object) -> None:
        """Keep the connection."""

    def _rows(self, streams: dict[str, list[Any]]) -> Iterable[tuple[Any, ...]]:
        import psycopg

        kept = _states.get(self._dsn)
        if kept is not None:
            try:
                return kept.execute(self._query, streams).fetchall()
            except psycopg.OperationalError:
                kept.close()
        kept = _states[self._dsn] = psycopg.connect(self._dsn, autocommit=True)
        return kept.execute(self._query, streams).fetchall()
