"""Callers in REPEATABLE READ and SERIALIZABLE: a transaction with an old snapshot, and its retry."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.event_store.platform import PlatformStore
from millrace.event_store.sql_functions import SqlFunctions
from tests.support.factories import Connect

Result = TypeVar("Result")
Session = Callable[[], PlatformStore]

REPEATABLE_READ, SERIALIZABLE = IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE


def of_two(first: IsolationLevel, second: IsolationLevel) -> list[object]:
    """Return two levels; the second is used only with `--long`."""
    return [pytest.param(first, id=first.name), pytest.param(second, id=second.name, marks=pytest.mark.long)]


def session(connect: Connect, level: IsolationLevel | None) -> PlatformStore:
    connection = connect(autocommit=False)
    connection.isolation_level = level
    return PlatformStore(connection)


def snapshot_of(connect: Connect, level: IsolationLevel | None) -> PlatformStore:
    """Open a session in a transaction with a snapshot of the store taken now."""
    store = session(connect, level)
    store.connection.execute("select")
    return store


def opener(opens: Callable[[Connect, IsolationLevel | None], PlatformStore], *levels: object) -> Callable[..., Session]:
    """Make a fixture that opens sessions of these levels."""

    @pytest.fixture(params=levels, ids=str)
    def made(request: pytest.FixtureRequest, connect: Connect) -> Session:
        return partial(opens, connect, request.param)

    return made


# a transaction that others overtake: a failure in the first level is one in SERIALIZABLE too
snapshot = opener(snapshot_of, *of_two(REPEATABLE_READ, SERIALIZABLE))
any_snapshot = opener(snapshot_of, None, *of_two(REPEATABLE_READ, SERIALIZABLE))
# sessions that race and retry: a success in the first level must be one in REPEATABLE READ too
racer = opener(session, *of_two(SERIALIZABLE, REPEATABLE_READ))
any_racer = opener(session, None, *of_two(SERIALIZABLE, REPEATABLE_READ))


def repeat(store: SqlFunctions, work: Callable[[], Result]) -> Result:
    """Do the work in a transaction; retry while it fails to serialize."""
    for _ in range(1000):
        try:
            result = work()
            store.connection.commit()
        except SerializationFailure:
            store.connection.rollback()
        else:
            return result
    raise AssertionError("repeated a thousand times in vain")


def assert_not_serializable(store: SqlFunctions, work: Callable[[], object]) -> SerializationFailure:
    """Assert that the work fails the session's transaction, and end it."""
    with pytest.raises(SerializationFailure) as failed:
        work()
    store.connection.rollback()
    return failed.value
