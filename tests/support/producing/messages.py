"""A registered producer, its messages, and a read of everything that a message may change."""

from typing import Any
from uuid import UUID

import pytest

from millrace.event_store import StreamEvents
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStatistics, ProducerStore, ReceivedMessage
from tests.support.factories import Connect, new_event, register_orders, rows

START = "2030-01-01 00:00:00+00"
LATER = "2030-01-01 00:01:00+00"


@pytest.fixture
def producer(connect: Connect) -> ProducerStore:
    """Return a store with the registered producer p, at epoch 1 and sequence 0."""
    store = ProducerStore(connect())
    register_orders(PlatformStore(store.connection))
    store.register_producer("p")
    return store


def another(connect: Connect) -> ProducerStore:
    return ProducerStore(connect())


def begin(store: ProducerStore, sequence: int, *, epoch: int = 1, timeout_s: int = 60) -> ReceivedMessage:
    return store.begin_transaction("p", 0, epoch, sequence, timeout_s)


def opened(store: ProducerStore, sequence: int, *, epoch: int = 1, timeout_s: int = 60) -> UUID:
    received = begin(store, sequence, epoch=epoch, timeout_s=timeout_s)
    assert received.status == "opened", received
    assert received.transaction_id is not None
    return received.transaction_id


def staged(store: ProducerStore, sequence: int, *, epoch: int = 1, timeout_s: int = 60, **state: int) -> UUID:
    """Begin a message and stage two events and some state."""
    transaction = opened(store, sequence, epoch=epoch, timeout_s=timeout_s)
    store.add_events(transaction, two_events())
    for key, value in state.items():
        store.add_state_change(transaction, key, value)
    return transaction


def two_events() -> list[StreamEvents]:
    return [new_event("a").alone, new_event("b").alone]


def do(store: ProducerStore, sequence: int, *, epoch: int = 1, **state: int) -> list[int]:
    """Process a whole message; return the offsets of its events."""
    settled = store.commit_transaction(staged(store, sequence, epoch=epoch, **state), {"did": sequence})
    assert not settled.duplicate
    return settled.offsets


def state_of(store: ProducerStore, producer_id: str = "p") -> dict[str, Any]:
    return {entry.key: entry.value for entry in store.get_producer_state(producer_id, 0)}


def statistics(store: ProducerStore) -> ProducerStatistics:
    """Return the counters of the producer p, and assert that they add up."""
    (found,) = store.producer_statistics("p")
    assert found.received == found.duplicates + found.refused + found.opened
    ended = found.committed + found.aborted + found.abandoned + found.expired + found.superseded
    assert found.opened == ended + found.open
    assert found.next_sequence == found.committed + found.abandoned
    return found


def effects(store: ProducerStore) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything that a message may change, except counters."""
    queries = {
        "events": 'select event_id, "offset" from event_store.events order by "offset"',
        "streams": "select decider_id, version from event_store.streams order by 1",
        "state": "select * from event_store.producer_state order by 1, 2, 3",
        "results": "select * from event_store.producer_results order by 1, 2, 3",
        "producers": "select producer_id, partition, epoch, next_sequence from event_store.producers p"
        " join event_store.producer_progress g using (producer_id, partition) order by 1, 2",
    }
    return {name: rows(store.connection, query) for name, query in queries.items()}
