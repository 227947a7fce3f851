"""Metadata passed on: an event appended while another one is handled is caused by it and correlates with it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from millrace.event_store import NO_STREAM, Event, NewEvent, causing, on, tracing
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from tests.support.sql_calls import get_events

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00"


def metadata_of(store: PlatformStore, decider_id: str) -> list[Any]:
    return [event.metadata for event in store.read("order", decider_id)]


def cause(store: PlatformStore, metadata: Mapping[str, str] | None, decider_id: str = "first") -> Event:
    """Append an event and read it with its metadata."""
    store.append("order", decider_id, NewEvent("placed"), expected_version=NO_STREAM, metadata=metadata)
    (read,) = store.read("order", decider_id)
    return read


def test_an_event_within_causing_is_caused_by_it(orders: PlatformStore) -> None:
    first = cause(orders, {"correlation_id": "request-7", "traceparent": TRACE, "user": "ada"})
    with causing(first):
        orders.append("order", "one", NewEvent("placed"))
        orders.append("order", "batch", NewEvent("placed"), NewEvent("paid"))
    orders.append("order", "after", NewEvent("placed"))
    led = {"correlation_id": "request-7", "causation_id": str(first.event_id), "traceparent": TRACE}
    assert metadata_of(orders, "one") == [led]
    assert metadata_of(orders, "batch") == [led, led]
    assert metadata_of(orders, "after") == [None]


def test_an_event_without_a_correlation_begins_one_that_a_chain_keeps(orders: PlatformStore) -> None:
    first = cause(orders, None)
    with causing(first):
        second = cause(orders, None, "second")
    with causing(second):
        third = cause(orders, None, "third")
    assert second.metadata == {"correlation_id": str(first.event_id), "causation_id": str(first.event_id)}
    assert third.metadata == {"correlation_id": str(first.event_id), "causation_id": str(second.event_id)}
    assert [e.decider_id for e in orders.events_of_correlation(str(first.event_id))] == ["second", "third"]


def test_caused_by_wins_over_the_block_and_stated_metadata_win_key_by_key(orders: PlatformStore) -> None:
    outer = cause(orders, {"correlation_id": "request-7", "traceparent": TRACE}, "outer")
    inner = cause(orders, {"correlation_id": "c"}, "inner")
    stated = {"correlation_id": "mine", "user": "bob"}
    with causing(outer):
        orders.append("order", "by inner", NewEvent("placed"), caused_by=inner)
        orders.append_all([on("order", "by inner, batch", NewEvent("placed"), NewEvent("paid"))], caused_by=inner)
        orders.append("order", "stated", NewEvent("placed", metadata=stated))
        orders.append_all([on("order", "stated, batch", NewEvent("placed", metadata={"user": "bob"}), metadata=stated)])
    led = {"correlation_id": "c", "causation_id": str(inner.event_id), "traceparent": TRACE}
    assert [*metadata_of(orders, "by inner"), *metadata_of(orders, "by inner, batch")] == [led] * 3
    led = {**stated, "causation_id": str(outer.event_id), "traceparent": TRACE}
    assert metadata_of(orders, "stated") == metadata_of(orders, "stated, batch") == [led]
    assert stated == {"correlation_id": "mine", "user": "bob"}


def test_an_event_whose_metadata_are_not_known_correlates_by_its_own_id(orders: PlatformStore) -> None:
    read = cause(orders, {"correlation_id": "request-7"})
    (bare,) = get_events(orders, "first", "order")
    assert (bare.version, bare.metadata) == (None, None)
    deep = structs.replace(read, metadata_json="[" * 100_000 + "]" * 100_000)
    for name, unknown in (("read without them", bare), ("unreadable", deep)):
        with causing(unknown):
            orders.append("order", name, NewEvent("placed"))
        led = {"correlation_id": str(read.event_id), "causation_id": str(read.event_id)}
        assert metadata_of(orders, name) == [led], name


def test_a_trace_comes_from_a_caller_and_the_innermost_one_counts(orders: PlatformStore) -> None:
    with tracing(TRACE):
        first = cause(orders, None)
        with tracing(None):
            orders.append("order", "kept", NewEvent("placed"))
    with causing(first):
        orders.append("order", "carried", NewEvent("placed"))
        with tracing(SPAN):
            orders.append("order", "span", NewEvent("placed"))
    assert first.metadata == {"traceparent": TRACE}
    assert metadata_of(orders, "kept") == [{"traceparent": TRACE}]
    assert metadata_of(orders, "carried")[0]["traceparent"] == TRACE
    led = {"correlation_id": str(first.event_id), "causation_id": str(first.event_id)}
    assert metadata_of(orders, "span") == [{"traceparent": SPAN, **led}]


def test_a_text_that_is_no_traceparent_is_not_stored(orders: PlatformStore) -> None:
    taken = [TRACE, "01" + TRACE[2:] + "-more"]
    wrong = [TRACE + "-more", "ff" + TRACE[2:], TRACE.upper(), "00-" + "0" * 32 + TRACE[35:], TRACE + "\n", ""]
    wrong += [TRACE[:36] + "0" * 16 + "-01", "01" + TRACE[2:] + "-" + "m" * 5000]
    for number, text in enumerate([*taken, *wrong]):
        with tracing(text):
            orders.append("order", f"o-{number}", NewEvent("placed"))
        assert metadata_of(orders, f"o-{number}") == [{"traceparent": text} if text in taken else None], text


def test_tasks_of_one_loop_have_each_its_own_cause(orders: PlatformStore) -> None:
    causes = {name: cause(orders, {"correlation_id": name}, f"cause-{name}") for name in ("a", "b")}
    both_within = asyncio.Barrier(2)

    async def handle(name: str) -> None:
        with causing(causes[name]):
            await both_within.wait()
            orders.append("order", name, NewEvent("placed"))
            await both_within.wait()

    async def main() -> None:
        await asyncio.gather(handle("a"), handle("b"))

    asyncio.run(main())
    for name in causes:
        assert [one["correlation_id"] for one in metadata_of(orders, name)] == [name]


def test_events_of_a_producer_are_caused_by_what_is_handled(orders: PlatformStore) -> None:
    first = cause(orders, {"correlation_id": "request-7"})
    producers = ProducerStore(orders.connection)
    epoch = producers.register_producer("p").epoch
    with causing(first):
        producers.ingest_events("p", 0, epoch, 0, [on("order", "whole", NewEvent("placed"))])
        begun = producers.begin_transaction("p", 0, epoch, 1)
        assert begun.transaction_id is not None
        producers.add_events(begun.transaction_id, [on("order", "staged", NewEvent("placed"))])
    producers.commit_transaction(begun.transaction_id)
    led = {"correlation_id": "request-7", "causation_id": str(first.event_id)}
    # beside the id of the event's message
    assert metadata_of(orders, "whole") == [{**led, "message_id": "p/0/0"}]
    assert metadata_of(orders, "staged") == [{**led, "message_id": "p/0/1"}]
