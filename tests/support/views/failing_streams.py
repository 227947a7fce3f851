"""A view with streams in one log partition, and a drain that fails some of them."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from millrace.event_store import Event, Lease, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.sql.drain.test_claim_batch import bulk
from tests.support.factories import ids_of_one_partition, rows, set_clock

__all__ = ["bulk"]
Delivered = list[tuple[str, UUID]]


def at(store: PlatformStore, seconds: int) -> None:
    """Set this session's clock to `seconds` after its beginning."""
    set_clock(store.connection, (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat())


def failure(decider_id: str, error: str = "no such customer") -> StreamFailure:
    return StreamFailure("order", decider_id, error)


def read(store: PlatformStore, leases: list[Lease], view: str = "v") -> list[Event]:
    return [event for lease in leases for event in store.read_batch(view, lease)]


def finish(store: PlatformStore, leases: list[Lease], poisoned: Collection[str] = (), view: str = "v") -> Delivered:
    """Process leases as a drain does: poisoned streams fail; return the acknowledged events."""
    done: Delivered = []
    with store.connection.transaction():
        for lease in leases:
            events = store.read_batch(view, lease)
            done += [(e.decider_id, e.event_id) for e in events if e.decider_id not in poisoned]
            failed = [failure(each) for each in sorted({e.decider_id for e in events} & set(poisoned))]
            if failed:
                store.fail_streams(view, lease, failed)
        store.commit_batch(view, leases)
    return done


def state(store: PlatformStore) -> object:
    return (
        rows(store.connection, "select c::text from event_store.checkpoints c order by view, partition"),
        rows(store.connection, "select k::text from event_store.stream_locks k order by view, decider_id, decider"),
    )


def locks(store: PlatformStore) -> list[tuple[str, int]]:
    return rows(store.connection, "select decider_id, attempts from event_store.stream_locks order by 1")


@pytest.fixture
def streams(bulk: PlatformStore) -> list[str]:
    """Return three streams of log partition 0, at the beginning of the clock."""
    at(bulk, 0)
    return ids_of_one_partition(bulk.connection, 3)
