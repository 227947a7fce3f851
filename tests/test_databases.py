"""Event stores of tests: what one test leaves, the next one does not find."""

from millrace.resources.event_store import EventStore
from tests.support.databases import Databases
from tests.support.factories import append, register_orders, set_clock, value


def test_rows_are_gone_and_what_every_store_has_is_back(databases: Databases) -> None:
    left = databases.take()
    connection = databases.connect(left, autocommit=True)
    turns = value(connection, "select count(*) from event_store.append_turns")
    append(register_orders(EventStore(connection)))
    connection.execute("set session_replication_role = replica")
    set_clock(connection, "2030-01-01 00:00:00+00")
    connection.execute("truncate event_store.append_turns")
    databases.give_back(left)
    found = databases.take()
    connection = databases.connect(found, autocommit=True)
    assert found is left
    assert value(connection, "show event_store.clock") == ""
    assert value(connection, "select count(*) from event_store.append_turns") == turns > 0
    assert value(connection, "select count(*) from event_store.events") == 0
    assert append(register_orders(EventStore(connection))).offset == 1
    databases.give_back(found)


def test_a_store_with_more_than_other_rows_is_not_used_again(databases: Databases) -> None:
    left = databases.take()
    databases.connect(left, autocommit=True).execute("create table event_store.of_a_test ()")
    databases.give_back(left)
    found = databases.take()
    assert found.name != left.name
    databases.give_back(found)
