"""Clients of the store: guests on a caller's connection, on a pool, and the asynchronous one.

The asynchronous client is derived from the synchronous one: tested are the derivation, and each kind of call once.
Not here: the effects of the calls (tests/sql).
"""

import asyncio
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec import Struct, structs
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from millrace.capture.store import CaptureStore
from millrace.errors import Conflict, Malformed, MillraceError
from millrace.event_store import (
    NO_STREAM,
    Appended,
    AsyncEventStore,
    AsyncViews,
    EventStore,
    NewEvent,
    Views,
    causing,
    on,
)
from millrace.event_store.platform import PlatformStore
from millrace.event_store.sql_functions import CHECK_AFTER_CALLS, SqlFunctions
from millrace.producers import ProducerStore
from scripts.write_async_client import TARGETS, formatted
from tests.support.factories import Connect, append, new_event, register_orders, value
from tests.support.project import PROJECT
from tests.support.sql_calls import append_events, get_events

# On the caller's connection ----------------------------------------------------------------------------------------


def test_threads_that_share_a_connection_get_their_own_rows(orders: PlatformStore) -> None:
    def work(number: int) -> None:
        for version in range(1, 31):
            stored = orders.append("order", f"o-{number}", NewEvent("placed", number))
            assert (stored.decider_id, stored.version) == (f"o-{number}", version)
            assert [event.data for event in orders.read("order", f"o-{number}")] == [number] * version

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # even between two statements of a call
    try:
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, number) for number in range(8)]:
                done.result()
    finally:
        sys.setswitchinterval(usual)


def test_the_callers_own_queries_read_values_as_without_a_client(connect: Connect) -> None:
    for store in (PlatformStore, CaptureStore):
        connection = connect()
        client = store(connection)
        assert client.connection is connection
        for used in (False, True):
            if used:
                PlatformStore(connection).poll_views()
            for query in ("select 'infinity'::timestamptz", "select '-infinity'::timestamptz"):
                with pytest.raises(psycopg.DataError):
                    connection.execute(query.encode()).fetchone()
            assert connection.execute("select '0/10'::pg_lsn").fetchone() == ("0/10",)


def test_the_client_reads_infinite_times_as_the_ends_of_pythons_range(store: PlatformStore) -> None:
    assert store.register_view("old", "-infinity").start_at == datetime.min.replace(tzinfo=UTC)
    assert store.register_view("never", "infinity").start_at == datetime.max.replace(tzinfo=UTC)


def test_a_text_of_a_time_is_one_moment_or_refused(store: PlatformStore) -> None:
    store.connection.execute("set timezone = 'Asia/Tokyo'")
    assert store.register_view("v", " 2026-1-01 11:00").start_at == datetime(2026, 1, 1, 11, tzinfo=UTC)
    for text in ("now", "10/11/2011", "2026-01-01 11:00 JST", "20260101", ""):
        for call in (
            partial(store.register_view, "w", text),
            partial(store.offset_for_timestamp, 0, text),
            partial(store.seek_view, "v", "EXACT_TIMESTAMP", timestamp=text),
        ):
            with pytest.raises(Malformed) as refused:
                call()
            assert "2024-02-29T09:30:15.25+02:00" in str(refused.value.hint)


def test_the_callers_row_factory_is_no_matter_to_the_client(connect: Connect) -> None:
    connection = connect()
    connection.row_factory = dict_row  # type: ignore[assignment]
    store = register_orders(PlatformStore(connection))
    assert store.sequence_events() == 0
    assert store.register_view("v").view == "v"
    assert store.ack_events("v", []) == set()
    assert store.partition_info()[0].high_water_mark == 0


@dataclass(frozen=True)
class Counted:
    """A row with a default, a text of JSON and a value parsed from it."""

    number: int
    value_json: str
    exact: bool = True

    @cached_property
    def value(self) -> object:
        return json.loads(self.value_json)


class CountedMuch(Struct, frozen=True, dict=True):
    """The same for large numbers of rows."""

    number: int
    value_json: str
    exact: bool = True
    value = cached_property(lambda self: json.loads(self.value_json))


class Numbers(SqlFunctions):
    def counted(self, row: type[Counted | CountedMuch], query: str) -> Counted | CountedMuch:
        return self._one(row, query)


@pytest.mark.parametrize("row", [Counted, CountedMuch])
def test_a_row_is_what_the_constructor_of_its_class_makes(connect: Connect, row: type[Counted | CountedMuch]) -> None:
    counted = partial(Numbers(connect()).counted, row)
    one = counted("""select 1 as number, '{"a": 1}'::jsonb as value""")
    same = row(1, '{"a": 1}')
    assert (one, hash(one), repr(one), one.exact, one.value) == (same, hash(same), repr(same), True, {"a": 1})
    assert pickle.loads(pickle.dumps(one)) == copy(one) == one
    with pytest.raises(AttributeError):
        one.number = 2  # type: ignore[misc]
    assert not counted("select false as exact, '1'::jsonb as value, 1 as number").exact
    # a store newer than the program has one more column
    assert counted("""select 1 as number, 2 as other, '{"a": 1}'::jsonb as value""") == same
    with pytest.raises(TypeError, match=f"lack some of {row.__name__}: value_json"):
        counted("select 1 as number")


ASYNC: dict[type[EventStore | Views], Any] = {EventStore: AsyncEventStore, Views: AsyncViews}


async def _call_both(
    connection: psycopg.Connection, call: Callable[[Any], Any], kind: type[EventStore | Views] = EventStore
) -> list[object]:
    """Return the results of a call on both clients; a refusal as its exception."""
    gave: list[object] = []
    async with await psycopg.AsyncConnection.connect(connection.info.dsn, autocommit=True) as other:
        for store in (kind(connection), ASYNC[kind](other)):
            try:
                result = call(store)
                gave.append(await result if inspect.isawaitable(result) else result)
            except MillraceError as error:
                gave.append(error)
    return gave


@pytest.mark.parametrize(
    ("argument", "stored"),
    [
        ({"data": {"buyer": UUID(int=1)}}, ("o-1", {"buyer": str(UUID(int=1))})),
        ({"data": {"text": "a\\u0000 \\ud800 \U0001f600"}}, ("o-1", {"text": "a\\u0000 \\ud800 \U0001f600"})),
        ({"decider_id": 5}, ("5", {})),
    ],
    ids=["a UUID in data", "what looks like an escape", "an int as id"],
)
def test_one_meaning_is_stored_as_that(
    store: PlatformStore, argument: dict[str, Any], stored: tuple[str, object]
) -> None:
    register_orders(store)
    given = {"decider_id": "o-1", "data": {}, **argument}

    async def appended() -> None:
        one, name = NewEvent("placed", given["data"]), given["decider_id"]
        first, again = await _call_both(store.connection, lambda client: client.append("order", name, one))
        assert isinstance(first, Appended)
        assert again == structs.replace(first, appended=False)
        # a batch treats it as the same event too
        for told in await _call_both(store.connection, lambda client: client.append_all([on("order", name, one)])):
            assert told == [again]

    asyncio.run(appended())
    assert [(event.decider_id, event.data) for event in get_events(store, given["decider_id"], "order")] == [stored]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, "an object of type datetime is not JSON"),
        ({"n": float("nan")}, "Out of range float values"),
        ({UUID(int=1): 1}, "keys must be str"),
        ({"text": "a\ud800"}, "surrogates not allowed"),
        ({"text": "a\0b"}, "a text has the character NUL"),
        ({"text": "\\\0"}, "a text has the character NUL"),
    ],
)
def test_data_that_are_no_json_are_refused_by_event(store: PlatformStore, data: dict[str, object], said: str) -> None:
    register_orders(store)
    batch = [on("order", f"o-{number}", NewEvent("placed", data if number == 321 else {})) for number in range(500)]
    calls: list[tuple[Callable[[Any], Any], str]] = [
        (lambda client: client.append("order", "o-1", NewEvent("placed", data)), ""),
        (lambda client: client.append("order", "o-1", NewEvent("placed"), NewEvent("paid", data)), "event 2 of the "),
        (lambda client: client.append_all(batch), "event 322 of the batch: "),
    ]
    for call, named in calls:
        for refused in asyncio.run(_call_both(store.connection, call)):
            assert isinstance(refused, Malformed)
            assert said in str(refused.detail)
            assert str(refused.detail).startswith(named)
    assert store.latest_events(1) == []


def test_an_argument_that_no_function_takes_is_malformed(store: PlatformStore) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "out of range for type integer": lambda client: client.lease_events("v", 2**31),
        "out of range for type bigint": lambda client: client.ack_event("v", "a", 2**63),
        "bigint out of range": lambda client: client.ack_events("v", [2**63]),
        "no Unicode": lambda client: client.lease_events("a\ud800"),
    }
    for said, call in calls.items():
        for refused in asyncio.run(_call_both(store.connection, call, Views)):
            assert isinstance(refused, Malformed)
            assert said in str(refused)


def test_a_call_that_is_made_often_is_prepared_in_a_session_of_its_own(store: PlatformStore) -> None:
    """Behind a pool no statement is prepared (`sql/rows/test_pooler.py`)."""
    prepared = "select count(*) from pg_prepared_statements where strpos(statement, '.poll_views') > 0"
    for _ in range(CHECK_AFTER_CALLS):
        store.poll_views()
    assert value(store.connection, prepared) == 0
    for _ in range(7):
        store.poll_views()
    assert value(store.connection, prepared) == 1


# On a pool ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(dsn: str) -> Iterator[ConnectionPool]:
    with ConnectionPool(dsn, min_size=1, max_size=2) as pool:
        yield pool


def test_threads_share_a_store_on_a_pool(pool: ConnectionPool, store: PlatformStore) -> None:
    pooled = register_orders(PlatformStore(pool))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: append_events(pooled, [new_event(f"o-{n}")]), range(40)))
    assert len(store.latest_events(100)) == 40
    with pytest.raises(Conflict):
        append(pooled)
    pages = pooled.read("order", "o-1")
    next(pages)
    # a reader that stops in the middle of a stream holds no connection either
    assert pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"]
    with pytest.raises(TypeError, match=r"on_one_connection\(\)"):
        _ = pooled.connection
    producers = ProducerStore(pool)
    producers.ingest_events("p", 0, producers.register_producer("p").epoch, 0, [new_event("p-1").alone])
    assert len(get_events(pooled, "p-1", "order")) == 1


def test_one_connection_is_one_transaction_of_the_pool(pool: ConnectionPool, store: PlatformStore) -> None:
    pooled = register_orders(PlatformStore(pool))
    with suppress(ZeroDivisionError), pooled.on_one_connection() as one:
        append(one, "o-1")
        assert one.connection.info.backend_pid
        raise ZeroDivisionError
    assert get_events(store, "o-1", "order") == []
    with pooled.on_one_connection() as one:
        append(one, "o-1")
        assert get_events(store, "o-1", "order") == []
    assert len(get_events(store, "o-1", "order")) == 1
    # a store on a connection stays on it
    with store.on_one_connection() as one:
        assert one.connection is store.connection
    assert store.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


# The asynchronous one ----------------------------------------------------------------------------------------------


def test_the_asynchronous_files_are_what_the_script_writes() -> None:
    stale = [each.path for each in TARGETS if (PROJECT / each.path).read_text() != formatted(each)]
    assert stale == [], "run scripts/write_async_client.py"


def test_on_a_loop_events_are_appended_read_consumed_and_refused(store: PlatformStore, dsn: str) -> None:
    sequencer = register_orders(store)

    async def work(store: AsyncEventStore, views: AsyncViews) -> None:
        async with store.connection.transaction(force_rollback=True):
            await store.append_all([on("order", "o-1", NewEvent("placed"))])
            assert len([event async for event in store.read("order", "o-1")]) == 1
        placed = await store.append("order", "o-1", NewEvent("placed", {"n": 1}), expected_version=NO_STREAM)
        with pytest.raises(Conflict):
            await store.append("order", "o-1", NewEvent("placed"), expected_version=NO_STREAM)
        await store.append_all([on("order", name, NewEvent("placed")) for name in ("o-1", "o-2")])
        assert [event.version async for event in store.read("order", "o-1", backwards=True)] == [2, 1]
        await views.register_view("v", "-infinity")
        sequencer.sequence_events()
        (first, _) = sorted(await views.lease_events("v", 10), key=lambda event: event.decider_id)
        assert (first.event_id, first.data) == (placed.event_ids[0], {"n": 1})
        with causing(first):
            await store.append("order", "o-3", NewEvent("placed"))
        assert await views.ack_events("v", [first.offset], [first.lease_token]) == {first.offset}

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await work(AsyncEventStore(connection), AsyncViews(connection))

    asyncio.run(main())
    (caused,) = store.read("order", "o-3")
    (first, _) = store.read("order", "o-1")
    assert caused.metadata["causation_id"] == str(first.event_id)
