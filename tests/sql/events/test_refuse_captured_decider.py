"""Only the capture appends to the streams of a captured table, whatever way others try."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import DeciderCaptured
from millrace.resources.event_store import ChainedEvent, EventStore, NewEvent
from millrace.resources.event_store.refusals import refusals
from millrace.resources.producers import ProducerStore
from tests.support.capturing.captures import Source, T, append_foreign, events, inserted, source, table
from tests.support.factories import new_event, refusal, register_orders, rows

__all__ = ["source"]

Try = Callable[[CaptureStore], object]


def junk() -> NewEvent:
    return new_event("[1]", event="updated", decider=T)


def append(store: CaptureStore) -> object:
    return EventStore(store.connection).append_event("updated", uuid4(), T, "[1]", {"xid": "junk"}, uuid4(), None)


def append_behind(store: CaptureStore) -> object:
    (last,) = EventStore(store.connection).get_events("[7]", T)
    return EventStore(store.connection).append_event("updated", uuid4(), T, "[7]", {}, uuid4(), last.event_id)


def batch(store: CaptureStore) -> object:
    return EventStore(store.connection).append_events([new_event("o-1"), junk()])


def chained(store: CaptureStore) -> object:
    return EventStore(store.connection).append_events([ChainedEvent(**vars(junk()), previous_id=None)])


def unregistered(store: CaptureStore) -> object:
    return EventStore(store.connection).append_event("nothing", uuid4(), T, "[1]", {}, uuid4(), None)


def ingest(store: CaptureStore) -> object:
    return ProducerStore(store.connection).ingest_events("p", 0, 1, 0, [junk()])


def stage(store: CaptureStore) -> None:
    producer = ProducerStore(store.connection)
    producer.add_events(opened(producer), [junk()])


def insert(store: CaptureStore) -> object:
    with refusals():
        return store.connection.execute(
            "insert into event_store.events (event, event_id, decider, decider_id, data, command_id)"
            " values ('updated', gen_random_uuid(), %s, '[1]', '{}', gen_random_uuid())",
            (T,),
        )


def copy(store: CaptureStore) -> None:
    with (
        refusals(),
        store.connection.cursor() as cursor,
        cursor.copy(
            "copy event_store.events (event, event_id, decider, decider_id, data, command_id) from stdin"
        ) as lines,
    ):
        lines.write_row(("placed", uuid4(), "order", "o-1", "{}", uuid4()))
        lines.write_row(("updated", uuid4(), T, "[1]", "{}", uuid4()))


def opened(producer: ProducerStore) -> UUID:
    """Begin a message that is the next one."""
    transaction = producer.begin_transaction("p", 0, 1, 0, 60).transaction_id
    assert transaction is not None
    return transaction


@pytest.fixture
def captured(source: Source) -> CaptureStore:
    """Return a store with orders, a producer and a capture that has the row 7."""
    register_orders(EventStore(source.store.connection))
    ProducerStore(source.store.connection).register_producer("p")
    source.commit(inserted(7))
    source.emit()
    return source.store


@pytest.mark.parametrize("attempt", [append, append_behind, batch, chained, unregistered, ingest, stage, insert, copy])
def test_nobody_else_appends_to_it(captured: CaptureStore, attempt: Try) -> None:
    refused = refusal(DeciderCaptured, lambda: attempt(captured))
    assert refused.message == "decider belongs to a capture"
    assert refused.detail == f"decider {T} is that of public.t of capture c"
    assert "source" in (refused.hint or "")
    assert rows(captured.connection, "select decider, decider_id from event_store.events") == [(T, "[7]")]
    assert rows(captured.connection, "select decider_id from event_store.streams") == [("[7]",)]


def test_what_was_staged_before_is_refused_at_the_commit(captured: CaptureStore) -> None:
    captured.register_capture("c", "slot_c", "pub_c", [table("u")])
    producer = ProducerStore(captured.connection)
    transaction = opened(producer)
    producer.add_events(transaction, [junk()])
    captured.register_capture("c", "slot_c", "pub_c", [table("t")])
    refusal(DeciderCaptured, lambda: producer.commit_transaction(transaction))
    assert events(captured) == [("[7]", "inserted")]


def test_what_is_captured_no_more_is_anybody_s(captured: CaptureStore) -> None:
    captured.register_capture("c", "slot_c", "pub_c", [table("u")])
    store = EventStore(captured.connection)
    assert [event.appended for event in store.append_events([junk()])] == [True]


def test_the_capture_appends_by_all_its_ways(source: Source) -> None:
    append_foreign(source.store, "inserted", 5)
    source.commit(inserted(1))
    assert source.emit().emitted == 1
    source.begin()
    assert source.backfill(2).appended == 1
    source.finish()
    assert events(source.store)[2:] == [("[2]", "backfilled"), ("[1]", "deleted"), ("[5]", "deleted")]
