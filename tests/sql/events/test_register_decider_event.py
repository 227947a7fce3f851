"""Registering what a decider may append."""

from functools import partial

import pytest

from millrace.resources.errors import ForbiddenChange, Malformed
from millrace.resources.event_store import DeciderEvent, EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import Connect, append, at_once, rows, start, wait_blocked


def test_a_registered_event_can_be_appended(store: EventStore) -> None:
    assert store.register_decider_event("order", "placed", "says so") == DeciderEvent("order", "placed", 1, "says so")
    assert append(store).event_version == 1


def test_registering_again_is_a_no_op_with_another_description_too(store: EventStore) -> None:
    first = store.register_decider_event("order", "placed", "first")
    assert store.register_decider_event("order", "placed", "first") == first
    assert store.register_decider_event("order", "placed", "second") == first
    assert rows(store.connection, "select description from event_store.deciders") == [("first",)]


def test_versions_of_an_event_are_registered_side_by_side(store: EventStore) -> None:
    store.register_decider_event("order", "placed", "one")
    assert store.register_decider_event("order", "placed", "two", 2).event_version == 2
    assert len(rows(store.connection, "select from event_store.deciders")) == 2


@pytest.mark.parametrize(
    "arguments", [("", "e", "d", 1), ("d", "", "d", 1), (None, "e", "d", 1), ("d", None, "d", 1), ("d", "e", None, 1)]
)
def test_a_malformed_registration_is_refused(store: EventStore, arguments: tuple[object, ...]) -> None:
    with pytest.raises(Malformed), refusals():
        store.connection.execute("select event_store.register_decider_event(%s, %s, %s, %s)", arguments)
    with pytest.raises(Malformed), refusals():
        store.connection.execute("select event_store.register_decider_event('d', 'e', 'd', null)")
    assert rows(store.connection, "select from event_store.deciders") == []


def test_registering_at_once_registers_once(connect: Connect) -> None:
    stores = [EventStore(connect()) for _ in range(4)]
    results = at_once([partial(s.register_decider_event, "order", "placed", "x") for s in stores])
    assert {result.result() for result in results} == {DeciderEvent("order", "placed", 1, "x")}


def test_it_returns_what_a_concurrent_registration_stored(store: EventStore, connect: Connect) -> None:
    first, second = connect(autocommit=False), connect()
    EventStore(first).register_decider_event("order", "placed", "first")
    late = start(lambda: EventStore(second).register_decider_event("order", "placed", "second"))
    wait_blocked(store.connection, second.info.backend_pid)
    first.commit()
    assert late.result(20).description == "first"


def test_it_is_called_with_named_arguments_as_in_fstore_sql(store: EventStore) -> None:
    cursor = store.connection.execute(
        """
        select * from event_store.register_decider_event(
          v_decider => 'decider1', v_event => 'event1', v_description => 'description', v_event_version => 2
        )
        """
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == ["decider", "event", "event_version", "description"]


def test_a_registration_is_never_changed(store: EventStore) -> None:
    store.register_decider_event("order", "placed", "first")
    with pytest.raises(ForbiddenChange), refusals():
        store.connection.execute("update event_store.deciders set description = 'second'")
