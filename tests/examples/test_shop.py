"""The example domain: what it registers and what the store then takes."""

from uuid import uuid4

import pytest

from millrace.examples.shop.events import SHOP, register_shop
from millrace.resources.errors import EventNotRegistered, StreamClosed
from millrace.resources.event_store import EventStore


def test_registering_again_changes_nothing_and_every_description_is_a_sentence_that_names_the_data(
    store: EventStore,
) -> None:
    assert register_shop(store) == register_shop(store)
    assert [each for each in SHOP if not each.description.endswith(".") or " data: " not in each.description] == []
    row = store.connection.execute("select count(*) from event_store.deciders").fetchone()
    assert row == (len(SHOP),)


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
