"""Reading one stream: get_events and get_last_event."""

from uuid import uuid4

import pytest

from millrace.resources.event_store import EventStore
from tests.sql.events.test_append_event import COLUMNS
from tests.support.factories import append, append_to, new_event


def test_events_come_in_the_order_of_their_stream(orders: EventStore) -> None:
    appended = append_to(orders, "o-1", "o-2", "o-1", "o-1")
    events = orders.get_events("o-1", "order")
    assert [event.event_id for event in events] == [appended[n].event_id for n in (0, 2, 3)]
    assert [event.previous_id for event in events] == [None, events[0].event_id, events[1].event_id]
    assert orders.get_last_event("o-1", "order") == events[-1]


def test_two_deciders_that_share_an_id_never_see_each_others_events(orders: EventStore) -> None:
    orders.append_events([new_event("x"), new_event("x", decider="invoice")])
    (order,) = orders.get_events("x", "order")
    (invoice,) = orders.get_events("x", "invoice")
    assert (order.decider, invoice.decider) == ("order", "invoice")
    assert orders.get_last_event("x", "order") == order
    assert orders.get_last_event("x", "invoice") == invoice


def test_an_unknown_stream_has_no_events(orders: EventStore) -> None:
    append(orders, "o-1")
    for decider_id, decider in (("o-2", "order"), ("o-1", "invoice"), ("O-1", "order"), ("", "")):
        assert orders.get_events(decider_id, decider) == []
        assert orders.get_last_event(decider_id, decider) is None


def test_a_uuid_finds_the_stream_of_its_text(orders: EventStore) -> None:
    decider_id = uuid4()
    stored = append(orders, str(decider_id))
    assert orders.get_events(decider_id, "order") == [stored]
    assert orders.get_last_event(decider_id, "order") == stored


@pytest.mark.parametrize("typed", [True, False])
def test_they_are_called_with_named_arguments_as_in_fstore_sql(orders: EventStore, typed: bool) -> None:
    decider_id = uuid4()
    append(orders, str(decider_id))
    for query in (
        "select * from event_store.get_events(v_decider_id => %s, v_decider => 'order')",
        "select * from event_store.get_last_event(v_decider_id => %s, v_decider => 'order')",
    ):
        cursor = orders.connection.execute(query.encode(), (decider_id if typed else str(decider_id),))
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == COLUMNS
        assert len(cursor.fetchall()) == 1
