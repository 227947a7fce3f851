"""The state of every view in numbers; enabling and disabling a view; the log of operators' actions."""

from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.views.test_dead_letters import park
from tests.support.factories import append, append_to, pump, set_clock


def numbers(store: PlatformStore, view: str = "v") -> tuple[int, ...]:
    (info,) = store.view_info(view)
    return (info.behind, info.in_flight, info.waiting, info.dead_letters, info.leased_partitions, info.consumers)


def test_of_a_rows_view_it_counts_what_its_streams_do(view: PlatformStore) -> None:
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    assert numbers(view) == (0, 0, 0, 0, 0, 0)
    append_to(view, "a", "b", "c", "d", "d")
    view.sequence_events()
    assert numbers(view) == (5, 0, 0, 0, 0, 0)
    park(view, "a")
    assert numbers(view) == (0, 0, 0, 1, 0, 0)
    b, c = view.lease_events("v", 2, 60)
    assert numbers(view) == (0, 2, 0, 1, 0, 0)
    view.ack_event("v", "b", b.offset)
    pump(view, "v")
    assert numbers(view) == (0, 1, 0, 1, 0, 0)
    view.schedule_nack_event("v", "c", 60_000, c.offset)
    assert numbers(view) == (0, 0, 0, 1, 0, 0)
    view.lease_events("v", 1, 60)
    assert numbers(view) == (0, 1, 0, 1, 0, 0)
    set_clock(view.connection, "2030-01-01 00:01:00+00")  # the lock ended
    assert numbers(view) == (0, 0, 1, 1, 0, 0)


def test_of_a_bulk_view_it_counts_leases_and_what_lies_ahead(bulk: PlatformStore) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(30)])
    bulk.sequence_events()
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "owner", lease_s=60)
    assert numbers(bulk) == (30, 0, 0, 0, len(leases), 0)
    set_clock(bulk.connection, "2030-01-01 00:00:59+00")
    bulk.commit_batch("v", leases[:1])
    lag = 30 - (leases[0].to_position - leases[0].from_position)
    assert numbers(bulk) == (lag, 0, 0, 0, len(leases) - 1, 0)
    set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    assert numbers(bulk) == (lag, 0, 0, 0, 0, 0)


def test_it_counts_live_consumers_and_says_mode_and_whether_it_is_enabled(view: PlatformStore) -> None:
    view.register_view("b", mode="bulk")
    view.enable_view("b", False)
    view.attach_consumer("v")
    infos = [(info.view, info.mode, info.enabled, info.consumers) for info in view.view_info()]
    assert infos == [("b", "bulk", False, 0), ("v", "rows", True, 1)]


def test_a_disabled_view_is_given_nothing_and_may_still_answer(view: PlatformStore) -> None:
    append_to(view, *"abcd", "late")
    pump(view, "v")
    a, b, c, d = view.lease_events("v", 4)
    disabled = view.enable_view("v", False)
    assert not disabled.enabled
    assert view.enable_view("v", False) == disabled
    # registering again does not enable
    assert not view.register_view("v").enabled
    assert view.lease_events("v", 10) == view.stream_events("v", 10) == []
    view.extend_lock("v", "a", a.offset, 60, a.lease_token)
    view.ack_event("v", "a", a.offset, a.lease_token)
    assert view.ack_events("v", [b.offset], [b.lease_token]) == {b.offset}
    view.nack_event("v", "c", c.offset, c.lease_token)
    view.fail_event("v", "d", d.offset, "no", d.lease_token)
    assert view.lease_events("v", 10) == []
    assert view.enable_view("v").enabled
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    assert {event.decider_id for event in view.lease_events("v", 10)} == {"c", "d", "late"}


def test_a_disabled_bulk_view_commits_what_it_leased_and_claims_no_more(bulk: PlatformStore) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(9)])
    leases = bulk.claim_batch("v", "owner")
    bulk.enable_view("v", False)
    bulk.commit_batch("v", leases)
    append(bulk, "more")
    assert bulk.claim_batch("v", "owner") == []
    bulk.enable_view("v", True)
    assert len(bulk.claim_batch("v", "owner")) == 1


def test_the_newest_entries_of_the_audit_log_come_first(orders: PlatformStore) -> None:
    for name in ("v", "w"):
        orders.register_view(name)
        orders.enable_view(name, False, reason=f"{name} rests")
    orders.enable_view("v", reason="v goes on")
    entries = [(e.operation, e.reason) for e in orders.audit_log()]
    registered = ("register_view", None)
    v_goes_on, w_rests, v_rests = (("enable_view", why) for why in ("v goes on", "w rests", "v rests"))
    assert entries == [v_goes_on, w_rests, registered, v_rests, registered]
    assert [(e.operation, e.reason) for e in orders.audit_log(limit=2)] == [v_goes_on, w_rests]
    assert [(e.operation, e.reason) for e in orders.audit_log("v")] == [v_goes_on, v_rests, registered]
    assert orders.audit_log("unknown") == []
