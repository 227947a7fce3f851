"""A store on a pool: each call takes a connection for itself, and `on_one_connection` keeps one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from millrace.resources.errors import Conflict
from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from tests.support.factories import append, new_event, register_orders


@pytest.fixture
def pool(dsn: str) -> Iterator[ConnectionPool]:
    with ConnectionPool(dsn, min_size=1, max_size=2) as pool:
        yield pool


@pytest.fixture
def pooled(pool: ConnectionPool) -> EventStore:
    return register_orders(EventStore(pool))


def test_each_call_is_a_transaction_of_its_own(pooled: EventStore, store: EventStore) -> None:
    append(pooled)
    assert len(store.get_events("o-1", "order")) == 1
    with pytest.raises(Conflict):
        append(pooled)
    assert [event.version for event in pooled.read_stream("order", "o-1")] == [1]


def test_threads_share_a_store_and_none_keeps_a_connection(pooled: EventStore, pool: ConnectionPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: pooled.append_events([new_event(f"o-{n}")]), range(40)))
    assert len(pooled.latest_events(100)) == 40
    pages = pooled.read_stream("order", "o-1")
    next(pages)
    # a reader that stops in the middle of a stream holds none either
    assert pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"]


def test_one_connection_is_one_transaction_of_the_pool(pooled: EventStore, store: EventStore) -> None:
    with suppress(ZeroDivisionError), pooled.on_one_connection() as one:
        append(one, "o-1")
        assert one.connection.info.backend_pid
        raise ZeroDivisionError
    assert store.get_events("o-1", "order") == []
    with pooled.on_one_connection() as one:
        append(one, "o-1")
        assert store.get_events("o-1", "order") == []
    assert len(store.get_events("o-1", "order")) == 1


def test_a_store_on_a_connection_stays_on_it(store: EventStore) -> None:
    with store.on_one_connection() as one:
        assert one.connection is store.connection
    assert store.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_store_on_a_pool_has_no_connection_to_ask_for(pooled: EventStore) -> None:
    with pytest.raises(TypeError, match=r"on_one_connection\(\)"):
        _ = pooled.connection


def test_producers_take_a_pool_too(pooled: EventStore, pool: ConnectionPool) -> None:
    producers = ProducerStore(pool)
    epoch = producers.register_producer("p").epoch
    producers.ingest_events("p", 0, epoch, 0, [new_event("o-1")])
    assert len(pooled.get_events("o-1", "order")) == 1
