"""Leasing ranges of the log: which consumer gets which range, and never two the same."""

import pytest

from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, ids_of_one_partition, rows, set_clock, value


@pytest.fixture
def bulk(orders: PlatformStore) -> PlatformStore:
    """Return a store with a bulk view `v` that wants everything."""
    orders.register_view("v", "-infinity", mode="bulk")
    return orders


def test_a_claim_takes_at_most_the_limit(bulk: PlatformStore) -> None:
    for _ in range(2):  # from 0, and from a position above it
        append_to(bulk, *[f"o-{n}" for n in range(30)])
        for limit in (1, 7, 30, 2**63 - 1):
            leases = bulk.claim_batch("v", "me", limit)
            assert sum(lease.to_position - lease.from_position for lease in leases) == min(limit, 30)
            assert all(lease.from_position < lease.to_position for lease in leases)
            if limit < 2**63 - 1:
                bulk.release_batch("v", leases)
        bulk.commit_batch("v", leases)


def test_the_oldest_pending_event_is_claimed_first(bulk: PlatformStore) -> None:
    hot, cold = (ids_of_one_partition(bulk.connection, 1, partition)[0] for partition in (0, 1))
    append_to(bulk, *[hot] * 10, cold, *[hot] * 50)
    taken = []
    while leases := bulk.claim_batch("v", "me", 10):
        taken.append([(lease.partition, lease.from_position, lease.to_position) for lease in leases])
        bulk.commit_batch("v", leases)
    assert [sorted(each) for each in taken[:2]] == [[(0, 0, 10)], [(0, 10, 19), (1, 0, 1)]]


def test_a_claim_skips_what_an_open_claim_holds_and_never_waits(bulk: PlatformStore, connect: Connect) -> None:
    append_to(bulk, *[f"o-{n}" for n in range(60)])
    bulk.sequence_events()
    holder = connect(autocommit=False)
    held = PlatformStore(holder).claim_batch("v", "me")
    assert bulk.claim_batch("v", "them") == []
    holder.rollback()
    again = bulk.claim_batch("v", "them")
    assert {(of.partition, of.to_position) for of in again} == {(of.partition, of.to_position) for of in held}


def test_there_is_no_phantom_lease(bulk: PlatformStore, connect: Connect) -> None:
    """A claim with a snapshot older than another's commit neither redelivers nor leases an empty range."""
    append(bulk)
    bulk.sequence_events()
    first, second = connect(), connect(autocommit=False)
    leases = PlatformStore(first).claim_batch("v", "me")
    second.execute("select from event_store.checkpoints")  # its transaction is older than the commit
    PlatformStore(first).commit_batch("v", leases)
    assert PlatformStore(second).claim_batch("v", "them") == []
    second.commit()
    assert value(bulk.connection, "select count(*) from event_store.checkpoints where lease_owner is not null") == 0


def test_a_claim_is_not_stopped_by_open_transactions_of_operators(bulk: PlatformStore, connect: Connect) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=1)
    bad, other, good = ids_of_one_partition(bulk.connection, 3)
    append_to(bulk, bad, other)
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [StreamFailure("order", each, "no") for each in (bad, other)])
    bulk.commit_batch("v", [lease])
    append_to(bulk, good)
    operator = connect(autocommit=False)
    PlatformStore(operator).retry_dead_letters("v", "order", bad)
    PlatformStore(operator).discard_dead_letter("v", "order", other, "a test")
    bulk.connection.execute("set lock_timeout = '30s'")
    leases = bulk.claim_batch("v", "me")
    assert [event.decider_id for event in bulk.read_batch("v", leases[0])] == [good]
    operator.commit()
    bulk.commit_batch("v", leases)
    assert [event.decider_id for event in bulk.read_batch("v", bulk.claim_batch("v", "me")[0])] == [bad]


def test_events_that_the_view_does_not_want_are_passed_over(orders: PlatformStore) -> None:
    orders.register_view("orders", "-infinity", mode="bulk", deciders=["order"])
    orders.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    last = None
    for _ in range(5):
        last = append(orders, decider_id, last, decider="invoice").event_id
    for view in ("orders", "paid"):
        assert orders.claim_batch(view, "me") == []
    positions = rows(orders.connection, "select position from event_store.checkpoints where partition = 0")
    assert positions == [(5,), (5,)]
    append(orders, decider_id, last, decider="invoice")
    append(orders, decider_id, decider="order", event="paid")
    for view in ("orders", "paid"):
        (lease,) = orders.claim_batch(view, "me")
        assert (lease.from_position, lease.to_position) == (6, 7)


def test_a_claim_that_finds_nothing_writes_nothing(bulk: PlatformStore, connect: Connect) -> None:
    idle = PlatformStore(connect(autocommit=False))
    for store in (bulk, idle):
        set_clock(store.connection, "2030-01-01 00:00:00+00")  # the sequencer need not record its call
    append_to(bulk, "o-1")
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    assert idle.claim_batch("v", "me") == []
    assert value(idle.connection, "select pg_current_xact_id_if_assigned()") is None
