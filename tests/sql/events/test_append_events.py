"""A batch over many streams: all or nothing, in order, without deadlocks."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.resources.errors import (
    Conflict,
    EventIdReused,
    EventNotRegistered,
    Malformed,
    MillraceError,
    StreamClosed,
)
from millrace.resources.event_store import ChainedEvent, EventStore, Json, NewEvent
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_rising,
    at_once,
    new_event,
    rows,
    start,
    value,
    wait_blocked,
)


def chained(event: NewEvent, previous_id: UUID | None) -> ChainedEvent:
    return ChainedEvent(**vars(event), previous_id=previous_id)


def stored(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, 'select event_id, previous_id, "offset" from event_store.events order by "offset"')


def heads(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.streams order by decider_id, decider")


def test_a_batch_is_stored_in_the_order_given(orders: EventStore) -> None:
    batch = [new_event(decider_id) for decider_id in ("b", "a", "b", "c", "a", "b")]
    appended = orders.append_events(batch)
    assert [event.event_id for event in appended] == [event.event_id for event in batch]
    assert_rising([event.offset for event in appended])
    assert all(event.appended for event in appended)
    assert [(e.event_id, e.previous_id, e.offset) for e in appended] == stored(orders)
    b1, b2, b3 = orders.get_events("b", "order")
    assert (b1.previous_id, b2.previous_id, b3.previous_id) == (None, b1.event_id, b2.event_id)
    assert [(head[1], head[4]) for head in heads(orders)] == [("a", 2), ("b", 3), ("c", 1)]
    assert [head[2] for head in heads(orders)] == [batch[4].event_id, b3.event_id, batch[3].event_id]


def test_an_event_without_previous_id_goes_to_the_end_of_its_stream(orders: EventStore) -> None:
    first = append(orders, "o-1")
    (appended,) = append_to(orders, "o-1")
    assert appended.previous_id == first.event_id
    assert append(orders, "o-1", appended.event_id).previous_id == appended.event_id


def test_a_stated_previous_id_must_be_met_exactly(orders: EventStore) -> None:
    first = append(orders, "o-1")
    second = chained(new_event("o-1"), first.event_id)
    orders.append_events([second, chained(new_event("o-1"), second.event_id), chained(new_event("o-2"), None)])
    before = stored(orders), heads(orders)
    for stream, previous in (("o-1", None), ("o-1", first.event_id), ("o-3", first.event_id)):
        with pytest.raises(Conflict, match="previous_id"):
            orders.append_events([new_event("o-4"), chained(new_event(stream), previous)])
    assert (stored(orders), heads(orders)) == before


def test_two_deciders_that_share_an_id_are_two_streams(orders: EventStore) -> None:
    orders.append_events([new_event("x"), new_event("x", decider="invoice"), new_event("x")])
    assert [len(orders.get_events("x", decider)) for decider in ("order", "invoice")] == [2, 1]
    assert all(event.previous_id is None for event in orders.get_events("x", "invoice"))


def test_a_batch_over_known_and_new_streams_moves_every_head(orders: EventStore) -> None:
    first = append(orders, "known")
    appended = append_to(orders, "new", "known", "new", "known", "newer")
    assert_rising([first.offset, *[event.offset for event in appended]])
    assert appended[1].previous_id == first.event_id
    assert [(head[1], head[2], head[3], head[4]) for head in heads(orders)] == [
        ("known", appended[3].event_id, appended[3].offset, 3),
        ("new", appended[2].event_id, appended[2].offset, 2),
        ("newer", appended[4].event_id, appended[4].offset, 1),
    ]


def test_a_refusal_names_the_head_as_it_was_before_the_batch(orders: EventStore) -> None:
    first = append(orders, "o-1")
    for stream, head in (("o-1", f"last event_id {first.event_id} at version 1"), ("o-2", "no event")):
        with pytest.raises(Conflict) as refused:
            orders.append_events([new_event("o-3"), chained(new_event(stream), uuid4()), new_event(stream)])
        assert str(refused.value.detail).endswith(head)


def test_large_batches_take_no_longer_for_each_event(orders: EventStore) -> None:
    """One stream or many, new or known, stored or not: no step compares all events with all others."""
    orders.connection.execute("set statement_timeout = '20s'")
    for name in ("one", "many-{n}"):
        for _ in range(2):
            batch = [new_event(name.format(n=n)) for n in range(10_000)]
            assert all(event.appended for event in orders.append_events(batch))
        batch[:5000] = [new_event(name.format(n=n)) for n in range(5000)]
        assert sum(event.appended for event in orders.append_events(batch)) == 5000


# A3


def test_a_retried_batch_returns_what_is_stored_and_changes_nothing(orders: EventStore) -> None:
    batch = [new_event("o-1"), new_event("o-2"), new_event("o-1")]
    first = orders.append_events(batch)
    append_to(orders, "o-1")
    before = heads(orders)
    again = orders.append_events(batch)
    assert again == [replace(event, appended=False) for event in first]
    assert heads(orders) == before


def test_a_batch_with_some_events_stored_appends_the_others(orders: EventStore) -> None:
    old, fresh = new_event("o-1"), new_event("o-1")
    orders.append_events([old])
    first, second = orders.append_events([old, fresh])
    assert (first.appended, second.appended, second.previous_id) == (False, True, old.event_id)


def test_two_identical_batches_at_once_are_stored_once(orders: EventStore, connect: Connect) -> None:
    batch = [new_event("o-2"), new_event("o-1"), new_event("o-2")]
    first, second = connect(autocommit=False), connect()
    done = EventStore(first).append_events(batch)
    retry = start(lambda: EventStore(second).append_events(batch))
    wait_blocked(orders.connection, second.info.backend_pid)
    first.commit()
    assert retry.result(20) == [replace(event, appended=False) for event in done]
    assert len(stored(orders)) == 3


def test_many_identical_batches_at_once_are_stored_once(orders: EventStore, connect: Connect) -> None:
    batch = [new_event(f"o-{n % 7}") for n in range(20)]
    stores = [EventStore(connect()) for _ in range(4)]
    results = [result.result() for result in at_once([partial(store.append_events, batch) for store in stores])]
    assert sum(event.appended for result in results for event in result) == 20
    assert len({tuple(event.offset for event in result) for result in results}) == 1
    assert len(stored(orders)) == 20


def test_a_partly_stored_batch_over_old_and_new_streams_is_completed(orders: EventStore) -> None:
    closing = replace(new_event("o-1"), final=True)
    first, last = new_event("o-1"), new_event("o-2")
    orders.append_events([chained(first, None), chained(closing, first.event_id)])
    again = orders.append_events([chained(first, None), last, chained(closing, first.event_id), new_event("o-2")])
    assert [event.appended for event in again] == [False, True, False, True]
    assert again[3].previous_id == last.event_id
    assert [(head[1], head[2], head[3], head[4]) for head in heads(orders)] == [
        ("o-1", closing.event_id, again[2].offset, 2),
        ("o-2", again[3].event_id, again[3].offset, 2),
    ]


@pytest.mark.parametrize(
    "other", [{"data": {}}, {"event": "paid"}, {"decider_id": "o-9"}, {"final": True}, {"command_id": UUID(int=7)}]
)
def test_a_stored_event_id_with_other_content_refuses_the_batch(orders: EventStore, other: dict[str, Any]) -> None:
    event = new_event("o-1")
    orders.append_events([event])
    before = stored(orders), heads(orders)
    with pytest.raises(EventIdReused, match=str(event.event_id)):
        orders.append_events([new_event("o-2"), replace(event, **other)])
    assert (stored(orders), heads(orders)) == before


def test_a_retry_with_another_stated_previous_id_is_refused(orders: EventStore) -> None:
    first, second = new_event("o-1"), new_event("o-1")
    orders.append_events([first, second])
    assert not orders.append_events([chained(second, first.event_id)])[0].appended
    with pytest.raises(EventIdReused):
        orders.append_events([chained(second, None)])


@pytest.mark.parametrize("first_commits", [True, False])
def test_an_event_id_in_two_streams_at_once_is_stored_in_one(
    orders: EventStore, connect: Connect, first_commits: bool
) -> None:
    event = new_event("o-1")
    first, second = connect(autocommit=False), connect()
    EventStore(first).append_events([event])
    batch = [new_event("o-3"), replace(event, decider_id="o-2")]
    reuse = start(lambda: EventStore(second).append_events(batch))
    wait_blocked(orders.connection, second.info.backend_pid)
    if first_commits:
        first.commit()
        with pytest.raises(EventIdReused):
            reuse.result(20)
        assert [head[1] for head in heads(orders)] == ["o-1"]
    else:
        first.rollback()
        assert all(appended.appended for appended in reuse.result(20))


# A4


@pytest.mark.parametrize(
    "change",
    [
        {"event": None},
        {"event_id": None},
        {"event_id": "no uuid"},
        {"decider": None},
        {"decider_id": None},
        {"decider_id": ""},
        {"decider_id": "x" * 1025},
        {"decider_id": "a\0b"},
        {"data": {"text": "a\0b"}},
        {"data": {"text": "x" * (1 << 20)}},
        {"data": {"text": "\ud800"}},
        {"command_id": None},
        {"event_version": "one"},
        {"event_version": 1 << 64},
        {"final": "perhaps"},
        {"previous_id": 5},
    ],
    ids=str,
)
def test_a_malformed_event_refuses_the_batch(orders: EventStore, change: dict[str, Any]) -> None:
    bad = json.dumps([vars(new_event("o-1")), {**vars(new_event("o-2")), **change}], default=str)
    with pytest.raises(Malformed) as refused, refusals():
        orders.connection.execute("select event_store.append_events(%s)", (bad,))
    assert refused.value.detail
    assert stored(orders) == []
    assert heads(orders) == []


def test_a_malformed_event_is_named_by_its_place(orders: EventStore) -> None:
    with pytest.raises(Malformed, match="event 2 of the batch: decider_id is empty"):
        orders.append_events([new_event("o-1"), new_event(""), new_event("")])


@pytest.mark.parametrize("missing", ["event", "event_id", "decider", "decider_id", "data", "command_id"])
def test_a_field_left_out_refuses_the_batch(orders: EventStore, missing: str) -> None:
    event = {name: content for name, content in vars(new_event("o-1")).items() if name != missing}
    with pytest.raises(Malformed, match=f"{missing} is null"), refusals():
        orders.connection.execute("select event_store.append_events(%s)", (json.dumps([event], default=str),))


@pytest.mark.parametrize("batch", [None, "[]", "{}", "[1]", "[null]", "[[]]", '"text"', "null"])
def test_what_is_no_batch_is_refused(orders: EventStore, batch: str | None) -> None:
    with pytest.raises(Malformed), refusals():
        orders.connection.execute("select event_store.append_events(%s)", (batch,))


def test_an_event_id_twice_in_a_batch_is_refused(orders: EventStore) -> None:
    event = new_event("o-1")
    with pytest.raises(Malformed, match=f"{event.event_id} occurs more than once"):
        orders.append_events([event, new_event("o-1"), event])
    with pytest.raises(Malformed, match="at least one event"):
        orders.append_events([])


def test_data_that_json_cannot_hold_is_refused(orders: EventStore) -> None:
    with pytest.raises(Malformed):
        orders.append_events([replace(new_event("o-1"), data={"number": float("nan")})])
    assert stored(orders) == []


def test_an_unregistered_event_refuses_the_batch(orders: EventStore) -> None:
    with pytest.raises(EventNotRegistered, match="order has no event lost version 1"):
        orders.append_events([new_event("o-1"), new_event("o-1", event="lost")])
    assert stored(orders) == []


@pytest.mark.parametrize("data", [None, "text", 5, 1.5, True, [], {}, {"deep": [{"ä": None}]}], ids=str)
def test_any_json_is_data(orders: EventStore, data: Json) -> None:
    event = replace(new_event("日本 🌊"), data=data)
    orders.append_events([event])
    assert orders.get_events("日本 🌊", "order")[0].data == data
    assert not orders.append_events([event])[0].appended


# A5


def test_a_final_event_closes_its_stream(orders: EventStore) -> None:
    closing = replace(new_event("o-1"), final=True)
    orders.append_events([new_event("o-1"), closing, new_event("o-2")])
    for batch in ([new_event("o-1")], [new_event("o-2"), new_event("o-1")]):
        with pytest.raises(StreamClosed, match=f"closed by event_id {closing.event_id}"):
            orders.append_events(batch)
    assert len(stored(orders)) == 3
    assert not orders.append_events([closing])[0].appended


def test_an_event_after_the_final_one_in_the_same_batch_is_refused(orders: EventStore) -> None:
    with pytest.raises(StreamClosed, match="event 2 of the batch follows the final event"):
        orders.append_events([replace(new_event("o-1"), final=True), new_event("o-1")])
    assert stored(orders) == []


# A6


def test_a_refused_event_refuses_the_whole_batch(orders: EventStore) -> None:
    append(orders, "closed", final=True)
    before = stored(orders), heads(orders)
    with pytest.raises(StreamClosed):
        append_to(orders, "o-1", "o-2", "closed", "o-3")
    assert (stored(orders), heads(orders)) == before


def test_two_batches_in_opposite_stream_order_never_deadlock(orders: EventStore, connect: Connect) -> None:
    names = [f"o-{n}" for n in range(12)]
    stores = [EventStore(connect()) for _ in range(3)]

    def write(store: EventStore, order: list[str]) -> int:
        # some streams exist, some are new in each round
        for n in range(25):
            append_to(store, *[f"{name}-{n // 5}" for name in order])
        return 25

    orderings = [names, names[::-1], names[6:] + names[:6]]
    results = at_once([partial(write, s, o) for s, o in zip(stores, orderings, strict=True)])
    assert [result.result() for result in results] == [25, 25, 25]
    assert value(orders.connection, "select sum(version) from event_store.streams") == 3 * 25 * 12
    assert value(orders.connection, "select count(*) from event_store.events") == 3 * 25 * 12


def test_a_batch_and_single_appends_keep_one_chain(orders: EventStore, connect: Connect) -> None:
    """Whoever comes second either goes to the new end (batch) or conflicts (single)."""
    first = append(orders, "o-1")
    open_batch, single = connect(autocommit=False), connect()
    (batched,) = append_to(EventStore(open_batch), "o-1")
    late = start(lambda: append(EventStore(single), "o-1", first.event_id))
    wait_blocked(orders.connection, single.info.backend_pid)
    open_batch.commit()
    with pytest.raises(Conflict):
        late.result(20)
    open_single, batch = connect(autocommit=False), connect()
    third = append(EventStore(open_single), "o-1", batched.event_id)
    late_batch = start(lambda: append_to(EventStore(batch), "o-1"))
    wait_blocked(orders.connection, batch.info.backend_pid)
    open_single.commit()
    assert late_batch.result(20)[0].previous_id == third.event_id


def test_after_a_batch_single_appends_are_guarded_again(orders: EventStore, connect: Connect) -> None:
    connection = connect(autocommit=False)
    writer = EventStore(connection)
    (batched,) = append_to(writer, "o-1")
    with pytest.raises(MillraceError), connection.transaction():
        append_to(writer, "o-2", "")
    with pytest.raises(Conflict), connection.transaction():
        append(writer, "o-1", uuid4())
    append(writer, "o-1", batched.event_id)
    connection.commit()
    assert len(orders.get_events("o-1", "order")) == 2


def test_data_that_is_no_json_is_refused_as_append_event_does_and_not_turned_into_text(orders: EventStore) -> None:
    for data in ({"amount": Decimal("1.5")}, {"at": datetime.now(UTC)}, {"tags": {"a"}}):
        with pytest.raises(TypeError, match="not JSON serializable"):
            orders.append_events([replace(new_event("o-1"), data=data)])
    assert orders.get_events("o-1", "order") == []


@pytest.mark.parametrize("key", ["previousId", "previous", "meta", ""])
def test_an_unknown_key_is_refused_so_that_no_optimistic_lock_is_lost(orders: EventStore, key: str) -> None:
    event = {
        "decider": "order", "decider_id": "o-1", "event": "placed", "event_id": str(uuid4()), "command_id": str(uuid4()),
        "data": {},
    }  # fmt: skip
    batch = [event, {**event, "event_id": str(uuid4()), key: str(uuid4())}]
    with pytest.raises(Malformed, match=f"event 2 of the batch has unknown keys: {key}"), refusals():
        orders.connection.execute("select event_store.append_events(%s)", (json.dumps(batch),))
    assert orders.get_events("o-1", "order") == []
