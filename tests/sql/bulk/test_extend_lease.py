"""Keeping a lease while the work takes longer."""

from datetime import UTC, datetime

import pytest

from millrace.resources.errors import LeaseLost, Malformed
from millrace.resources.event_store import EventStore
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import Connect, append_to, set_clock, value

__all__ = ["bulk"]


def test_an_extended_lease_is_not_taken_over(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    set_clock(bulk.connection, "2030-01-01 00:00:50+00")
    assert bulk.extend_lease("v", leases, 60) == datetime(2030, 1, 1, 0, 1, 50, tzinfo=UTC)
    other = EventStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:49+00")
    assert other.claim_batch("v", "them") == []
    set_clock(other.connection, "2030-01-01 00:01:50+00")
    assert len(other.claim_batch("v", "them")) == 1


def test_it_lasts_the_views_lock_timeout_unless_told(bulk: EventStore) -> None:
    bulk.register_view("v", lock_timeout_s=90)
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me")
    assert value(bulk.connection, "select max(leased_until) from event_store.checkpoints").minute == 1
    set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    assert bulk.extend_lease("v", leases) == datetime(2030, 1, 1, 0, 2, 30, tzinfo=UTC)


def test_a_lost_lease_is_not_extended_nor_are_the_others_of_the_batch(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(40)])
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    other.claim_batch("v", "them", 1)
    latest = value(bulk.connection, "select max(leased_until) from event_store.checkpoints where lease_owner = 'me'")
    with pytest.raises(LeaseLost):
        bulk.extend_lease("v", leases, 10_000)
    assert latest == value(
        bulk.connection, "select max(leased_until) from event_store.checkpoints where lease_owner = 'me'"
    )


@pytest.mark.parametrize("lease_s", [0, -1])
def test_a_lease_lasts_at_least_a_second(bulk: EventStore, lease_s: int) -> None:
    append_to(bulk, "o-1")
    leases = bulk.claim_batch("v", "me")
    with pytest.raises(Malformed):
        bulk.extend_lease("v", leases, lease_s)
    with pytest.raises(Malformed):
        bulk.extend_lease("v", [])


def test_a_lease_past_its_time_is_extended_as_long_as_nobody_took_it(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    for store in (bulk, other):
        set_clock(store.connection, "2030-01-01 01:00:00+00")
    bulk.extend_lease("v", leases, 60)
    assert other.claim_batch("v", "them") == []
    bulk.commit_batch("v", leases)
    with pytest.raises(LeaseLost):
        bulk.extend_lease("v", leases, 60)
