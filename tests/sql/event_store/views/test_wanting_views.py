"""The rows views that want an event since the announced marks: the sequencer dispatches to these."""

import pytest

from millrace.event_store import WantingView
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append


@pytest.fixture
def views(orders: PlatformStore) -> PlatformStore:
    orders.register_view("all", "-infinity")
    orders.register_view("orders", "-infinity", deciders=["order"])
    orders.register_view("paid", "-infinity", events=["paid"], owner="event_store_owner")
    orders.register_view("invoices", "-infinity", deciders=["invoice"] * 1000)  # as many as a filter may name
    orders.register_view("bulk", "-infinity", mode="bulk")
    orders.register_view("disabled", "-infinity")
    orders.enable_view("disabled", False)
    return orders


def wanting(store: PlatformStore, known: list[int]) -> list[str]:
    return [each.view for each in store.wanting_views(known)]


def test_views_that_want_a_kind_that_came_and_no_others(views: PlatformStore) -> None:
    every = ["all", "invoices", "orders", "paid"]
    assert wanting(views, []) == every
    known = views.announce_positions([])
    assert wanting(views, known) == []
    append(views, "o-1")
    views.sequence_events()
    assert wanting(views, known) == ["all", "orders"]
    append(views, "o-2", event="paid")
    views.sequence_events()
    assert wanting(views, known) == ["all", "orders", "paid"]
    assert WantingView("paid", "event_store_owner") in views.wanting_views(known)
    assert wanting(views, views.announce_positions(known)) == []


def test_where_more_than_a_thousand_came_none_is_read_and_all_are_asked(views: PlatformStore) -> None:
    known = views.announce_positions([])
    append(views, "o-1")
    views.sequence_events()
    (partition,) = (p.partition for p in views.partition_info() if p.high_water_mark == 1)
    known[partition] -= 999
    assert wanting(views, known) == ["all", "orders"]
    known[partition] -= 1
    assert wanting(views, known) == ["all", "invoices", "orders", "paid"]
