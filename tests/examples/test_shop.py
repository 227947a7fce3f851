"""The example domain: the events that it registers, and the data that the store then accepts."""

import pytest

from millrace.assets.declarations import declared
from millrace.errors import DataRefused
from millrace.event_schemas.registering import State, schemas_by_event, states_in_store
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.events import SHOP, register_shop
from millrace.read_models.shown.known_names import unknown_properties
from tests.support.sql_calls import BatchEvent, append_events

DECLARED = declared("millrace.examples.shop", ["events", "read_models"])


def test_registering_again_changes_nothing_and_every_event_has_a_schema(store: PlatformStore) -> None:
    for _ in range(2):
        register_shop(store)
    row = store.connection.execute(
        "select count(s.digest), count(*) from event_store.deciders left join event_store.event_schemas s"
        " using (decider, event, event_version)"
    ).fetchone()
    assert row == (len(SHOP), len(SHOP))
    assert [each.state for each in states_in_store(store, DECLARED.events, keep=False)] == [State.REGISTERED] * len(
        SHOP
    )
    for model in DECLARED.models.values():
        assert list(unknown_properties(model, schemas_by_event(store, []))) == []


def test_an_amount_in_fractions_of_a_cent_is_refused(store: PlatformStore) -> None:
    register_shop(store)
    with pytest.raises(DataRefused):
        append_events(store, [BatchEvent("order", "order-1", "order_confirmed", data={"total": 1.005})])
