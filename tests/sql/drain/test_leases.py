"""A lease while it is held: its events, its extension and release; a lease of a whole log partition."""

from functools import partial

import pytest

from millrace.errors import PartitionLeased
from millrace.event_store import ExpiredLease, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, at_once, ids_of_one_partition, set_clock, value


def test_the_range_comes_in_order_as_often_as_it_is_asked_for(bulk: PlatformStore) -> None:
    ids = ids_of_one_partition(bulk.connection, 3)
    events = [event.event_id for event in append_to(bulk, *ids * 3)]
    (lease,) = bulk.claim_batch("v", "me", 7)
    for _ in range(2):
        with bulk.connection.transaction():
            bulk.connection.execute("set transaction isolation level repeatable read, read only")
            batch = bulk.read_batch("v", lease)
        assert [event.event_id for event in batch] == events[:7]
        assert [event.position for event in batch] == list(range(7))
        assert batch == bulk.read_log(0, 0, 7)
        append_to(bulk, *ids)
        bulk.sequence_events()


def test_a_transaction_that_gives_back_what_it_lost_keeps_nobody_waiting(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    other = PlatformStore(connect())
    other.connection.execute("set lock_timeout = '30s'")
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    taken_over = other.claim_batch("v", "them")
    with bulk.connection.transaction():
        assert bulk.release_batch("v", leases) == 0
        other.commit_batch("v", taken_over)
        assert bulk.release_batch("v", taken_over) == 0
        assert other.claim_batch("v", "them") == []


def test_leases_past_their_time_are_counted_by_view_and_owner(orders: PlatformStore) -> None:
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


def test_of_two_rebuilds_at_once_one_gets_the_partition(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 2))
    results = at_once([partial(PlatformStore(connect()).claim_partition, "v", 0, f"owner {n}") for n in range(3)])
    assert sorted(type(result.exception()).__name__ for result in results) == ["NoneType", *["PartitionLeased"] * 2]


def test_while_somebody_commits_a_rebuild_is_refused_and_others_go_on(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 1, partition=4))
    (lease,) = bulk.claim_batch("v", "me")
    committing, rebuilding = PlatformStore(connect(autocommit=False)), PlatformStore(connect(autocommit=False))
    committing.commit_batch("v", [lease])
    rebuilding.connection.execute("set lock_timeout = '30s'")
    with pytest.raises(PartitionLeased, match="being claimed or committed"):
        rebuilding.claim_partition("v", 4, "rebuilder")
    append_to(bulk, "o-new")
    assert bulk.sequence_events() == 1
    rebuilding.connection.rollback()
    committing.connection.commit()
    assert bulk.claim_partition("v", 4, "rebuilder").to_position == 1


def test_a_retry_that_is_given_back_is_due_again_with_all_its_attempts(bulk: PlatformStore) -> None:
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    append_to(bulk, "o-1", "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [StreamFailure("order", "o-1", "no")])
    bulk.commit_batch("v", [lease])
    set_clock(bulk.connection, "2030-01-01 00:00:05+00")
    leases = bulk.claim_batch("v", "me")
    delivered = bulk.read_batch("v", leases[0])
    assert bulk.release_batch("v", leases) == 1
    again = bulk.claim_batch("v", "them")
    assert bulk.read_batch("v", again[0]) == delivered
    assert len(delivered) == 2
    assert value(bulk.connection, "select attempts from event_store.stream_locks") == 1
