"""What a lease delivers."""

import pytest

from millrace.resources.errors import LeaseLost
from millrace.resources.event_store import EventStore, Lease
from millrace.resources.event_store.refusals import refusals
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import append, append_to, ids_of_one_partition, rows, set_clock

__all__ = ["bulk"]


def test_the_range_comes_in_order_as_often_as_it_is_asked_for(bulk: EventStore) -> None:
    ids = ids_of_one_partition(bulk.connection, 3)
    events = [event.event_id for event in append_to(bulk, *ids * 3)]
    (lease,) = bulk.claim_batch("v", "me", 7)
    for _ in range(2):
        batch = bulk.read_batch("v", lease)
        assert [event.event_id for event in batch] == events[:7]
        assert [event.position for event in batch] == list(range(7))
        assert batch == bulk.read_log(0, 0, 7)
        append_to(bulk, *ids)
        bulk.sequence_events()


def test_only_what_the_view_wants_comes(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", deciders=["order"], events=["paid"])
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    order = [append(orders, decider_id)]
    order.append(append(orders, decider_id, order[0].event_id, event="paid"))
    append(orders, decider_id, decider="invoice", event="paid")
    order.append(append(orders, decider_id, order[1].event_id, event="shipped"))
    (lease,) = orders.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (1, 4)
    assert [event.event_id for event in orders.read_batch("v", lease)] == [order[1].event_id]


def test_it_reads_inside_a_read_only_transaction(bulk: EventStore) -> None:
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.connection.execute("set transaction isolation level repeatable read, read only")
        assert len(bulk.read_batch("v", lease)) == 1


def test_a_lease_past_its_time_delivers_until_somebody_else_takes_it(bulk: EventStore) -> None:
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me", lease_s=1)
    set_clock(bulk.connection, "2030-01-02 00:00:00+00")
    assert len(bulk.read_batch("v", lease)) == 1
    (taken_over,) = bulk.claim_batch("v", "them")
    with pytest.raises(LeaseLost, match=f"token {taken_over.lease_token} in force for them"):
        bulk.read_batch("v", lease)
    assert len(bulk.read_batch("v", taken_over)) == 1


def test_a_lease_that_was_given_back_or_never_was_delivers_nothing(bulk: EventStore) -> None:
    append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    bulk.release_batch("v", [lease])
    with pytest.raises(LeaseLost, match="no lease"):
        bulk.read_batch("v", lease)
    for partition, token in ((None, 1), (lease.partition, None), (99, 1), (-1, -1)):
        with pytest.raises(LeaseLost, match="lease is lost") as refused, refusals():
            bulk.connection.execute("select event_store.read_batch('v', %s, %s)", (partition, token))
        assert refused.value.detail
    assert rows(bulk.connection, "select distinct lease_owner from event_store.checkpoints") == [(None,)]


def test_an_empty_range_delivers_nothing(bulk: EventStore) -> None:
    lease = bulk.claim_partition("v", 5, "me")
    assert lease == Lease(5, 0, 0, lease.lease_token)
    assert bulk.read_batch("v", lease) == []
    bulk.commit_batch("v", [lease])
