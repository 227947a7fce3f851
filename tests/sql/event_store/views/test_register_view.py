"""Registering views: settings may change, progress never does."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex
from typing import Any

import pytest

from millrace.errors import Malformed, WrongMode
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, refusal, rows, set_clock
from tests.support.sql_calls import BatchEvent, append_events


def progress(store: PlatformStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.checkpoints order by view, partition")


def drained(store: PlatformStore, view: str) -> int:
    leases = store.claim_batch(view, "owner")
    if leases:
        store.commit_batch(view, leases)
    return sum(lease.to_position - lease.from_position for lease in leases)


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_registering_again_never_moves_progress(orders: PlatformStore, mode: str) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    orders.register_view("v", "-infinity", mode=mode)
    if mode == "bulk":
        assert drained(orders, "v") == 20
        append_to(orders, "o-1")
        orders.claim_batch("v", "owner")
    else:
        orders.dispatch_events("v")
    before = progress(orders)
    for start_at in ("-infinity", None, "2030-01-01 00:00:00+00"):
        orders.register_view("v", start_at, 60, 5, "http://localhost" if mode == "rows" else None, deciders=["order"])
        assert progress(orders) == before


def test_registering_again_changes_what_is_stated_and_no_other_setting(orders: PlatformStore) -> None:
    url = "http://localhost/hook"
    set_clock(orders.connection, "2026-01-01 00:00:00+00")
    made = orders.register_view("v", None, 60, 5, url, deciders=["order"], events=["paid"], max_attempts=9)
    set_clock(orders.connection, "2026-01-02 00:00:00+00")
    assert orders.register_view("v") == made
    changed = orders.register_view("v", max_attempts=8)
    assert replace(changed, max_attempts=9, updated_at=made.updated_at) == made
    assert (changed.updated_at - made.updated_at).days == 1
    ((_, start_at, *settings),) = rows(orders.connection, "select * from event_store.register_view('v')")
    assert (start_at, settings[:3]) == (made.start_at, [60, 5, url])
    assert len(orders.audit_log("v")) == 2
    for mode in ("rows", "bulk"):
        assert orders.register_view(mode, mode=mode).mode == orders.register_view(mode).mode == mode


def test_what_is_empty_clears_a_url_and_a_filter(orders: PlatformStore) -> None:
    orders.register_view("v", edge_function_url="http://localhost/hook", deciders=["order"], events=["paid"])
    view = orders.register_view("v", edge_function_url="")
    assert (view.edge_function_url, view.deciders, view.events) == (None, ["order"], ["paid"])
    view = orders.register_view("v", deciders=[])
    assert (view.deciders, view.events) == (None, ["paid"])
    view = orders.register_view("v", events=[])
    assert (view.deciders, view.events) == (None, None)
    new = orders.register_view("w", edge_function_url="", deciders=[], events=[])
    assert (new.edge_function_url, new.deciders, new.events) == (None, None, None)


@pytest.mark.parametrize(("mode", "other"), [("rows", "bulk"), ("bulk", "rows")])
def test_a_view_stays_in_its_mode_until_it_is_unregistered(orders: PlatformStore, mode: str, other: str) -> None:
    made = orders.register_view("v", "-infinity", mode=mode, version=2)
    assert f"is in mode {mode}" in str(refusal(WrongMode, partial(orders.register_view, "v", mode=other)).detail)
    # an older program changes nothing
    assert orders.register_view("v", mode=other, version=1) == orders.register_view("v") == made
    assert len(orders.audit_log("v")) == 1
    orders.unregister_view("v")
    assert orders.register_view("v", "-infinity", mode=other).mode == other
    if other == "bulk":
        refusal(Malformed, partial(orders.register_view, "v", edge_function_url="http://localhost/hook"))


def test_start_at_counts_with_its_time_zone(orders: PlatformStore) -> None:
    for hour in (9, 10, 11):
        set_clock(orders.connection, f"2026-01-01 {hour}:00:00+00")
        append(orders, f"o-{hour}")
    orders.connection.execute("set timezone = 'Asia/Tokyo'")
    view = orders.register_view("zoned", "2026-01-01 12:00:00+02", mode="bulk")  # 10:00 UTC
    assert view.start_at == datetime(2026, 1, 1, 10, tzinfo=UTC)
    orders.register_view("no zone", "2026-01-01 11:00:00", mode="bulk")
    orders.register_view("after", "2026-01-01 11:00:00.000001+00", mode="bulk")
    assert [drained(orders, view) for view in ("zoned", "no zone", "after")] == [2, 1, 0]


def test_a_view_starts_now_unless_it_says_otherwise(orders: PlatformStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(20)])
    orders.register_view("now", mode="bulk")
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("later", "infinity", mode="bulk")
    append(orders, "o-new")
    assert [drained(orders, view) for view in ("now", "all", "later")] == [1, 21, 1]


def test_any_name_is_a_name(orders: PlatformStore) -> None:
    append(orders)
    for view in ("é" * 100, "a'b\"c\\d%e", "{x}", "NULL", " "):
        orders.register_view(view, "-infinity", lock_timeout_s=3600, pooling_delay_s=2**31 - 1)
        (event,) = orders.lease_events(view)
        orders.ack_event(view, "o-1", event.offset, event.lease_token)
        orders.enable_view(view, False)
        orders.unregister_view(view)
    # except a name that a command would take for an option
    assert "begins with no -" in str(refusal(Malformed, partial(orders.register_view, "-x")).detail)


def test_the_longest_names_together_fit_what_the_store_keeps_of_a_stream(orders: PlatformStore) -> None:
    """Random names, as repetitive ones would be compressed."""
    decider, event, view = token_hex(512), token_hex(512), token_hex(100)
    orders.register_decider_event(decider, event, "d")
    orders.register_view(view, "-infinity", deciders=[decider], events=[event])
    append_events(orders, [BatchEvent(decider, token_hex(512), event, data={})])
    orders.sequence_events()
    orders.dispatch_events(view)
    assert len(orders.lease_events(view)) == 1


def test_settings_change_while_a_consumer_keeps_its_transaction_open(view: PlatformStore, connect: Connect) -> None:
    append_to(view, "a", "b")
    view.sequence_events()
    consumer = PlatformStore(connect(autocommit=False))
    assert consumer.dispatch_events("v") == 2
    assert len(consumer.lease_events("v", 1)) == 1
    view.connection.execute("set lock_timeout = '2s'")
    assert view.register_view("v", lock_timeout_s=5).lock_timeout_s == 5
    assert not view.enable_view("v", False).enabled


def test_a_lower_version_changes_no_settings_and_a_higher_one_does(orders: PlatformStore) -> None:
    assert orders.register_view("v", max_attempts=2, version=2).version == 2
    assert (orders.register_view("v", max_attempts=1, version=1).max_attempts, len(orders.audit_log("v"))) == (2, 1)
    assert orders.register_view("v", max_attempts=4, version=2).max_attempts == 4
    by_hand = orders.register_view("v", max_attempts=5)
    assert (by_hand.max_attempts, by_hand.version) == (5, 2)
    newer = orders.register_view("v", version=3)
    assert (newer.max_attempts, newer.version, len(orders.audit_log("v"))) == (5, 3, 4)
