"""A lock that is extended in time keeps its event; late, it keeps nothing."""

from datetime import datetime
from uuid import uuid4

import pytest

from millrace.resources.errors import Malformed, NotInFlight, UnknownView, WrongMode
from millrace.resources.event_store import EventStore
from tests.sql.rows.test_ack_event import COLUMNS, locks
from tests.sql.rows.test_stream_events import view
from tests.support.factories import Connect, append, append_to, pump, refusal, set_clock, value

__all__ = ["view"]


# A16


@pytest.mark.parametrize(("seconds", "until"), [(90, "00:02:00"), (None, "00:01:10")])
def test_an_extended_lock_lasts_from_now_on_as_the_caller_or_the_view_says(
    view: EventStore, seconds: int | None, until: str
) -> None:
    view.register_view("v", lock_timeout_s=40)
    append(view, "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.lease_events("v", 1, 60)
    set_clock(view.connection, "2030-01-01 00:00:30+00")
    (lock,) = view.extend_lock("v", "a", event.offset, seconds, event.lease_token)
    assert lock.locked_until == datetime.fromisoformat(f"2030-01-01T{until}+00:00")
    set_clock(view.connection, f"2030-01-01 {until}+00")
    assert [e.attempt for e in view.lease_events("v")] == [2]


def test_a_lock_is_extended_as_often_as_one_likes_and_is_one_delivery(view: EventStore) -> None:
    append(view, "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.lease_events("v", 1, 60)
    for minute in range(1, 10):
        set_clock(view.connection, f"2030-01-01 00:0{minute}:00+00")
        view.extend_lock("v", "a", event.offset, 61, event.lease_token)
        assert view.lease_events("v") == []
    view.nack_event("v", "a", event.offset, event.lease_token)
    assert [e.attempt for e in view.lease_events("v")] == [1]


def test_it_extends_by_the_wall_clock_inside_a_long_transaction(view: EventStore, connect: Connect) -> None:
    append(view, "a")
    pump(view, "v")
    consumer = connect(autocommit=False)
    consumer.execute("select")
    (event,) = EventStore(consumer).lease_events("v", 1, 1)
    EventStore(consumer).extend_lock("v", "a", event.offset, 60)
    assert value(consumer, "select locked_until > now() + interval '60 seconds' from event_store.stream_locks")


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_malformed_duration_is_refused(view: EventStore, seconds: int) -> None:
    append(view, "a")
    pump(view, "v")
    (event,) = view.lease_events("v")
    before = locks(view)
    refused = refusal(Malformed, lambda: view.extend_lock("v", "a", event.offset, seconds))
    assert str(seconds) in str(refused.detail)
    assert locks(view) == before
    view.extend_lock("v", "a", event.offset, 3600)


def test_what_is_not_in_flight_is_not_extended(view: EventStore) -> None:
    (first, _) = append_to(view, "a", "a")
    refusal(NotInFlight, lambda: view.extend_lock("v", "a", first.offset))
    pump(view, "v")
    refusal(NotInFlight, lambda: view.extend_lock("v", "a", first.offset))
    view.lease_events("v")
    view.ack_event("v", "a", first.offset)
    before = locks(view)
    refusal(NotInFlight, lambda: view.extend_lock("v", "a", first.offset))
    assert locks(view) == before


def test_a_wrong_view_is_refused(view: EventStore) -> None:
    view.register_view("bulk", mode="bulk")
    refusal(UnknownView, lambda: view.extend_lock("unknown", "a", 1))
    refusal(WrongMode, lambda: view.extend_lock("bulk", "a", 1))


def test_it_is_called_with_uuids_and_named_arguments(view: EventStore) -> None:
    decider_id = uuid4()
    append(view, str(decider_id))
    pump(view, "v")
    (event,) = view.lease_events("v")
    cursor = view.connection.execute(
        """
        select * from event_store.extend_lock(
          v_view => 'v', v_decider_id => %s, v_offset => %s, v_lock_s => 60, v_lease_token => %s
        )
        """,
        (decider_id, event.offset, event.lease_token),
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == COLUMNS
    assert len(cursor.fetchall()) == 1
