"""Callers in REPEATABLE READ and SERIALIZABLE: a transaction with an old snapshot, and its repetition."""

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
    """Return two levels, of which only `--long` takes the second."""
    return [pytest.param(first, id=first.name), pytest.param(second, id=second.name, marks=pytest.mark.long)]


def session(connect: Connect, level: IsolationLevel | None) -> PlatformStore:
    connection = connect(autocommit=False)
    connection.isolation_level = level
    return PlatformStore(connection)


def snapshot_of(connect: Connect, level: IsolationLevel | None) -> PlatformStore:
    """Open a session in a transaction that sees the store as it is now, whatever others commit from now on."""
    store = session(connect, level)
    store.connection.execute("select")
    return store


def opener(opens: Callable[[Connect, IsolationLevel | None], PlatformStore], *levels: object) -> Callable[..., Session]:
    """Make the fixture of what opens sessions of these levels."""

    @pytest.fixture(params=levels, ids=str)
    def made(request: pytest.FixtureRequest, connect: Connect) -> Session:
        return partial(opens, connect, request.param)

    return made


# a transaction that others overtake: what fails in the first level fails in SERIALIZABLE, too
snapshot = opener(snapshot_of, *of_two(REPEATABLE_READ, SERIALIZABLE))
any_snapshot = opener(snapshot_of, None, *of_two(REPEATABLE_READ, SERIALIZABLE))
# sessions that race and repeat: what succeeds in the first level has to succeed in REPEATABLE READ, too
racer = opener(session, *of_two(SERIALIZABLE, REPEATABLE_READ))
any_racer = opener(session, None, *of_two(SERIALIZABLE, REPEATABLE_READ))


def repeat(store: SqlFunctions, work: Callable[[], Result]) -> Result:
    """Do the work in a transaction, again and again while it is refused as not serializable."""
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
    """Let the session's transaction fail by the work, and end it."""
    with pytest.raises(SerializationFailure) as failed:
        work()
    store.connection.rollback()
    return failed.value
