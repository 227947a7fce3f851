"""Acknowledging: only what is in flight, only forward."""

from uuid import uuid4

import pytest

from millrace.resources.errors import NotInFlight, UnknownView, WrongMode
from millrace.resources.event_store import EventStore
from tests.sql.rows.test_stream_events import view
from tests.support.factories import Connect, append, append_to, pump, rows, set_clock

__all__ = ["view"]

COLUMNS = ["view", "decider_id", "offset", "last_offset", "locked_until", "offset_final", "created_at", "updated_at"]


def locks(store: EventStore) -> object:
    return rows(store.connection, "select to_jsonb(k) from event_store.stream_locks k order by k.decider_id, k.decider")


def test_an_ack_frees_the_stream_and_returns_its_lock(view: EventStore) -> None:
    first, second = append_to(view, "a", "a")
    pump(view, "v")
    view.stream_events("v")
    (lock,) = view.ack_event("v", "a", first.offset)
    assert (lock.view, lock.decider_id, lock.offset, lock.last_offset) == ("v", "a", second.offset, first.offset)
    assert not lock.offset_final
    assert [event.offset for event in view.stream_events("v")] == [second.offset]


# A13


def test_an_ack_of_anything_but_the_event_in_flight_is_refused(view: EventStore) -> None:
    appended = append_to(view, "a", "a", "a", "b")
    pump(view, "v")
    view.stream_events("v", 10)
    view.ack_event("v", "a", appended[0].offset)
    view.stream_events("v", 10)
    before = locks(view)
    for decider_id, offset in (
        ("a", appended[0].offset),  # backwards
        ("a", appended[2].offset),  # beyond what was delivered
        ("a", 10**9),
        ("a", -1),
        ("b", appended[1].offset),  # in flight in another stream
        ("never", appended[1].offset),
    ):
        with pytest.raises(NotInFlight) as refused:
            view.ack_event("v", decider_id, offset)
        assert f"offset {offset}" in str(refused.value.detail)
    assert locks(view) == before
    view.ack_event("v", "a", appended[1].offset)


def test_an_event_is_acknowledged_once(view: EventStore) -> None:
    (event,) = append_to(view, "a")
    pump(view, "v")
    view.stream_events("v")
    view.ack_event("v", "a", event.offset)
    before = locks(view)
    with pytest.raises(NotInFlight, match=f"acknowledged up to {event.offset}"):
        view.ack_event("v", "a", event.offset)
    assert locks(view) == before


def test_an_ack_before_any_delivery_is_refused(view: EventStore) -> None:
    (event,) = append_to(view, "a")
    with pytest.raises(NotInFlight, match="nothing of this stream is waiting"):
        view.ack_event("v", "a", event.offset)
    pump(view, "v")
    with pytest.raises(NotInFlight, match="nothing in flight"):
        view.ack_event("v", "a", event.offset)


# A12


def test_an_ack_after_another_consumer_took_over_and_went_on_changes_nothing(
    view: EventStore, connect: Connect
) -> None:
    first, second = append_to(view, "a", "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    view.stream_events("v", 1, 60)
    other = EventStore(connect())
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    assert [event.offset for event in other.stream_events("v", 1, 60)] == [first.offset]
    other.ack_event("v", "a", first.offset)
    assert [event.offset for event in other.stream_events("v", 1, 60)] == [second.offset]
    before = locks(view)
    with pytest.raises(NotInFlight):
        view.ack_event("v", "a", first.offset)
    assert locks(view) == before


def test_a_rolled_back_ack_leaves_the_event_in_flight(view: EventStore, connect: Connect) -> None:
    (event,) = append_to(view, "a")
    pump(view, "v")
    view.stream_events("v")
    consumer = connect(autocommit=False)
    EventStore(consumer).ack_event("v", "a", event.offset)
    consumer.rollback()
    view.ack_event("v", "a", event.offset)


def test_a_wrong_view_is_refused(view: EventStore) -> None:
    view.register_view("bulk", mode="bulk")
    for name, error in (("unknown", UnknownView), ("bulk", WrongMode)):
        with pytest.raises(error):
            view.ack_event(name, "a", 1)


@pytest.mark.parametrize("final", [False, True])
def test_it_is_called_with_uuids_as_in_fstore_sql(view: EventStore, final: bool) -> None:
    decider_id = uuid4()
    event = append(view, str(decider_id), final=final)
    pump(view, "v")
    view.stream_events("v")
    cursor = view.connection.execute(
        "select * from event_store.ack_event(v_view => 'v', v_decider_id => %s, v_offset => %s)",
        (decider_id, event.offset),
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == COLUMNS
    row = cursor.fetchone()
    assert row is not None
    assert (row[1], row[5]) == (str(decider_id), final)
