"""What operators did, the newest first."""

from millrace.resources.event_store import EventStore


def test_the_newest_entries_come_first_and_a_view_may_be_named(orders: EventStore) -> None:
    for view in ("v", "w"):
        orders.register_view(view)
        orders.enable_view(view, False, reason=f"{view} rests")
    orders.enable_view("v", reason="v goes on")
    entries = [(e.operation, e.reason) for e in orders.audit_log()]
    registered = ("register_view", None)
    v_goes_on, w_rests, v_rests = (("enable_view", why) for why in ("v goes on", "w rests", "v rests"))
    assert entries == [v_goes_on, w_rests, registered, v_rests, registered]
    assert [(e.operation, e.reason) for e in orders.audit_log(limit=2)] == [v_goes_on, w_rests]
    assert [(e.operation, e.reason) for e in orders.audit_log("v")] == [v_goes_on, v_rests, registered]
    assert orders.audit_log("unknown") == []
