"""Giving leases back: one batch, or all of a dead owner."""

from typing import LiteralString

import pytest

from millrace.resources.errors import UnknownView, WrongMode
from millrace.resources.event_store import EventStore, StreamFailure
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import Connect, append_to, set_clock, value

__all__ = ["bulk"]


def test_released_partitions_can_be_claimed_at_once_and_nothing_moved(bulk: EventStore) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(40)])
    leases = bulk.claim_batch("v", "me")
    assert bulk.release_batch("v", leases) == len(leases)
    again = bulk.claim_batch("v", "them")
    assert {(e.partition, e.from_position, e.to_position) for e in again} == {
        (e.partition, e.from_position, e.to_position) for e in leases
    }


def test_a_lost_lease_is_not_released_and_no_error(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    taken_over = other.claim_batch("v", "them")
    assert bulk.release_batch("v", leases) == 0
    assert value(bulk.connection, "select lease_owner from event_store.checkpoints where lease_owner <> ''") == "them"
    other.commit_batch("v", taken_over)
    assert other.release_batch("v", taken_over) == 0


def test_a_transaction_that_gives_back_what_it_lost_keeps_nobody_waiting(bulk: EventStore, connect: Connect) -> None:
    append_to(bulk, "o-1")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    leases = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    other.connection.execute("set lock_timeout = '1s'")
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    taken_over = other.claim_batch("v", "them")
    with bulk.connection.transaction():
        assert bulk.release_batch("v", leases) == 0
        other.commit_batch("v", taken_over)
        assert bulk.release_batch("v", taken_over) == 0
        assert other.claim_batch("v", "them") == []


def test_all_leases_of_a_dead_owner_are_given_back(bulk: EventStore) -> None:
    bulk.register_view("w", "-infinity", mode="bulk")
    append_to(bulk, "o-1", "o-2", "o-3", "o-4")
    dead = [*bulk.claim_batch("v", "dead", 1), *bulk.claim_batch("w", "dead")]
    alive = bulk.claim_batch("v", "alive")
    assert bulk.release_owner("dead") == len(dead)
    assert bulk.release_owner("dead") == 0
    bulk.commit_batch("v", alive)
    assert len(bulk.claim_batch("v", "next")) == 1


def test_a_wrong_view_is_refused(bulk: EventStore) -> None:
    bulk.register_view("rows")
    for view, error in (("unknown", UnknownView), ("rows", WrongMode)):
        with pytest.raises(error):
            bulk.release_batch(view, [])


def test_a_retry_that_is_given_back_is_due_again_with_all_its_attempts(bulk: EventStore) -> None:
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


def test_what_was_never_leased_is_not_given_back(bulk: EventStore) -> None:
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    for partitions, tokens in (
        (None, None),
        ([], []),
        ([lease.partition], None),
        ([lease.partition], [None]),
        ([lease.partition], [lease.lease_token + 1]),
        ([99], [lease.lease_token]),
    ):
        query: LiteralString = "select event_store.release_batch('v', %s::int[], %s::bigint[])"
        assert value(bulk.connection, query, partitions, tokens) == 0
    for owner in (None, "", "nobody"):
        assert bulk.release_owner(owner) == 0  # type: ignore[arg-type]
    bulk.commit_batch("v", [lease])
