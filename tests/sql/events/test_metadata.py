"""What led to an event: kept beside it, found by its correlation, and no part of the event itself."""

import json
from typing import Any
from uuid import uuid4

import pytest

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore, Json, NewEvent, RecordedEvent
from tests.support.factories import append_to, new_event, refusal, rows, value

LED = {
    "correlation_id": "request-7",
    "causation_id": "c-1",
    "traceparent": "00-a-b-01",
    "user": "ada",
    "shop": [1, None],
}


def appended(store: EventStore, metadata: Json, decider_id: str = "o-1") -> RecordedEvent:
    head = store.stream_head(decider_id, "order")
    previous = head.last_event_id if head else None
    return store.append_event("placed", uuid4(), "order", decider_id, {}, uuid4(), previous, metadata=metadata)


def with_metadata(metadata: Json, decider_id: str = "o-1") -> NewEvent:
    return NewEvent("order", decider_id, "placed", uuid4(), {}, uuid4(), metadata=metadata)


def test_every_reader_gets_them(orders: EventStore) -> None:
    orders.register_view("rows", "-infinity")
    orders.register_view("bulk", "-infinity", mode="bulk")
    appended(orders, LED)
    orders.append_events([with_metadata({"correlation_id": "request-8"}, "o-2"), new_event("o-3")])
    orders.sequence_events()
    want: dict[str, Any] = {"o-1": LED, "o-2": {"correlation_id": "request-8"}, "o-3": None}
    read = [event for p in orders.partition_info() for event in orders.read_log(p.partition, 0)]
    assert {event.decider_id: event.metadata for event in read} == want
    assert {event.decider_id: event.version for event in read} == dict.fromkeys(want, 1)
    leased = orders.lease_events("rows", 10)
    assert {event.decider_id: event.metadata for event in leased} == want
    batches = [event for lease in orders.claim_batch("bulk", "me") for event in orders.read_batch("bulk", lease)]
    assert {event.decider_id: event.metadata for event in batches} == want
    assert [event.metadata for event in orders.read_stream("order", "o-1")] == [LED]


def test_the_events_of_a_correlation_over_all_streams(orders: EventStore) -> None:
    first = appended(orders, LED)
    others = orders.append_events([with_metadata(LED, "o-2"), with_metadata({"user": "bob"}, "o-2"), new_event("o-3")])
    last = appended(orders, {"correlation_id": "request-7"})
    found = orders.events_of_correlation("request-7")
    assert [event.event_id for event in found] == [first.event_id, others[0].event_id, last.event_id]
    assert [event.offset for event in orders.events_of_correlation("request-7", found[0].offset)] == [
        found[1].offset,
        found[2].offset,
    ]
    assert len(orders.events_of_correlation("request-7", limit=2)) == 2
    assert orders.events_of_correlation("request-9") == []
    refusal(Malformed, lambda: orders.events_of_correlation("request-7", limit=0))


def test_an_event_without_a_correlation_has_no_entry_in_the_index(orders: EventStore) -> None:
    append_to(orders, *[f"o-{n}" for n in range(500)])
    orders.append_events([with_metadata({"user": "bob"}, f"o-{n}") for n in range(500)])
    empty = value(orders.connection, "select pg_relation_size('event_store.events_correlation_idx')")
    assert empty == 8192  # its first page
    orders.connection.execute("set enable_seqscan = off")
    plan = rows(
        orders.connection,
        "explain select from event_store.events where metadata ->> 'correlation_id' = 'x' order by \"offset\"",
    )
    assert "events_correlation_idx" in str(plan)


def test_they_are_no_part_of_the_event(orders: EventStore) -> None:
    event: tuple[Any, ...] = "placed", uuid4(), "order", "o-1", {}, uuid4(), None
    stored = orders.append_event(*event, metadata=LED)
    assert orders.append_event(*event, metadata={"traceparent": "another"}) == stored
    assert orders.append_event(*event) == stored
    assert [found.metadata for found in orders.read_stream("order", "o-1")] == [LED]


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ("text", "metadata is of type string, not an object"),
        ([1], "metadata is of type array, not an object"),
        ({"correlation_id": 7}, "correlation_id of metadata is no text of 1 to 1024 bytes"),
        ({"correlation_id": None}, "correlation_id of metadata is no text of 1 to 1024 bytes"),
        ({"user": ""}, "user of metadata is no text of 1 to 1024 bytes"),
        ({"traceparent": "x" * 1025}, "traceparent of metadata is no text of 1 to 1024 bytes"),
        ({"a": 10**901}, "metadata has a number of 902 digits; at most 900 are allowed"),
        ({"a": "x" * 1048576}, "metadata has 1048585 bytes as text; at most 1048576 are allowed"),
    ],
)
def test_what_does_not_fit_is_refused_by_every_way_in(orders: EventStore, metadata: Json, fault: str) -> None:
    assert refusal(Malformed, lambda: appended(orders, metadata)).detail == fault
    batch = [new_event("o-2"), with_metadata(metadata)]
    assert refusal(Malformed, lambda: orders.append_events(batch)).detail == f"event 2 of the batch: {fault}"
    statement = """
        insert into event_store.events (event, event_id, decider, decider_id, data, command_id, metadata)
        values ('placed', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), %s)
    """
    assert refusal(Malformed, lambda: orders._all(RecordedEvent, statement, (json.dumps(metadata),))).detail == fault
    assert value(orders.connection, "select count(*) from event_store.events") == 0


def test_a_json_null_is_none(orders: EventStore) -> None:
    member: dict[str, Any] = {"decider": "order", "decider_id": "o-1", "event": "placed", "data": {}, "metadata": None}
    ids = {"event_id": str(uuid4()), "command_id": str(uuid4())}
    orders.connection.execute("select event_store.append_events(%s)", (json.dumps([{**member, **ids}]),))
    assert value(orders.connection, "select metadata is null from event_store.events")
