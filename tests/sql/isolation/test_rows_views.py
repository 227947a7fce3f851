"""Consumers of rows views in REPEATABLE READ and SERIALIZABLE: right, or refused and right when retried."""

from collections import Counter
from functools import partial
from random import Random
from threading import Lock as Mutex

import pytest
from psycopg.errors import SerializationFailure

from millrace.errors import NotInFlight
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.views.isolation import Session, assert_not_serializable, repeat


def taken(store: PlatformStore, limit: int = 100) -> list[tuple[str, int]]:
    """Fetch and acknowledge, as an effect in the same transaction would."""
    got = [(event.decider_id, event.offset) for event in store.stream_events("v", limit)]
    for decider_id, offset in got:
        store.ack_event("v", decider_id, offset)
    return got


def test_a_transaction_takes_all_of_a_stream_in_order(view: PlatformStore, snapshot: Session) -> None:
    appended = factories.pump(view, "v", "a", "b", "a", "a")
    consumer = snapshot()
    got = [each for _ in range(4) for each in taken(consumer)]
    consumer.connection.commit()
    assert sorted(offset for _, offset in got) == [event.offset for event in appended]
    assert [offset for name, offset in got if name == "a"] == [appended[n].offset for n in (0, 2, 3)]
    factories.pump(view, "v")
    assert factories.rows(view.connection, "select from event_store.stream_locks") == []


def test_who_sequences_itself_takes_what_its_snapshot_has(view: PlatformStore, snapshot: Session) -> None:
    seen = factories.append_to(view, "a", "b")
    consumer = snapshot()
    unseen = factories.append_to(view, "a", "c")
    factories.pump(consumer, "v")
    assert [offset for _, offset in taken(consumer)] == [event.offset for event in seen]
    assert taken(consumer) == []
    consumer.connection.commit()
    factories.pump(view, "v")
    assert sorted(offset for _, offset in taken(view)) == [event.offset for event in unseen]
    factories.pump(view, "v")
    assert factories.rows(view.connection, "select from event_store.stream_locks") == []
    factories.assert_log_holds_every_event_once(view.connection)


@pytest.mark.parametrize("other", ["leased", "acknowledged", "gave back", "acknowledged all and removed the lock"])
def test_an_event_taken_since_is_not_delivered_again(view: PlatformStore, snapshot: Session, other: str) -> None:
    event, following = factories.pump(view, "v", "a", "a")
    late = snapshot()
    (held,) = view.lease_events("v")
    expected = [("a", following.offset)]
    if other == "leased":
        expected = []
    elif other == "gave back":
        view.nack_event("v", "a", held.offset)
        expected = [("a", event.offset)]
    else:
        view.ack_event("v", "a", held.offset)
    if "removed" in other:
        assert taken(view) == expected
        view.dispatch_events("v")
        assert factories.rows(view.connection, "select from event_store.stream_locks") == []
        expected = []
    assert_not_serializable(late, lambda: taken(late))
    assert repeat(late, lambda: taken(late)) == expected
    in_flight = factories.value(
        view.connection, "select count(*) from event_store.stream_locks where in_flight is not null"
    )
    assert in_flight == (1 if other == "leased" else 0)  # no phantom


def test_what_an_open_transaction_holds_is_left_out(view: PlatformStore, snapshot: Session) -> None:
    factories.pump(view, "v", "a", "b")
    first, second = snapshot(), snapshot()
    second.connection.execute("set local lock_timeout = '2s'")
    assert [name for name, _ in taken(first, 1)] == ["a"]
    assert [name for name, _ in taken(second)] == ["b"]
    second.connection.commit()
    first.connection.rollback()
    assert [name for name, _ in repeat(second, lambda: taken(second))] == ["a"]


def test_an_answer_to_what_was_taken_over_changes_nothing(view: PlatformStore, snapshot: Session) -> None:
    (event,) = factories.pump(view, "v", "a")
    late = snapshot()
    for store in (late, view):
        factories.set_clock(store.connection, "2030-01-01 00:00:00+00")
    late.connection.commit()
    (lost,) = repeat(late, lambda: late.lease_events("v", 1, 60))
    late.connection.execute("select")
    factories.set_clock(view.connection, "2030-01-01 00:01:00+00")
    (held,) = view.lease_events("v", 1, 60)
    assert (held.offset, lost.offset) == (event.offset, event.offset)
    assert_not_serializable(late, lambda: late.ack_event("v", "a", lost.offset, lost.lease_token))
    with pytest.raises(NotInFlight):
        late.ack_event("v", "a", lost.offset, lost.lease_token)
    late.connection.rollback()
    view.ack_event("v", "a", held.offset, held.lease_token)


def test_consumers_who_repeat_get_each_event_in_order(
    view: PlatformStore, connect: Connect, any_racer: Session
) -> None:
    """Also in READ COMMITTED; some keep their transactions open for two fetches, or roll back."""
    total = 120
    mutex = Mutex()
    effects: list[tuple[str, int]] = []

    def produce() -> None:
        store = PlatformStore(connect())
        for n in range(total // 10):
            factories.pump(store, "v", *[f"o-{(n + k) % 7}" for k in range(10)])

    def consume(seed: int) -> None:
        random = Random(seed)
        store = any_racer()
        while len(effects) < total:
            try:
                if random.random() < 0.3:
                    factories.pump(store, "v")
                mine = taken(store, random.randrange(1, 5)) + taken(store, random.randrange(1, 5))
                if random.random() < 0.1:
                    store.connection.rollback()
                    continue
                with mutex:  # as an effect that commits with the ack
                    store.connection.commit()
                    effects.extend(mine)
            except SerializationFailure:
                store.connection.rollback()

    producer = factories.start(produce)
    for result in factories.at_once([partial(consume, seed) for seed in range(3)]):
        result.result()
    producer.result(patience())
    assert Counter(effects).most_common(1)[0][1] == 1
    assert len(effects) == total
    for n in range(7):
        factories.assert_rising([offset for name, offset in effects if name == f"o-{n}"])
    factories.pump(view, "v")
    assert factories.rows(view.connection, "select from event_store.stream_locks") == []


@pytest.mark.parametrize("state", ["in flight", "backs off", "parked"])
def test_a_lock_removed_since_hides_no_event(view: PlatformStore, snapshot: Session, state: str) -> None:
    (a,) = factories.ids_of_one_partition(view.connection, 1)
    view.register_view("v", max_attempts=1 if state == "parked" else 5)
    factories.pump(view, "v", a)
    factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.stream_events("v", 10, 60)
    if state != "in flight":
        view.fail_event("v", a, event.offset, "no")
    factories.append_to(view, a)
    view.sequence_events()
    late = snapshot()
    factories.set_clock(view.connection, "2030-01-01 00:01:00+00")
    view.seek_view("v", "RESET_TO_OFFSET", 1, partition=0)  # at its position: only its lock is removed
    factories.set_clock(late.connection, "2030-01-01 00:00:00.1+00")
    repeat(late, lambda: late.dispatch_events("v"))
    factories.pump(view, "v")
    assert [name for name, _ in taken(view)] == [a]
