"""Who waits for positions is told which log partitions grew, once."""

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from tests.support.factories import Connect, append_to, ids_of_one_partition


@pytest.fixture
def listener(connect: Connect) -> psycopg.Connection:
    connection = connect()
    connection.execute("listen event_store_positions")
    return connection


def words(listener: psycopg.Connection) -> list[str]:
    listener.execute("select")
    return [word.payload for word in listener.notifies(timeout=0)]


def marks(store: EventStore) -> list[int]:
    return [each.high_water_mark for each in store.available_offset_range()]


def test_the_word_names_the_log_partitions_that_grew_and_the_answer_has_their_marks(
    orders: EventStore, listener: psycopg.Connection
) -> None:
    (first,) = ids_of_one_partition(orders.connection, 1, 0)
    (second,) = ids_of_one_partition(orders.connection, 1, 2)
    append_to(orders, first, second)
    known = orders.announce_positions([])
    assert words(listener) == []  # nothing has a position yet
    orders.sequence_events()
    known = orders.announce_positions(known)
    assert words(listener) == ["0,2"]
    assert known == marks(orders)
    append_to(orders, second)
    orders.sequence_events()
    known = orders.announce_positions(known)
    assert words(listener) == ["2"]
    assert orders.announce_positions(known) == known == marks(orders)
    assert words(listener) == []
    # one that knows nothing is told of all that holds something
    orders.announce_positions([])
    assert words(listener) == ["0,2"]
