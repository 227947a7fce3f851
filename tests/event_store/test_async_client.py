"""`AsyncEventStore`: the same methods on an asynchronous connection, written from the synchronous client."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from millrace.resources.errors import Conflict
from millrace.resources.event_store import AsyncEventStore, EventStore, causing
from millrace.resources.settings import PROJECT
from scripts.write_async_client import TARGETS, Target, formatted
from tests.support.factories import append_to, new_event, register_orders


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[AsyncEventStore]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield AsyncEventStore(connection)


def running(dsn: str, work: Callable[[AsyncEventStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(dsn) as store:
            await work(store)

    asyncio.run(main())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_the_file_is_what_the_script_writes_from_the_synchronous_client(target: Target) -> None:
    assert (PROJECT / target.path).read_text() == formatted(target), "run scripts/write_async_client.py"


def test_every_method_is_there_with_the_same_arguments() -> None:
    for name, method in inspect.getmembers(EventStore, inspect.isfunction):
        twin = getattr(AsyncEventStore, name)
        if name == "__init__":
            continue
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters), name
        made = inspect.unwrap(twin)
        assert inspect.iscoroutinefunction(made) or inspect.isasyncgenfunction(made), name


def test_events_are_appended_read_consumed_and_refused(store: EventStore, dsn: str) -> None:
    register_orders(store)

    async def work(store: AsyncEventStore) -> None:
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

    running(dsn, work)
    (caused,) = store.read_stream("order", "o-3")
    (first, _) = store.read_stream("order", "o-1")
    assert caused.metadata["causation_id"] == str(first.event_id)


def test_a_stream_longer_than_a_page_is_read_whole(store: EventStore, dsn: str) -> None:
    append_to(register_orders(store), *["o-1"] * 1001)

    async def work(store: AsyncEventStore) -> None:
        assert [event.version async for event in store.read_stream("order", "o-1")] == [*range(1, 1002)]

    running(dsn, work)


def test_calls_join_the_transaction_of_their_connection(store: EventStore, dsn: str) -> None:
    register_orders(store)

    async def work(store: AsyncEventStore) -> None:
        async with store.connection.transaction(force_rollback=True):
            await store.append_events([new_event("o-1")])
            assert len(await store.get_events("o-1", "order")) == 1
        assert await store.get_events("o-1", "order") == []

    running(dsn, work)


def test_calls_go_to_a_pool_side_by_side_and_a_transaction_to_one_of_its_connections(
    store: EventStore, dsn: str
) -> None:
    register_orders(store)

    async def main() -> None:
        async with AsyncConnectionPool(dsn, min_size=1, max_size=3, open=False) as pool:
            store = AsyncEventStore(pool)
            await asyncio.gather(*(store.append_events([new_event(f"o-{n}")]) for n in range(20)))
            assert len(await store.latest_events(100)) == 20
            with pytest.raises(TypeError, match="on_one_connection"):
                _ = store.connection
            with suppress(ZeroDivisionError):
                async with store.on_one_connection() as one:
                    await one.append_events([new_event("o-99")])
                    assert await one.get_events("o-99", "order")
                    raise ZeroDivisionError
            assert await store.get_events("o-99", "order") == []
            async with store.on_one_connection() as one:
                await one.append_events([new_event("o-99")])
            assert await store.get_events("o-99", "order")

    asyncio.run(main())
