"""A batch over many streams: all or nothing, in order, without deadlocks."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from millrace import errors
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.sql.event_store.test_append_event import READS, heads
from tests.support.factories import Connect, append, append_to, new_event, refusal, start_blocked, value
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events, get_events


def chained(event: BatchEvent, previous_id: UUID | None) -> BatchEvent:
    """Return an event that comes directly after another one, or is the first of its stream."""
    return replace(event, previous_id=previous_id, expected_version=0 if previous_id is None else None)


def stored(store: PlatformStore) -> list[tuple[Any, ...]]:
    query = 'select event_id, previous_id, "offset" from event_store.events order by "offset"'
    return store.connection.execute(query).fetchall()


def refused(store: PlatformStore, error: type[errors.MillraceError], *batch: BatchEvent) -> errors.MillraceError:
    """Append a batch that is refused; assert that nothing of it was stored."""
    before = stored(store), heads(store)
    said = refusal(error, lambda: append_events(store, batch))
    assert (stored(store), heads(store)) == before
    return said


def test_a_batch_is_stored_in_the_order_given_over_known_and_new_streams(orders: PlatformStore) -> None:
    first = append(orders, "b")
    batch = [new_event(decider_id) for decider_id in ("b", "a", "b", "c", "a", "b")]
    batch.append(new_event("b", decider="invoice"))  # another stream
    appended = append_events(orders, batch)
    assert [(event.event_id, event.appended) for event in appended] == [(event.event_id, True) for event in batch]
    assert [(e.event_id, e.previous_id, e.offset) for e in appended] == stored(orders)[1:]
    assert [event.previous_id for event in appended] == [
        first.event_id, None, batch[0].event_id, None, batch[1].event_id, batch[2].event_id, None
    ]  # fmt: skip
    last = (("order", "a", 4, 2), ("invoice", "b", 6, 1), ("order", "b", 5, 4), ("order", "c", 3, 1))
    assert heads(orders) == [
        (decider, each, appended[n].event_id, appended[n].offset, version, False) for decider, each, n, version in last
    ]
    # a single append continues from there
    assert append(orders, "a", appended[4].event_id).previous_id == appended[4].event_id


def test_a_stated_previous_id_must_be_met_exactly(orders: PlatformStore) -> None:
    first = append(orders, "o-1")
    second = chained(new_event("o-1"), first.event_id)
    append_events(orders, [second, chained(new_event("o-1"), second.event_id), chained(new_event("o-2"), None)])
    for stream, previous in (("o-1", None), ("o-1", first.event_id), ("o-3", first.event_id)):
        refused(orders, errors.Conflict, new_event("o-4"), chained(new_event(stream), previous))


def test_a_refusal_names_the_head_as_it_was_before_the_batch(orders: PlatformStore) -> None:
    first = append(orders, "o-1")
    for stream, head in (("o-1", f"last event_id {first.event_id} at version 1"), ("o-2", "no event")):
        conflict = refused(
            orders, errors.Conflict, new_event("o-3"), chained(new_event(stream), uuid4()), new_event(stream)
        )
        assert str(conflict.detail).endswith(head)


def test_large_batches_read_no_more_for_each_event(orders: PlatformStore) -> None:
    """For one stream or many, new or known, stored or not: no step compares all events with all others."""

    def read(batch: list[BatchEvent]) -> tuple[int, int]:
        with orders.connection.transaction():
            before = value(orders.connection, READS)
            appended = sum(event.appended for event in append_events(orders, batch))
            return appended, value(orders.connection, READS) - before

    size = 2000
    for name in ("one", "many-{n}"):
        batch: list[BatchEvent] = []
        for again in (0, 0, size // 2):
            batch = batch[:again] + [new_event(name.format(n=n)) for n in range(size - again)]
            appended, looked_at = read(batch)
            assert appended == size - again
            assert looked_at < 20 * size


def test_a_retried_batch_returns_what_is_stored_and_changes_nothing(orders: PlatformStore) -> None:
    batch = [new_event("o-1"), new_event("o-2"), new_event("o-1")]
    first = append_events(orders, batch)
    append_to(orders, "o-1")
    before = heads(orders)
    assert append_events(orders, batch) == [structs.replace(event, appended=False) for event in first]
    assert heads(orders) == before
    # a stated previous_id equal to the stored one is not other content
    assert not append_events(orders, [chained(batch[2], batch[0].event_id)])[0].appended
    refused(orders, errors.EventIdReused, chained(batch[2], None))


def test_a_partly_stored_batch_over_old_and_new_streams_is_completed(orders: PlatformStore) -> None:
    closing = replace(new_event("o-1"), final=True)
    first, last = new_event("o-1"), new_event("o-2")
    append_events(orders, [chained(first, None), chained(closing, first.event_id)])
    again = append_events(orders, [chained(first, None), last, chained(closing, first.event_id), new_event("o-2")])
    assert [event.appended for event in again] == [False, True, False, True]
    assert again[3].previous_id == last.event_id
    assert heads(orders) == [
        ("order", "o-1", closing.event_id, again[2].offset, 2, True),
        ("order", "o-2", again[3].event_id, again[3].offset, 2, False),
    ]


def test_identical_batches_at_once_are_stored_once(orders: PlatformStore, connect: Connect) -> None:
    batch = [new_event("o-2"), new_event("o-1"), new_event("o-2")]
    first, second = connect(autocommit=False), connect()
    done = append_events(PlatformStore(first), batch)
    retry = start_blocked(orders, second, lambda: append_events(PlatformStore(second), batch))
    first.commit()
    assert retry.result(patience()) == [structs.replace(event, appended=False) for event in done]
    assert len(stored(orders)) == 3


def test_an_event_with_a_missing_wrong_or_unknown_field_is_refused(orders: PlatformStore) -> None:
    good = json.loads(json.dumps(vars(new_event("o-2")), default=str))
    # a misspelled field of an event with optimistic locking is refused, not ignored
    changes: list[dict[str, Any]] = [{key: str(uuid4())} for key in ("previousId", "previous", "meta", "")]
    changes += [{"event_id": "no uuid"}, {"event_version": "one"}, {"event_version": 1 << 64}]
    changes += [{"final": "perhaps"}, {"previous_id": 5}, {"metadata": "text"}]
    needed = ("event", "event_id", "decider", "decider_id", "data", "command_id")
    batches = [json.dumps([{key: good[key] for key in good if key != name}]) for name in needed]
    first = json.loads(json.dumps(vars(new_event("o-1")), default=str))
    batches += [json.dumps([first, {**good, **change}]) for change in changes]

    def append_json(batch: str) -> None:
        with refusals():
            orders.connection.execute("select event_store.append_events(%s)", (batch,))

    for batch in batches:
        said = refusal(errors.Malformed, partial(append_json, batch))
        if first["event_id"] in batch:
            assert "event 2 of the batch" in str(said.detail)
        if "previousId" in batch:
            assert said.detail == "event 2 of the batch has unknown keys: previousId"
    for none, detail in (("[1]", ""), ("[[]]", ""), ("[null]", ""), ("[{}, 1]", "event 2 of the batch: ")):
        assert refusal(errors.Malformed, partial(append_json, none)).detail == f"{detail}it is no JSON object"
    assert stored(orders) == heads(orders) == []


def test_the_first_malformed_event_is_named_by_its_place(orders: PlatformStore) -> None:
    said = refused(orders, errors.Malformed, new_event("o-1"), new_event(""), new_event(""))
    assert "event 2 of the batch: decider_id is empty" in f"{said.message} {said.detail}"
    event = new_event("o-1")
    said = refused(orders, errors.Malformed, event, new_event("o-1"), event)
    assert f"{event.event_id} occurs more than once" in f"{said.message} {said.detail}"
    said = refused(orders, errors.EventNotRegistered, new_event("o-1"), new_event("o-1", event="lost"))
    assert "order has no event lost version 1" in f"{said.message} {said.detail}"


def test_any_json_is_data_and_what_is_no_json_is_not_turned_into_text(orders: PlatformStore) -> None:
    some: list[Json] = [None, "text", 5, 1.5, True, [], {}, {"deep": [{"ä": None}]}]
    batch = [replace(new_event(f"日本 🌊 {n}"), data=data) for n, data in enumerate(some)]
    append_events(orders, batch)
    read = [get_events(orders, event.decider_id, "order")[0].data for event in batch]
    assert list(map(repr, read)) == list(map(repr, some))
    assert not any(event.appended for event in append_events(orders, batch))
    with pytest.raises(errors.Malformed):
        append_events(orders, [replace(new_event("o-1"), data={"number": float("nan")})])
    for data in ({"amount": Decimal("1.5")}, {"at": datetime.now(UTC)}, {"tags": {"a"}}):
        with pytest.raises(errors.Malformed, match="is not JSON"):
            append_events(orders, [replace(new_event("o-1"), data=data)])
    assert len(stored(orders)) == len(some)


def test_a_final_event_closes_its_stream(orders: PlatformStore) -> None:
    closing = replace(new_event("o-1"), final=True)
    append_events(orders, [new_event("o-1"), closing, new_event("o-2")])
    for batch in ([new_event("o-1")], [new_event("o-2"), new_event("o-1"), new_event("o-3")]):
        said = refused(orders, errors.StreamClosed, *batch)
        assert f"closed by event_id {closing.event_id}" in f"{said.message} {said.detail}"
    assert not append_events(orders, [closing])[0].appended
    said = refused(orders, errors.StreamClosed, replace(new_event("o-4"), final=True), new_event("o-4"))
    assert "event 2 of the batch follows the final event" in f"{said.message} {said.detail}"


def test_after_a_batch_single_appends_are_guarded_again(orders: PlatformStore, connect: Connect) -> None:
    connection = connect(autocommit=False)
    writer = PlatformStore(connection)
    (batched,) = append_to(writer, "o-1")
    with pytest.raises(errors.MillraceError), connection.transaction():
        append_to(writer, "o-2", "")
    with pytest.raises(errors.Conflict), connection.transaction():
        append(writer, "o-1", uuid4())
    append(writer, "o-1", batched.event_id)
    assert get_events(orders, "o-1", "order") == []
    connection.commit()
    assert len(get_events(orders, "o-1", "order")) == 2
