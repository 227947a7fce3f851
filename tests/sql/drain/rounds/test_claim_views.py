"""Leasing ranges of many bulk views in one call: the leases of each view, and the reason if a view gets none."""

import pytest

from millrace.errors import WrongMode
from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, refusal, set_clock
from tests.support.sql_calls import get_events


@pytest.fixture
def bulk(orders: PlatformStore) -> PlatformStore:
    """Return a store with three bulk views: of everything, of payments, of invoices."""
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    orders.register_view("invoices", "-infinity", mode="bulk", deciders=["invoice"])
    return orders


VIEWS = ["all", "paid", "invoices"]


def test_each_view_gets_the_ranges_that_it_wants_something_of(bulk: PlatformStore) -> None:
    append(bulk, "o-1")
    (event,) = get_events(bulk, "o-1", "order")
    append(bulk, "o-1", event.event_id, event="paid")
    leases = bulk.claim_views(VIEWS, "me")
    spans = {view: [(lease.from_position, lease.to_position) for lease in of] for view, of in leases.items()}
    assert spans == {"all": [(0, 2)], "paid": [(1, 2)]}
    assert len({lease.lease_token for of in leases.values() for lease in of}) == 2
    assert bulk.claim_views(VIEWS, "them") == {}
    for view, of in leases.items():
        bulk.commit_batch(view, of)
    assert bulk.claim_views(VIEWS, "them") == {}


def test_an_owners_leases_are_found_and_extended_at_once(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(30)])
    bulk.register_view("other", "-infinity", mode="bulk")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_views([*VIEWS, "other"], "me", lease_s=60)
    assert set(leases) == {"all", "other"}
    assert bulk.owned_leases("me") == leases
    assert bulk.owned_leases("them") == {}
    set_clock(bulk.connection, "2030-01-01 00:00:59+00")
    assert bulk.extend_owner("me", 60) == sum(len(of) for of in leases.values())
    assert bulk.extend_owner("them", 60) == 0
    set_clock(bulk.connection, "2030-01-01 00:01:58+00")
    assert bulk.owned_leases("me") == leases
    set_clock(bulk.connection, "2030-01-01 00:01:59+00")
    assert bulk.owned_leases("me") == {}
    assert bulk.extend_owner("me", 60) == 0
    other = PlatformStore(connect())
    set_clock(other.connection, "2030-01-01 00:02:00+00")
    taken = other.claim_views(["all"], "them")
    assert sum(lease.to_position - lease.from_position for lease in taken["all"]) == 30
    assert bulk.release_owner("me") == len(leases["other"])


def test_streams_with_a_lock_in_leased_log_partitions_are_named(bulk: PlatformStore) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(30)])
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_views(["all"], "me")["all"]
    lease = leases[0]
    (failed, *_) = bulk.read_batch("all", lease)
    bulk.fail_streams("all", lease, [StreamFailure("order", failed.decider_id, "no")])
    bulk.commit_batch("all", leases)
    assert bulk.locked_streams("me") == []
    append_to(bulk, *[f"o-{n}" for n in range(30)])
    bulk.claim_views(["all"], "me")
    (locked,) = bulk.locked_streams("me")
    assert (locked.view, locked.partition) == ("all", lease.partition)
    assert (locked.decider, locked.decider_id) == ("order", failed.decider_id)
    assert bulk.locked_streams("them") == []


def test_what_cannot_be_claimed_is_left_out_and_the_others_go_on(bulk: PlatformStore) -> None:
    append_to(bulk, "o-1")
    bulk.register_view("off", "-infinity", mode="bulk")
    bulk.enable_view("off", False, reason="a test")
    assert set(bulk.claim_views(["off", "nobody", "all", "all"], "me")) == {"all"}
    assert bulk.claim_views([], "me") == {}
    bulk.register_view("rows", mode="rows")
    refusal(WrongMode, lambda: bulk.claim_views(["all", "rows"], "me"))
