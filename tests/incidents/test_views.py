"""Incidents of views: lag, or streams that were given up."""

from pathlib import Path

import pytest

from millrace.errors import LeaseLost, NotInFlight
from millrace.event_store.platform import PlatformStore
from tests.support.command_line import cells
from tests.support.factories import append_to, pump, refusal, register_orders, rows
from tests.support.incidents.page import Operator, declare, incident
from tests.support.sql_calls import get_events


@pytest.fixture
def shop(store: PlatformStore) -> PlatformStore:
    """Make a store with events of a few orders and three views of them that are late."""
    register_orders(store)
    store.register_view("orders", "-infinity", mode="bulk")
    store.register_view("shipments", "-infinity", mode="bulk")
    store.register_view("invoices", "-infinity", max_attempts=1)
    append_to(store, *[f"order-{n % 9}" for n in range(30)])
    return store


def lags(operator: Operator) -> dict[str, tuple[str, str]]:
    """Return mode and lag of each view in `millrace status`."""
    return {line[0]: (line[1], line[2]) for line in cells(operator.follow())}


def drained(store: PlatformStore, view: str) -> list[int]:
    """Consume a bulk view and return the offsets that it received."""
    found: list[int] = []
    while leases := store.claim_batch(view, "next"):
        found += [event.offset for lease in leases for event in store.read_batch(view, lease)]
        store.commit_batch(view, leases)
    return sorted(found)


def test_views_that_are_late_go_on_and_get_every_event_once(shop: PlatformStore, dsn: str, tmp_path: Path) -> None:
    declare(tmp_path)
    shop.enable_view("orders", enabled=False)
    hanging = shop.claim_batch("shipments", "a run that hangs", lease_s=3600)
    pump(shop, "invoices")
    in_flight = shop.lease_events("invoices", 100, 3600)
    everything = sorted(offset for (offset,) in rows(shop.connection, 'select "offset" from event_store.events'))
    assert (len(everything), len(in_flight)) == (30, 9)
    with incident("A view is late", tmp_path, MILLRACE_DSN=dsn) as operator:
        assert lags(operator) == {"orders": ("off", "30"), "shipments": ("bulk", "30"), "invoices": ("rows", "30")}
        assert (drained(shop, "orders"), drained(shop, "shipments"), shop.lease_events("invoices", 100)) == ([], [], [])
        operator.follow()
        assert drained(shop, "orders") == everything
        assert "9 locks" in operator.follow()
        late = in_flight[0]
        refusal(
            NotInFlight, lambda: shop.ack_event("invoices", late.decider_id, late.offset, lease_token=late.lease_token)
        )
        acknowledged = []
        while events := shop.lease_events("invoices", 100):
            for event in events:
                shop.ack_event("invoices", event.decider_id, event.offset, lease_token=event.lease_token)
                acknowledged.append(event.offset)
        assert sorted(acknowledged) == everything
        assert "a run that hangs" in operator.follow()
        assert drained(shop, "shipments") == everything
        refusal(LeaseLost, lambda: shop.commit_batch("shipments", hanging))
    assert [view.lag for view in shop.view_info()] == [0, 0, 0]


def test_a_parked_stream_is_tried_again_or_goes_on_behind_the_event(
    shop: PlatformStore, dsn: str, tmp_path: Path
) -> None:
    declare(tmp_path)
    wrong = {"order-1": "no tax for <this> order", "order-2": "no customer"}
    acknowledged: list[int] = []

    def consume(faults: dict[str, str]) -> None:
        pump(shop, "invoices")
        while events := shop.lease_events("invoices", 100):
            for event in events:
                token = event.lease_token
                if event.decider_id in faults:
                    shop.fail_event("invoices", event.decider_id, event.offset, faults[event.decider_id], token)
                else:
                    shop.ack_event("invoices", event.decider_id, event.offset, lease_token=token)
                    acknowledged.append(event.offset)

    consume(wrong)
    of_stream = {stream: [event.offset for event in get_events(shop, stream, "order")] for stream in wrong}
    everything = {offset for (offset,) in rows(shop.connection, 'select "offset" from event_store.events')}
    assert set(acknowledged) == everything - set(of_stream["order-1"]) - set(of_stream["order-2"])
    with incident("A stream is parked", tmp_path, MILLRACE_DSN=dsn) as operator:
        shown = operator.follow()
        assert all(word in shown for word in (*wrong, *wrong.values(), f"offset {of_stream['order-1'][0]}"))
        operator.follow()
        consume({})
        assert set(acknowledged) == everything - set(of_stream["order-2"])
        operator.follow()
        consume({})
        operator.follow()
    # all events once, in the order of their streams, except the one that was given up
    given_up = of_stream["order-2"][0]
    assert sorted(acknowledged) == sorted(everything - {given_up})
    for stream, offsets in of_stream.items():
        assert [o for o in acknowledged if o in offsets] == [o for o in offsets if o != given_up], stream
