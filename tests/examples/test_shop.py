"""The example domain: what it registers and what the store then takes."""

from uuid import uuid4

import pytest

from millrace.examples.shop.events import FINAL, SHOP, register_shop
from millrace.resources.errors import EventNotRegistered, StreamClosed
from millrace.resources.event_store import EventStore


def test_the_shop_registers_three_deciders_with_their_events(store: EventStore) -> None:
    registered = {(known.decider, known.event) for known in register_shop(store)}
    assert registered == {
        ("order", "order_placed"),
        ("order", "order_line_added"),
        ("order", "order_confirmed"),
        ("order", "order_cancelled"),
        ("payment", "payment_requested"),
        ("payment", "payment_received"),
        ("payment", "payment_failed"),
        ("shipment", "shipment_prepared"),
        ("shipment", "shipment_dispatched"),
        ("shipment", "shipment_delivered"),
    }


def test_registering_again_changes_nothing(store: EventStore) -> None:
    assert register_shop(store) == register_shop(store)
    row = store.connection.execute("select count(*) from event_store.deciders").fetchone()
    assert row == (len(SHOP),)


def test_every_description_is_a_sentence_that_names_the_data(store: EventStore) -> None:
    for known in register_shop(store):
        assert known.description.endswith(".")
        assert " data: " in known.description


def test_three_events_are_final() -> None:
    assert {
        ("order", "order_cancelled"),
        ("payment", "payment_received"),
        ("shipment", "shipment_delivered"),
    } == FINAL


def test_the_store_takes_the_shops_events_and_no_others(store: EventStore) -> None:
    register_shop(store)
    placed = store.append_event(
        "order_placed", uuid4(), "order", "order-1", {"customer_id": "customer-1", "channel": "web"}, uuid4(), None
    )
    with pytest.raises(EventNotRegistered):
        store.append_event("order_shipped", uuid4(), "order", "order-1", {}, uuid4(), placed.event_id)
    cancelled = store.append_event(
        "order_cancelled", uuid4(), "order", "order-1", {"reason": "changed mind"}, uuid4(), placed.event_id, final=True
    )
    with pytest.raises(StreamClosed):
        store.append_event("order_confirmed", uuid4(), "order", "order-1", {"total": 0}, uuid4(), cancelled.event_id)
