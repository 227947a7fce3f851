"""The example domain: what it registers and what the store then takes."""

from uuid import uuid4

import pytest

from millrace.assets.declarations import declared
from millrace.examples.shop.events import SHOP, register_shop
from millrace.resources.errors import DataRefused, EventNotRegistered, StreamClosed
from millrace.resources.event_store import EventStore
from millrace.resources.events.registering import State, known_schemas, standing_of
from millrace.resources.read_models.shown.known_names import unknown_properties

DECLARED = declared("millrace.examples.shop", ["events", "read_models"])


def test_registering_again_changes_nothing_and_every_event_has_a_schema(store: EventStore) -> None:
    for _ in range(2):
        register_shop(store)
    row = store.connection.execute(
        "select count(s.digest), count(*) from event_store.deciders left join event_store.event_schemas s"
        " using (decider, event, event_version)"
    ).fetchone()
    assert row == (len(SHOP), len(SHOP))
    assert [each.state for each in standing_of(store, DECLARED.events, keep=False)] == [State.REGISTERED] * len(SHOP)
    for model in DECLARED.models.values():
        assert list(unknown_properties(model, known_schemas(store, []))) == []


def test_the_store_takes_the_shops_events_and_no_others(store: EventStore) -> None:
    register_shop(store)
    placed = store.append_event(
        "order_placed", uuid4(), "order", "order-1", {"customer_id": "customer-1", "channel": "web"}, uuid4(), None
    )
    with pytest.raises(EventNotRegistered):
        store.append_event("order_shipped", uuid4(), "order", "order-1", {}, uuid4(), placed.event_id)
    with pytest.raises(DataRefused):
        store.append_event("order_confirmed", uuid4(), "order", "order-1", {"total": 1.005}, uuid4(), placed.event_id)
    cancelled = store.append_event(
        "order_cancelled", uuid4(), "order", "order-1", {"reason": "changed mind"}, uuid4(), placed.event_id, final=True
    )
    with pytest.raises(StreamClosed):
        store.append_event("order_confirmed", uuid4(), "order", "order-1", {"total": 0}, uuid4(), cancelled.event_id)
