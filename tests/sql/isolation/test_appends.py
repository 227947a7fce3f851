"""Appends in REPEATABLE READ and SERIALIZABLE: right, or a serialization failure that a retry cures."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from random import Random
from uuid import UUID

import pytest
from psycopg.errors import SerializationFailure

from millrace.errors import Conflict, EventIdReused
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.test_append_event import SKIPPING, heads, insert
from tests.sql.event_store.test_append_events import stored
from tests.support.factories import (
    append,
    append_to,
    assert_log_holds_every_event_once,
    at_once,
    new_event,
    start_blocked,
)
from tests.support.patience import patience
from tests.support.sql_calls import append_events, get_last_event
from tests.support.views.isolation import Session, assert_not_serializable, repeat


def test_appends_of_one_transaction_follow_each_other(orders: PlatformStore, snapshot: Session) -> None:
    writer = snapshot()
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


def test_an_append_to_a_stream_that_moved_is_decided_when_repeated(orders: PlatformStore, snapshot: Session) -> None:
    for number, also_sequences in enumerate((False, True, True, False)):
        known = append(orders, f"known-{number}")
        orders.sequence_events()
        late = snapshot()
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
        assert_not_serializable(late, works[number])
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
def test_a_retry_of_what_is_stored_since_returns_it(orders: PlatformStore, snapshot: Session, call: str) -> None:
    event = new_event("a")
    late = snapshot()
    (first,) = append_events(orders, [event])

    def again() -> tuple[UUID, int]:
        if call == "append_events":
            (result,) = append_events(late, [event])
            return result.event_id, result.offset
        same = append(late, "a", event_id=event.event_id, command_id=event.command_id)
        return same.event_id, same.offset

    assert_not_serializable(late, again)
    assert again() == (first.event_id, first.offset)
    assert [row[0] for row in stored(orders)] == [event.event_id]


@pytest.mark.parametrize("call", ["append_event", "append_events", "insert"])
def test_an_event_id_taken_since_is_refused_when_repeated(orders: PlatformStore, snapshot: Session, call: str) -> None:
    append(orders, "before")
    late = snapshot()
    taken = append(orders, "a").event_id

    def reuse() -> None:
        if call == "append_event":
            append(late, "b", event_id=taken)
        elif call == "insert":
            insert(late.connection, ("placed", taken, "b", None), conflicts=SKIPPING)
        else:
            append_events(late, [new_event("other"), replace(new_event("b"), event_id=taken)])

    failed = assert_not_serializable(late, reuse)
    if call == "append_events":
        assert failed.diag.message_primary == "an event_id is stored by a transaction that this one cannot see"
        assert failed.diag.message_hint == "Repeat the transaction."
    assert len(stored(orders)) == 2
    with pytest.raises(EventIdReused):
        reuse()
    late.connection.rollback()
    assert len(heads(orders)) == 2


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("call", ["append_event", "append_events"])
def test_an_append_fails_if_the_other_one_commits(
    orders: PlatformStore, snapshot: Session, call: str, ends: str
) -> None:
    head = append(orders, "a")
    first, second = snapshot(), snapshot()
    append(first, "a", head.event_id)
    work = partial(append, second, "a", head.event_id) if call == "append_event" else partial(append_to, second, "a")
    late: Future[object] = start_blocked(orders, second, work)
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


def test_writers_who_repeat_keep_each_stream_one_chain(orders: PlatformStore, racer: Session) -> None:
    """Some read a stream's end and append to it, some append batches; all sequence in the same transaction."""

    def write(seed: int) -> None:
        random = Random(seed)
        store = racer()
        for _ in range(20):
            stream, other = random.sample(range(4), 2)

            def decide(stream: int = stream, other: int = other, single: bool = random.random() < 0.5) -> None:
                if single:
                    head = get_last_event(store, f"s-{stream}", "order")
                    append(store, f"s-{stream}", head.event_id if head else None)
                else:
                    append_to(store, f"s-{other}", f"s-{stream}")
                store.sequence_events()

            repeat(store, decide)

    for result in at_once([partial(write, seed) for seed in range(3)]):
        result.result()
    while orders.sequence_events():
        pass
    assert sum(head[4] for head in heads(orders)) == len(stored(orders)) >= 60
    assert_log_holds_every_event_once(orders.connection)
