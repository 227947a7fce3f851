"""Consumers of bulk views in REPEATABLE READ and SERIALIZABLE: right, or refused and right when repeated."""

from functools import partial
from random import Random
from threading import Lock as Mutex
from uuid import UUID

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.errors import LeaseLost, MillraceError
from millrace.resources.event_store import EventStore, StreamFailure
from tests.support.factories import (
    Connect,
    append_to,
    assert_log_holds_every_event_once,
    at_once,
    ids_of_one_partition,
    set_clock,
    start,
    value,
)
from tests.support.patience import patience
from tests.support.views.isolation import repeat, snapshot


def committed(store: EventStore, owner: str = "me", limit: int = 1000) -> list[UUID]:
    """Claim, read and commit in one transaction; return what was read."""
    leases = store.claim_batch("v", owner, limit)
    events = [event.event_id for lease in leases for event in store.read_batch("v", lease)]
    if leases:
        store.commit_batch("v", leases)
    return events


def test_a_transaction_claims_and_commits_what_its_snapshot_has(
    bulk: EventStore, connect: Connect, level: IsolationLevel
) -> None:
    seen = [event.event_id for event in append_to(bulk, "a", "b", "a")]
    late = snapshot(connect, level)
    unseen = [event.event_id for event in append_to(bulk, "a", "c")]
    assert sorted(committed(late)) == sorted(seen)
    assert committed(late) == []
    late.connection.commit()
    assert sorted(committed(bulk)) == sorted(unseen)
    assert_log_holds_every_event_once(bulk.connection)


@pytest.mark.parametrize("other", ["claimed", "committed", "released"])
def test_a_range_that_somebody_claimed_since_the_snapshot_is_not_delivered_twice(
    bulk: EventStore, connect: Connect, level: IsolationLevel, other: str
) -> None:
    events = [event.event_id for event in append_to(bulk, "a", "a")]
    bulk.sequence_events()
    late = snapshot(connect, level)
    leases = bulk.claim_batch("v", "other")
    if other == "committed":
        bulk.commit_batch("v", leases)
    if other == "released":
        bulk.release_batch("v", leases)
    with pytest.raises(SerializationFailure):
        committed(late)
    late.connection.rollback()
    assert repeat(late, lambda: committed(late)) == (events if other == "released" else [])
    leased = value(bulk.connection, "select count(*) from event_store.checkpoints where lease_owner is not null")
    assert leased == (1 if other == "claimed" else 0)


def test_a_commit_of_what_somebody_took_over_since_the_snapshot_moves_nothing(
    bulk: EventStore, connect: Connect, level: IsolationLevel
) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 2))
    late = snapshot(connect, level)
    for store in (late, bulk):
        set_clock(store.connection, "2030-01-01 00:00:00+00")
    late.connection.commit()
    lost = repeat(late, lambda: late.claim_batch("v", "late", lease_s=60))
    late.connection.execute("select")
    set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    held = bulk.claim_batch("v", "other")
    refusals: list[type[psycopg.Error | MillraceError]] = [SerializationFailure, LeaseLost]
    for error in refusals:
        with pytest.raises(error):
            late.commit_batch("v", lost)
        late.connection.rollback()
        assert value(bulk.connection, "select sum(position) from event_store.checkpoints") == 0
    bulk.commit_batch("v", held)
    assert value(bulk.connection, "select sum(position) from event_store.checkpoints") == 2


def test_racing_drains_who_repeat_take_every_event_once_and_in_order(
    bulk: EventStore, connect: Connect, racing: IsolationLevel
) -> None:
    total = 120
    mutex = Mutex()
    effects: list[UUID] = []

    def produce() -> None:
        store = EventStore(connect())
        for n in range(total // 10):
            append_to(store, *[f"o-{(n + k) % 7}" for k in range(10)])

    def consume(seed: int) -> None:
        random = Random(seed)
        store = snapshot(connect, racing)
        store.connection.rollback()
        while len(effects) < total:
            try:
                mine = committed(store, f"owner {seed}", random.randrange(1, 30))
                with mutex:
                    store.connection.commit()
                    effects.extend(mine)
            except SerializationFailure:
                store.connection.rollback()

    producer = start(produce)
    for result in at_once([partial(consume, seed) for seed in range(3)]):
        result.result()
    producer.result(patience())
    assert len(effects) == len(set(effects)) == total
    for n in range(7):
        in_order = [event.event_id for event in bulk.get_events(f"o-{n}", "order")]
        assert [event_id for event_id in effects if event_id in set(in_order)] == in_order


def test_a_stream_that_failed_since_the_snapshot_is_not_delivered_twice(
    bulk: EventStore, connect: Connect, level: IsolationLevel
) -> None:
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    append_to(bulk, "a")
    (lease,) = bulk.claim_batch("v", "dies", lease_s=60)
    late = snapshot(connect, level)
    bulk.fail_streams("v", lease, [StreamFailure("order", "a", "no")])
    set_clock(late.connection, "2030-01-01 00:01:00+00")
    got = repeat(late, lambda: committed(late))
    set_clock(bulk.connection, "2030-01-01 01:00:00+00")
    got += committed(bulk)
    assert len(got) == 1
