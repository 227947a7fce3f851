"""Callers in REPEATABLE READ and SERIALIZABLE: a transaction with an old snapshot, and its repetition."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.event_store import EventStore
from millrace.resources.event_store.sql_functions import SqlFunctions
from tests.support.factories import Connect

Result = TypeVar("Result")
REPEATABLE_READ, SERIALIZABLE = IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE


def of_two(first: IsolationLevel, second: IsolationLevel) -> list[object]:
    """Return two levels, of which only `--long` takes the second."""
    return [pytest.param(first, id=first.name), pytest.param(second, id=second.name, marks=pytest.mark.long)]


@pytest.fixture(params=of_two(REPEATABLE_READ, SERIALIZABLE))
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    """Return the level of a transaction that others overtake: what fails there fails in SERIALIZABLE, too."""
    chosen: IsolationLevel = request.param
    return chosen


@pytest.fixture(params=of_two(SERIALIZABLE, REPEATABLE_READ))
def racing(request: pytest.FixtureRequest) -> IsolationLevel:
    """Return the level of sessions that race and repeat: what succeeds there has to succeed in REPEATABLE READ, too."""
    chosen: IsolationLevel = request.param
    return chosen


def snapshot(connect: Connect, level: IsolationLevel | None) -> EventStore:
    """Open a session in a transaction that sees the store as it is now, whatever others commit from now on."""
    connection = connect(autocommit=False)
    connection.isolation_level = level
    connection.execute("select")
    return EventStore(connection)


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
