"""Operators end locks: what a consumer that hangs has in flight is delivered to another one, and nothing is lost."""

from millrace.resources.errors import NotInFlight
from millrace.resources.event_store import EventStore
from tests.support.factories import Connect, append, append_to, pump, refusal, rows, terminate, value


def test_what_is_in_flight_is_delivered_again_at_once_and_that_is_no_attempt(
    view: EventStore, connect: Connect
) -> None:
    append_to(view, "a", "b")
    pump(view, "v")
    hanging, other = EventStore(connect()), EventStore(connect())
    events = hanging.lease_events("v", 2, 3600)
    assert view.end_locks("v", "order", "a", reason="it hangs") == 1
    (again,) = other.lease_events("v", 2)
    assert (again.offset, again.attempt) == (events[0].offset, 1)
    refusal(NotInFlight, lambda: hanging.ack_event("v", "a", events[0].offset, events[0].lease_token))
    hanging.ack_event("v", "b", events[1].offset, events[1].lease_token)
    other.ack_event("v", "a", again.offset, again.lease_token)


def test_a_stream_that_waits_for_its_retry_waits_no_more_and_a_dead_letter_stays(view: EventStore) -> None:
    view.register_view("v", max_attempts=2)
    append_to(view, "waits", "parked")
    pump(view, "v")
    for event in view.lease_events("v", 2):
        view.fail_event("v", event.decider_id, event.offset, "no")
    assert view.end_locks("v", "order", "parked") == 1
    (event,) = view.lease_events("v", 2)
    view.fail_event("v", "parked", event.offset, "no")
    assert view.end_locks("v") == 1
    assert view.end_locks("v") == 0
    assert [(e.decider_id, e.attempt) for e in view.lease_events("v", 2)] == [("waits", 2)]
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["parked"]


def test_it_waits_for_nobody(view: EventStore, connect: Connect) -> None:
    append_to(view, "a", "b")
    pump(view, "v")
    events = view.lease_events("v", 2)
    consumer = connect(autocommit=False)
    EventStore(consumer).ack_event("v", "a", events[0].offset)
    view.connection.execute("set lock_timeout = '2s'")
    assert view.end_locks("v") == 1
    terminate(view.connection, consumer.info.backend_pid)
    assert view.end_locks("v") == 1


# delete from locks, as fstore-sql's users do


def test_deleting_locks_frees_their_streams_and_loses_nothing_that_is_pending(view: EventStore) -> None:
    view.register_view("v", max_attempts=1)
    append_to(view, "flies", "flies", "parked", "done")
    pump(view, "v")
    events = {event.decider_id: event for event in view.lease_events("v", 10)}
    view.fail_event("v", "parked", events["parked"].offset, "no")
    view.ack_event("v", "done", events["done"].offset)
    append(view, "waits")
    pump(view, "v")
    assert [event.decider_id for event in view.lease_events("v", 10)] == ["waits"]
    locks = value(view.connection, "select count(*) from event_store.locks")
    deleted = view.connection.execute("delete from event_store.locks where view = 'v' and decider_id <> 'other'")
    assert deleted.rowcount == locks
    refusal(NotInFlight, lambda: view.ack_event("v", "flies", events["flies"].offset))
    assert view.dead_letters("v") == []
    again = view.lease_events("v", 10)
    assert sorted(event.decider_id for event in again) == ["flies", "parked", "waits"]
    assert {event.attempt for event in again} == {1}
    for event in again:
        view.ack_event("v", event.decider_id, event.offset, event.lease_token)
    assert [event.decider_id for event in view.lease_events("v", 10)] == ["flies"]
    assert rows(view.connection, "select from event_store.stream_locks where decider_id = 'done'") == []
    assert "end_locks" in {entry.operation for entry in view.audit_log("v")}
