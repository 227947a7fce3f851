"""Leasing one log partition whole, for a rebuild."""

from functools import partial

import pytest

from millrace.resources.errors import (
    LeaseLost,
    Malformed,
    MillraceError,
    PartitionLeased,
    UnknownPartition,
    UnknownView,
    WrongMode,
)
from millrace.resources.event_store import EventStore, Lease
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import Connect, append_to, at_once, ids_of_one_partition, set_clock

__all__ = ["bulk"]


def test_the_range_is_all_that_the_partition_holds_also_when_nothing_is_pending(bulk: EventStore) -> None:
    (decider_id,) = ids_of_one_partition(bulk.connection, 1, partition=4)
    append_to(bulk, *[decider_id] * 5)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    first, second = bulk.claim_partition("v", 4, "me"), bulk.claim_partition("v", 5, "me")
    assert first == Lease(4, 0, 5, first.lease_token)
    assert second == Lease(5, 0, 0, second.lease_token)
    assert second.lease_token > first.lease_token


def test_a_leased_partition_is_refused_until_the_lease_ends(bulk: EventStore) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    (lease,) = bulk.claim_batch("v", "them", lease_s=60)
    with pytest.raises(PartitionLeased, match="leased by them until 2030-01-01 00:01:00"):
        bulk.claim_partition("v", lease.partition, "me")
    set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    taken_over = bulk.claim_partition("v", lease.partition, "me")
    with pytest.raises(LeaseLost):
        bulk.commit_batch("v", [lease])
    bulk.commit_batch("v", [taken_over])


def test_a_claim_leaves_a_partition_alone_that_is_being_rebuilt(bulk: EventStore) -> None:
    (decider_id,) = ids_of_one_partition(bulk.connection, 1)
    append_to(bulk, decider_id)
    lease = bulk.claim_partition("v", 0, "me")
    assert bulk.claim_batch("v", "them") == []
    assert bulk.release_batch("v", [lease]) == 1
    assert len(bulk.claim_batch("v", "them")) == 1


def test_of_two_rebuilds_at_once_one_gets_the_partition(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 2))
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([partial(store.claim_partition, "v", 0, f"owner {n}") for n, store in enumerate(stores)])
    assert sorted(type(result.exception()).__name__ for result in results) == [
        "NoneType",
        "PartitionLeased",
        "PartitionLeased",
    ]


def test_a_rebuild_takes_nothing_back_from_who_comes_after_it(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 2))
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    late = bulk.claim_partition("v", 0, "me", 60)
    other = EventStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    leases = other.claim_batch("v", "them")
    with pytest.raises(LeaseLost):
        bulk.read_batch("v", late)
    with pytest.raises(LeaseLost):
        bulk.commit_batch("v", [late])
    other.commit_batch("v", leases)
    assert (leases[0].from_position, leases[0].to_position) == (0, 2)


@pytest.mark.parametrize(
    ("view", "partition", "owner", "error"),
    [
        ("v", 16, "me", UnknownPartition),
        ("v", -1, "me", UnknownPartition),
        ("v", 0, "", Malformed),
        ("unknown", 0, "me", UnknownView),
        ("rows", 0, "me", WrongMode),
    ],
)
def test_a_wrong_claim_is_refused(
    bulk: EventStore, view: str, partition: int, owner: str, error: type[MillraceError]
) -> None:
    bulk.register_view("rows")
    with pytest.raises(error):
        bulk.claim_partition(view, partition, owner)


def test_while_somebody_commits_it_is_refused_and_new_events_still_get_their_offsets(
    bulk: EventStore, connect: Connect
) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 1, partition=4))
    (lease,) = bulk.claim_batch("v", "me")
    committing, rebuilding = EventStore(connect(autocommit=False)), EventStore(connect(autocommit=False))
    committing.commit_batch("v", [lease])
    rebuilding.connection.execute("set lock_timeout = '5s'")
    with pytest.raises(PartitionLeased, match="being claimed or committed"):
        rebuilding.claim_partition("v", 4, "rebuilder")
    append_to(bulk, "o-new")
    assert bulk.sequence_events() == 1
    rebuilding.connection.rollback()
    committing.connection.commit()
    assert bulk.claim_partition("v", 4, "rebuilder").to_position == 1
