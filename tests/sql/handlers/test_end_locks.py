"""Operators end locks: the events in flight at a hanging consumer go to another one, and no event is lost."""

from millrace.errors import NotInFlight
from millrace.event_store.platform import PlatformStore
from tests.support.factories import pump, refusal, rows, value


def test_no_retry_is_waited_for_and_a_dead_letter_stays(view: PlatformStore) -> None:
    view.register_view("v", max_attempts=2)
    pump(view, "v", "waits", "parked")
    for event in view.lease_events("v", 2):
        view.fail_event("v", event.decider_id, event.offset, "no")
    assert view.end_locks("v", "order", "parked") == 1
    (event,) = view.lease_events("v", 2)
    view.fail_event("v", "parked", event.offset, "no")
    assert view.end_locks("v") == 1
    assert view.end_locks("v") == 0
    assert [(e.decider_id, e.attempt) for e in view.lease_events("v", 2)] == [("waits", 2)]
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["parked"]


def test_deleting_locks_frees_streams_and_loses_nothing(view: PlatformStore) -> None:
    """As fstore-sql's users do."""
    view.register_view("v", max_attempts=1)
    pump(view, "v", "flies", "flies", "parked", "done")
    events = {event.decider_id: event for event in view.lease_events("v", 10)}
    view.fail_event("v", "parked", events["parked"].offset, "no")
    view.ack_event("v", "done", events["done"].offset)
    pump(view, "v", "waits")
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
