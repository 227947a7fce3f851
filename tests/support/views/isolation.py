"""Callers in REPEATABLE READ and SERIALIZABLE: a transaction with an old snapshot, and its repetition.

Belongs here: the fixture and the functions that several such tests share. Not here: READ COMMITTED, which every other
test uses.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.event_store import EventStore
from millrace.resources.event_store.sql_functions import SqlFunctions
from tests.support.factories import Connect

Result = TypeVar("Result")

LEVELS = [
    pytest.param(IsolationLevel.REPEATABLE_READ, id="repeatable read"),
    pytest.param(IsolationLevel.SERIALIZABLE, id="serializable"),
]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    chosen: IsolationLevel = request.param
    return chosen


def snapshot(connect: Connect, level: IsolationLevel) -> EventStore:
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
