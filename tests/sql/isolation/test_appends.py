"""Appends in REPEATABLE READ and SERIALIZABLE: right, or a serialization failure that repeating cures."""

from collections.abc import Callable
from functools import partial
from random import Random
from uuid import UUID, uuid4

import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.errors import Conflict, EventIdReused
from millrace.resources.event_store import EventStore, NewEvent
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_log_holds_every_event_once,
    at_once,
    new_event,
    rows,
    start,
    value,
    wait_blocked,
)
from tests.support.patience import patience
from tests.support.views.isolation import repeat, snapshot


def stored(store: EventStore) -> list[UUID]:
    return [row[0] for row in rows(store.connection, 'select event_id from event_store.events order by "offset"')]


def test_appends_of_one_transaction_follow_each_other(
    orders: EventStore, connect: Connect, level: IsolationLevel
) -> None:
    writer = snapshot(connect, level)
    first = append(writer, "a")
    second = append(writer, "a", first.event_id)
    assert append(writer, "a", first.event_id, event_id=second.event_id, command_id=second.command_id) == second
    batch = append_to(writer, "a", "b", "a")
    assert batch[0].previous_id == second.event_id
    with pytest.raises(Conflict), writer.connection.transaction():
        append(writer, "a", first.event_id)
    assert orders.sequence_events() == 0
    writer.connection.commit()
    assert orders.sequence_events() == 5
    assert_log_holds_every_event_once(orders.connection)


def test_an_append_to_a_stream_that_moved_since_the_snapshot_stores_nothing_and_is_decided_by_its_repetition(
    orders: EventStore, connect: Connect, level: IsolationLevel
) -> None:
    for number, also_sequences in enumerate((False, True, True, False)):
        known = append(orders, f"known-{number}")
        orders.sequence_events()
        late = snapshot(connect, level)
        works: list[Callable[[], object]] = [
            partial(append, late, f"new-{number}"),
            partial(append, late, f"known-{number}", known.event_id),
            partial(append_to, late, "other", f"new-{number}"),
            partial(append_to, late, "other", f"known-{number}"),
        ]
        append_to(orders, f"known-{number}", f"new-{number}")
        if also_sequences:
            orders.sequence_events()
        before = stored(orders)
        with pytest.raises(SerializationFailure):
            works[number]()
        late.connection.rollback()
        assert stored(orders) == before
        if number >= 2:
            repeat(late, works[number])
            assert len(stored(orders)) == len(before) + 2
        else:
            with pytest.raises(Conflict):
                works[number]()
            late.connection.rollback()
    orders.sequence_events()
    assert_log_holds_every_event_once(orders.connection)


@pytest.mark.parametrize("call", ["append_event", "append_events"])
def test_a_retry_of_what_is_stored_since_the_snapshot_returns_it_when_repeated(
    orders: EventStore, connect: Connect, level: IsolationLevel, call: str
) -> None:
    event = new_event("a")
    late = snapshot(connect, level)
    (first,) = orders.append_events([event])

    def again() -> tuple[UUID, int]:
        if call == "append_events":
            (result,) = late.append_events([event])
            return result.event_id, result.offset
        same = append(late, "a", event_id=event.event_id, command_id=event.command_id)
        return same.event_id, same.offset

    with pytest.raises(SerializationFailure):
        again()
    late.connection.rollback()
    assert again() == (first.event_id, first.offset)
    assert stored(orders) == [event.event_id]


def as_batch(store: EventStore, event: NewEvent) -> object:
    return store.append_events([new_event("other"), event])


def as_single(store: EventStore, event: NewEvent) -> object:
    return append(store, event.decider_id, event_id=event.event_id, command_id=event.command_id)


@pytest.mark.parametrize("reuse", [as_batch, as_single])
def test_an_event_id_that_another_stream_took_since_the_snapshot_is_refused_as_reused_when_repeated(
    orders: EventStore, connect: Connect, level: IsolationLevel, reuse: Callable[[EventStore, NewEvent], object]
) -> None:
    append(orders, "before")
    late = snapshot(connect, level)
    taken = append(orders, "a")
    event = NewEvent("order", "b", "placed", taken.event_id, {"n": 1}, uuid4())
    with pytest.raises(SerializationFailure) as failed:
        reuse(late, event)
    if reuse is as_batch:
        assert failed.value.diag.message_primary == ("an event_id is stored by a transaction that this one cannot see")
        assert failed.value.diag.message_hint == "Repeat the transaction."
    late.connection.rollback()
    assert len(stored(orders)) == 2
    with pytest.raises(EventIdReused):
        reuse(late, event)
    late.connection.rollback()
    assert value(orders.connection, "select count(*) from event_store.streams") == 2


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("call", ["append_event", "append_events"])
def test_an_append_that_waits_for_another_one_fails_if_that_commits_and_is_stored_if_it_does_not(
    orders: EventStore, connect: Connect, level: IsolationLevel, call: str, ends: str
) -> None:
    head = append(orders, "a")
    first, second = snapshot(connect, level), snapshot(connect, level)
    append(first, "a", head.event_id)
    late = start(lambda: append(second, "a", head.event_id) if call == "append_event" else append_to(second, "a"))
    wait_blocked(orders.connection, second.connection.info.backend_pid)
    if ends == "commit":
        first.connection.commit()
        assert isinstance(late.exception(patience()), SerializationFailure)
        second.connection.rollback()
    else:
        first.connection.rollback()
        late.result(patience())
        second.connection.commit()
    assert len(stored(orders)) == 2
    orders.sequence_events()
    assert_log_holds_every_event_once(orders.connection)


def test_racing_writers_who_repeat_keep_every_stream_one_chain(
    orders: EventStore, connect: Connect, racing: IsolationLevel
) -> None:
    """Some read the end of a stream and append to it, some append batches, all sequence in the same transaction."""

    def write(seed: int) -> None:
        random = Random(seed)
        store = snapshot(connect, racing)
        store.connection.rollback()
        for _ in range(20):
            stream, other = random.sample(range(4), 2)

            def decide(stream: int = stream, other: int = other, single: bool = random.random() < 0.5) -> None:
                if single:
                    head = store.get_last_event(f"s-{stream}", "order")
                    append(store, f"s-{stream}", head.event_id if head else None)
                else:
                    append_to(store, f"s-{other}", f"s-{stream}")
                store.sequence_events()

            repeat(store, decide)

    for result in at_once([partial(write, seed) for seed in range(3)]):
        result.result()
    while orders.sequence_events():
        pass
    assert value(orders.connection, "select count(*) from event_store.events") >= 60
    assert value(orders.connection, "select sum(version) from event_store.streams") == len(stored(orders))
    assert_log_holds_every_event_once(orders.connection)
