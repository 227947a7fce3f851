"""Clients of the store: guests on a caller's connection, on a pool, and the asynchronous one.

The asynchronous client is written from the synchronous one: it is the derivation that is tested, and each kind of call
once. Not here: what the calls do (tests/sql).
"""

import asyncio
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import Conflict
from millrace.resources.event_store import AsyncEventStore, EventStore, causing
from millrace.resources.event_store.sql_functions import SqlFunctions
from millrace.resources.producers import ProducerStore
from millrace.resources.settings import PROJECT
from scripts.write_async_client import TARGETS, formatted
from tests.support.factories import Connect, append, new_event, register_orders

# On the caller's connection ----------------------------------------------------------------------------------------


def test_the_callers_own_queries_read_values_as_without_a_client(connect: Connect) -> None:
    for store in (EventStore, CaptureStore):
        connection = connect()
        client = store(connection)
        assert client.connection is connection
        for used in (False, True):
            if used:
                EventStore(connection).poll_views()
            for query in ("select 'infinity'::timestamptz", "select '-infinity'::timestamptz"):
                with pytest.raises(psycopg.DataError):
                    connection.execute(query.encode()).fetchone()
            assert connection.execute("select '0/10'::pg_lsn").fetchone() == ("0/10",)


def test_the_client_reads_infinite_times_as_the_ends_of_pythons_range(store: EventStore) -> None:
    assert store.register_view("old", "-infinity").start_at == datetime.min.replace(tzinfo=UTC)
    assert store.register_view("never", "infinity").start_at == datetime.max.replace(tzinfo=UTC)


def test_the_callers_row_factory_is_no_matter_to_the_client(connect: Connect) -> None:
    connection = connect()
    connection.row_factory = dict_row  # type: ignore[assignment]
    store = register_orders(EventStore(connection))
    assert store.sequence_events() == 0
    assert store.register_view("v").view == "v"
    assert store.ack_events("v", []) == set()
    assert store.partition_info()[0].high_water_mark == 0


@dataclass(frozen=True)
class Counted:
    """A row with a default, a text of JSON and a value that is made of it."""

    number: int
    value_json: str
    exact: bool = True

    @cached_property
    def value(self) -> object:
        return json.loads(self.value_json)


class Numbers(SqlFunctions):
    """Calls that give rows of several shapes."""

    def counted(self, query: str) -> Counted:
        return self._one(Counted, query)


def test_a_row_is_what_the_constructor_of_its_dataclass_makes(connect: Connect) -> None:
    numbers = Numbers(connect())
    one = numbers.counted("""select 1 as number, '{"a": 1}'::jsonb as value""")
    same = Counted(1, '{"a": 1}')
    assert (one, hash(one), repr(one), one.exact, one.value) == (same, hash(same), repr(same), True, {"a": 1})
    assert replace(one, number=2) == Counted(2, '{"a": 1}')
    assert pickle.loads(pickle.dumps(one)) == copy(one) == one
    with pytest.raises(FrozenInstanceError):
        one.number = 2  # type: ignore[misc]
    assert not numbers.counted("select 1 as number, '1'::jsonb as value, false as exact").exact
    for columns in ("1 as number", "1 as number, '1'::jsonb as value, 1 as other"):
        with pytest.raises(TypeError, match="are not those of Counted: exact, number, value_json"):
            numbers.counted(f"select {columns}")


# On a pool ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(dsn: str) -> Iterator[ConnectionPool]:
    with ConnectionPool(dsn, min_size=1, max_size=2) as pool:
        yield pool


def test_threads_share_a_store_whose_calls_are_transactions_and_keep_no_connection(
    pool: ConnectionPool, store: EventStore
) -> None:
    pooled = register_orders(EventStore(pool))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: pooled.append_events([new_event(f"o-{n}")]), range(40)))
    assert len(store.latest_events(100)) == 40
    with pytest.raises(Conflict):
        append(pooled)
    pages = pooled.read_stream("order", "o-1")
    next(pages)
    # a reader that stops in the middle of a stream holds none either
    assert pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"]
    with pytest.raises(TypeError, match=r"on_one_connection\(\)"):
        _ = pooled.connection
    producers = ProducerStore(pool)
    producers.ingest_events("p", 0, producers.register_producer("p").epoch, 0, [new_event("p-1")])
    assert len(pooled.get_events("p-1", "order")) == 1


def test_one_connection_is_one_transaction_of_the_pool(pool: ConnectionPool, store: EventStore) -> None:
    pooled = register_orders(EventStore(pool))
    with suppress(ZeroDivisionError), pooled.on_one_connection() as one:
        append(one, "o-1")
        assert one.connection.info.backend_pid
        raise ZeroDivisionError
    assert store.get_events("o-1", "order") == []
    with pooled.on_one_connection() as one:
        append(one, "o-1")
        assert store.get_events("o-1", "order") == []
    assert len(store.get_events("o-1", "order")) == 1
    # a store on a connection stays on it
    with store.on_one_connection() as one:
        assert one.connection is store.connection
    assert store.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


# The asynchronous one ----------------------------------------------------------------------------------------------


def test_the_asynchronous_files_are_what_the_script_writes_from_the_synchronous_ones() -> None:
    stale = [each.path for each in TARGETS if (PROJECT / each.path).read_text() != formatted(each)]
    assert stale == [], "run scripts/write_async_client.py"


def test_on_a_loop_events_are_appended_read_consumed_and_refused(store: EventStore, dsn: str) -> None:
    register_orders(store)

    async def work(store: AsyncEventStore) -> None:
        async with store.connection.transaction(force_rollback=True):
            await store.append_events([new_event("o-1")])
            assert len(await store.get_events("o-1", "order")) == 1
        placed = await store.append_event("placed", uuid4(), "order", "o-1", {"n": 1}, uuid4(), None)
        with pytest.raises(Conflict):
            await store.append_event("placed", uuid4(), "order", "o-1", {}, uuid4(), None)
        await store.append_events([new_event("o-1"), new_event("o-2")])
        assert [event.version async for event in store.read_stream("order", "o-1", backwards=True)] == [2, 1]
        await store.register_view("v", "-infinity")
        await store.sequence_events()
        (first, _) = sorted(await store.lease_events("v", 10), key=lambda event: event.decider_id)
        assert (first.event_id, first.data) == (placed.event_id, {"n": 1})
        with causing(first):
            await store.append_events([new_event("o-3")])
        await store.register_view("b", "-infinity", mode="bulk")
        claimed = (await store.claim_views(["b"], "me"))["b"]
        assert sum([len(await store.read_batch("b", lease)) for lease in claimed]) == 4
        assert await store.sequencer_holder() is None

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await work(AsyncEventStore(connection))

    asyncio.run(main())
    (caused,) = store.read_stream("order", "o-3")
    (first, _) = store.read_stream("order", "o-1")
    assert caused.metadata["causation_id"] == str(first.event_id)
