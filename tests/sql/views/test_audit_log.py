"""What operators did, the newest first."""

from millrace.resources.event_store import EventStore


def test_the_newest_entries_come_first_and_a_view_may_be_named(orders: EventStore) -> None:
    for view in ("v", "w"):
        orders.register_view(view)
        orders.enable_view(view, False, reason=f"{view} rests")
    orders.enable_view("v", reason="v goes on")
    assert [entry.reason for entry in orders.audit_log()] == ["v goes on", "w rests", "v rests"]
    assert [entry.reason for entry in orders.audit_log(limit=2)] == ["v goes on", "w rests"]
    assert [entry.reason for entry in orders.audit_log("v")] == ["v goes on", "v rests"]
    assert orders.audit_log("unknown") == []
