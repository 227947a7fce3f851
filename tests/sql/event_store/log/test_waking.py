"""An append wakes a sleeping sequencer; waiters learn once which log partitions grew."""

from collections.abc import Callable
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.factories import Connect
from tests.support.sql_calls import append_events


def bare_insert(store: PlatformStore) -> None:
    store.connection.execute(
        "insert into event_store.events (event, event_id, decider, decider_id, data, command_id) "
        "values ('placed', gen_random_uuid(), 'order', gen_random_uuid(), '{}', gen_random_uuid())"
    )


APPENDS: dict[str, Callable[[PlatformStore], object]] = {
    "append_event": lambda store: factories.append(store, str(uuid4())),
    "append_events": lambda store: append_events(store, [factories.new_event(str(uuid4()))]),
    "bare INSERT": bare_insert,
}


@pytest.fixture
def orders(orders: PlatformStore) -> PlatformStore:
    """Return a store as on a server without prepared transactions, which is Postgres' default."""
    factories.unprepared(orders.connection)
    return orders


@pytest.fixture
def listener(connect: Connect) -> psycopg.Connection:
    """Return a session that hears of appends, and of positions."""
    connection = connect()
    connection.execute("listen event_store_appended; listen event_store_positions")
    return connection


def heard(listener: psycopg.Connection, channel: str) -> list[str]:
    """Return the notifications so far: Postgres delivers them with the answer to a statement."""
    listener.execute("select")
    return [word.payload for word in listener.notifies(timeout=0) if word.channel == channel]


def words(listener: psycopg.Connection) -> int:
    return len(heard(listener, "event_store_appended"))


def test_each_way_to_append_wakes_only_who_sleeps(orders: PlatformStore, listener: psycopg.Connection) -> None:
    for way in APPENDS.values():
        way(orders)
        assert words(listener) == 0  # no sequencer attends the log
        orders.attend_log(10, sleeps=True)
        way(orders)
        assert words(listener) == 1
        orders.attend_log(10)
        way(orders)
        orders.attend_log(10, sleeps=True)
        orders.attend_log(0)
        way(orders)
        assert words(listener) == 0


@pytest.mark.parametrize("moved_s", [-11, 3600], ids=["it is over", "the clock was set back an hour"])
def test_a_mark_ends_by_itself(orders: PlatformStore, listener: psycopg.Connection, moved_s: int) -> None:
    """The sequencer was killed while it slept."""
    orders.attend_log(10, sleeps=True)
    factories.append(orders)
    assert (words(listener), orders.sequence_events(), orders.is_attended()) == (1, 1, True)
    orders.connection.execute(
        "select setval('event_store.attended_seq', last_value + 2000 * %s) from event_store.attended_seq", (moved_s,)
    )
    factories.append(orders, "later")
    assert (words(listener), orders.is_attended()) == (0, False)


@pytest.mark.parametrize("moved", ["-3 s", "1 h"], ids=["it is over", "the clock was set back an hour"])
def test_who_says_that_it_sequences_and_does_not_keeps_nobody_from_it(orders: PlatformStore, moved: str) -> None:
    orders.register_view("v")
    factories.append(orders)
    orders.attend_log(10)
    orders.sequence_events()
    orders.dispatch_events("v")
    assert orders.is_attended()
    # even within the millisecond of the call
    at_once = "event_store_platform.attend_log(10) is not null and event_store_platform.is_attended()"
    assert factories.value(orders.connection, f"select bool_and({at_once}) from generate_series(1, 50)")
    orders.connection.execute("update event_store.sequencer set sequenced_at = sequenced_at + %s::interval", (moved,))
    factories.append(orders, "later")
    assert not orders.is_attended()
    # in a transaction that has written: it sequences only if no other session did
    with orders.connection.transaction():
        orders.connection.execute("select pg_current_xact_id()")
        orders.stream_events("v", 1)
    assert factories.value(orders.connection, "select count(*) from event_store.event_log") == 2
    # and the time of the last call is recorded again
    anew: LiteralString = "select abs(extract(epoch from event_store_platform.last_sequenced() - now())) < 60"
    assert factories.value(orders.connection, anew)


def test_a_view_gets_new_events_after_the_clock_was_set_back(orders: PlatformStore) -> None:
    orders.register_view("v")
    orders.dispatch_events("v")
    orders.connection.execute("update event_store.dispatches set dispatched_at = now() + interval '1 h'")
    factories.append(orders)
    orders.sequence_events()
    orders.attend_log(10)
    assert orders.is_attended()
    assert len(orders.stream_events("v", 1)) == 1


def test_the_word_comes_with_the_commit(orders: PlatformStore, listener: psycopg.Connection, connect: Connect) -> None:
    orders.attend_log(10, sleeps=True)
    writer = connect(autocommit=False)
    factories.append_to(PlatformStore(writer), "a", "b")
    assert words(listener) == 0
    writer.rollback()
    assert words(listener) == 0
    factories.append_to(PlatformStore(writer), "a", "b")
    writer.commit()
    assert words(listener) == 1


def test_it_says_that_an_open_append_may_be_missed(orders: PlatformStore, connect: Connect) -> None:
    """The writer could not yet see that the sequencer would sleep."""
    writer = connect(autocommit=False)
    assert orders.attend_log(2, sleeps=True) is False
    orders.attend_log(2)
    factories.append(PlatformStore(writer))
    assert orders.attend_log(2, sleeps=True) is True
    writer.commit()
    assert orders.attend_log(2, sleeps=True) is False


def test_it_takes_no_transaction_id(orders: PlatformStore) -> None:
    connection = orders.connection
    connection.autocommit = False
    orders.attend_log(2, sleeps=True)
    assert factories.value(connection, "select pg_current_xact_id_if_assigned()") is None


def test_a_prepared_append_wakes_nobody(store: PlatformStore, listener: psycopg.Connection, connect: Connect) -> None:
    """This server allows prepared transactions."""
    factories.register_orders(store)
    assert store.attend_log(2, sleeps=True) is True
    writer = PlatformStore(connect(autocommit=False))
    factories.append(writer)
    writer.connection.execute("prepare transaction 'an append'")
    store.connection.execute("commit prepared 'an append'")
    assert words(listener) == 0
    assert store.sequence_events() == 1


POSITIONS = "event_store_positions"


def marks(store: PlatformStore) -> list[int]:
    return [each.high_water_mark for each in store.available_offset_range()]


def test_the_word_names_the_partitions_that_grew(orders: PlatformStore, listener: psycopg.Connection) -> None:
    first, second = (factories.ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (0, 2))
    factories.append_to(orders, first, second)
    known = orders.announce_positions([])
    assert heard(listener, POSITIONS) == []  # nothing has a position yet
    orders.sequence_events()
    known = orders.announce_positions(known)
    assert heard(listener, POSITIONS) == ["0,2"]
    assert known == marks(orders)
    factories.append_to(orders, second)
    orders.sequence_events()
    known = orders.announce_positions(known)
    assert heard(listener, POSITIONS) == ["2"]
    assert orders.announce_positions(known) == known == marks(orders)
    assert heard(listener, POSITIONS) == []
    # a caller that knows no positions announces every log partition with events
    orders.announce_positions([])
    assert heard(listener, POSITIONS) == ["0,2"]
