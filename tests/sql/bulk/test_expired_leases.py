"""Leases past their time, which nobody gave back."""

from millrace.resources.event_store import EventStore, ExpiredLease
from tests.support.factories import append_to, set_clock


def test_leases_past_their_time_are_counted_by_view_and_owner(orders: EventStore) -> None:
    for view in ("v", "w"):
        orders.register_view(view, "-infinity", lock_timeout_s=60, mode="bulk")
    append_to(orders, *[f"o-{n}" for n in range(40)])
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    leased = len(orders.claim_batch("v", "dead"))
    live = orders.claim_batch("w", "alive", lease_s=61)
    assert leased > 1
    assert orders.expired_leases() == []
    set_clock(orders.connection, "2030-01-01 00:01:00+00")
    assert orders.expired_leases() == [ExpiredLease("v", "dead", leased)]
    orders.release_owner("dead")
    assert orders.expired_leases() == []
    orders.release_batch("w", live)
