"""Consumers of bulk views in REPEATABLE READ and SERIALIZABLE: right, or refused and right when retried."""

from functools import partial
from random import Random
from threading import Lock as Mutex
from uuid import UUID

import pytest
from psycopg.errors import SerializationFailure

from millrace.errors import LeaseLost
from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.sql_calls import get_events
from tests.support.views.isolation import Session, assert_not_serializable, repeat


def committed(store: PlatformStore, owner: str = "me", limit: int = 1000) -> list[UUID]:
    """Claim, read and commit in one transaction; return the events read."""
    leases = store.claim_batch("v", owner, limit)
    events = [event.event_id for lease in leases for event in store.read_batch("v", lease)]
    if leases:
        store.commit_batch("v", leases)
    return events


def test_a_transaction_claims_and_commits_what_its_snapshot_has(bulk: PlatformStore, snapshot: Session) -> None:
    seen = [event.event_id for event in factories.append_to(bulk, "a", "b", "a")]
    late = snapshot()
    unseen = [event.event_id for event in factories.append_to(bulk, "a", "c")]
    assert sorted(committed(late)) == sorted(seen)
    assert committed(late) == []
    late.connection.commit()
    assert sorted(committed(bulk)) == sorted(unseen)
    factories.assert_log_holds_every_event_once(bulk.connection)


@pytest.mark.parametrize("other", ["claimed", "committed", "released"])
def test_a_range_claimed_since_is_not_delivered_twice(bulk: PlatformStore, snapshot: Session, other: str) -> None:
    events = [event.event_id for event in factories.append_to(bulk, "a", "a")]
    bulk.sequence_events()
    late = snapshot()
    leases = bulk.claim_batch("v", "other")
    if other != "claimed":
        (bulk.commit_batch if other == "committed" else bulk.release_batch)("v", leases)
    assert_not_serializable(late, lambda: committed(late))
    assert repeat(late, lambda: committed(late)) == (events if other == "released" else [])
    leased = factories.value(
        bulk.connection, "select count(*) from event_store.checkpoints where lease_owner is not null"
    )
    assert leased == (1 if other == "claimed" else 0)


def test_a_commit_of_what_was_taken_over_moves_nothing(bulk: PlatformStore, snapshot: Session) -> None:
    factories.append_to(bulk, *factories.ids_of_one_partition(bulk.connection, 2))
    late = snapshot()
    for store in (late, bulk):
        factories.set_clock(store.connection, "2030-01-01 00:00:00+00")
    late.connection.commit()
    lost = repeat(late, lambda: late.claim_batch("v", "late", lease_s=60))
    late.connection.execute("select")
    factories.set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    held = bulk.claim_batch("v", "other")
    assert_not_serializable(late, lambda: late.commit_batch("v", lost))
    with pytest.raises(LeaseLost):
        late.commit_batch("v", lost)
    late.connection.rollback()
    assert factories.value(bulk.connection, "select sum(position) from event_store.checkpoints") == 0
    bulk.commit_batch("v", held)
    assert factories.value(bulk.connection, "select sum(position) from event_store.checkpoints") == 2


def test_drains_who_repeat_take_each_event_once_in_order(bulk: PlatformStore, connect: Connect, racer: Session) -> None:
    total = 120
    mutex = Mutex()
    effects: list[UUID] = []

    def produce() -> None:
        store = PlatformStore(connect())
        for n in range(total // 10):
            factories.append_to(store, *[f"o-{(n + k) % 7}" for k in range(10)])

    def consume(seed: int) -> None:
        random = Random(seed)
        store = racer()
        while len(effects) < total:
            try:
                mine = committed(store, f"owner {seed}", random.randrange(1, 30))
                with mutex:
                    store.connection.commit()
                    effects.extend(mine)
            except SerializationFailure:
                store.connection.rollback()

    producer = factories.start(produce)
    for result in factories.at_once([partial(consume, seed) for seed in range(3)]):
        result.result()
    producer.result(patience())
    assert len(effects) == len(set(effects)) == total
    for n in range(7):
        in_order = [event.event_id for event in get_events(bulk, f"o-{n}", "order")]
        assert [event_id for event_id in effects if event_id in set(in_order)] == in_order


def test_a_stream_that_failed_since_is_not_delivered_twice(bulk: PlatformStore, snapshot: Session) -> None:
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    factories.append_to(bulk, "a")
    (lease,) = bulk.claim_batch("v", "dies", lease_s=60)
    late = snapshot()
    bulk.fail_streams("v", lease, [StreamFailure("order", "a", "no")])
    factories.set_clock(late.connection, "2030-01-01 00:01:00+00")
    got = repeat(late, lambda: committed(late))
    factories.set_clock(bulk.connection, "2030-01-01 01:00:00+00")
    got += committed(bulk)
    assert len(got) == 1
