"""The causes of an event: stored beside it, found by its correlation, and no part of the event itself."""

import json
from typing import Any, LiteralString
from uuid import uuid4

from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append_to, new_event, rows, value
from tests.support.sql_calls import BatchEvent, append_event, append_events

LED = {"correlation_id": "request-7", "causation_id": "c", "traceparent": "00-a", "user": "ada", "shop": [1, None]}


def with_metadata(metadata: Json, decider_id: str = "o-1") -> BatchEvent:
    return BatchEvent("order", decider_id, "placed", uuid4(), {}, uuid4(), metadata=metadata)


def test_every_reader_gets_them(orders: PlatformStore) -> None:
    orders.register_view("rows", "-infinity")
    orders.register_view("bulk", "-infinity", mode="bulk")
    append_event(orders, "placed", uuid4(), "order", "o-1", {}, uuid4(), None, metadata=LED)
    append_events(orders, [with_metadata({"correlation_id": "request-8"}, "o-2"), new_event("o-3")])
    orders.sequence_events()
    want: dict[str, Any] = {"o-1": LED, "o-2": {"correlation_id": "request-8"}, "o-3": None}
    read = [event for p in orders.partition_info() for event in orders.read_log(p.partition, 0)]
    assert {event.decider_id: event.metadata for event in read} == want
    assert {event.decider_id: event.version for event in read} == dict.fromkeys(want, 1)
    leased = orders.lease_events("rows", 10)
    assert {event.decider_id: event.metadata for event in leased} == want
    batches = [event for lease in orders.claim_batch("bulk", "me") for event in orders.read_batch("bulk", lease)]
    assert {event.decider_id: event.metadata for event in batches} == want
    assert [event.metadata for event in orders.read("order", "o-1")] == [LED]


def test_the_events_of_a_correlation_over_all_streams(orders: PlatformStore) -> None:
    batch = [with_metadata(LED), with_metadata(LED, "o-2"), with_metadata({"user": "bob"}, "o-2"), new_event("o-3")]
    appended = append_events(orders, [*batch, with_metadata({"correlation_id": "request-7"})])
    found = orders.events_of_correlation("request-7")
    assert [event.event_id for event in found] == [appended[n].event_id for n in (0, 1, 4)]
    assert orders.events_of_correlation("request-7", found[0].offset) == found[1:]
    assert orders.events_of_correlation("request-7", limit=2) == found[:2]
    assert orders.events_of_correlation("request-9") == []


def test_an_event_without_a_correlation_has_no_entry_in_the_index(orders: PlatformStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(500)])
    append_events(orders, [with_metadata({"user": "bob"}, f"o-{n}") for n in range(500)])
    empty = value(orders.connection, "select pg_relation_size('event_store.events_correlation_idx')")
    assert empty == 8192  # its first page
    orders.connection.execute("set enable_seqscan = off")
    plan: LiteralString = "explain select from event_store.events where metadata ->> 'correlation_id' = 'x'"
    assert "events_correlation_idx" in str(rows(orders.connection, plan))


def test_they_are_no_part_of_the_event(orders: PlatformStore) -> None:
    event: tuple[Any, ...] = "placed", uuid4(), "order", "o-1", {}, uuid4(), None
    stored = append_event(orders, *event, metadata=LED)
    assert append_event(orders, *event, metadata={"traceparent": "another"}) == stored
    assert append_event(orders, *event) == stored
    assert [found.metadata for found in orders.read("order", "o-1")] == [LED]


def test_a_json_null_is_none(orders: PlatformStore) -> None:
    member: dict[str, Any] = {"decider": "order", "decider_id": "o-1", "event": "placed", "data": {}, "metadata": None}
    ids = {"event_id": str(uuid4()), "command_id": str(uuid4())}
    orders.connection.execute("select event_store.append_events(%s)", (json.dumps([{**member, **ids}]),))
    assert value(orders.connection, "select metadata is null from event_store.events")
