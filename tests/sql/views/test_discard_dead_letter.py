"""Giving up the event that a parked stream failed at: written down, and the stream goes on."""

from functools import partial

import pytest

from millrace.resources.errors import Malformed, NotInFlight, NotParked, UnknownView
from millrace.resources.event_store import EventStore
from tests.sql.rows.test_ack_event import locks
from tests.sql.rows.test_stream_events import view
from tests.sql.views.test_dead_letters import park
from tests.sql.views.test_retry_dead_letters import drained
from tests.support.factories import Connect, append, append_to, at_once, pump, refusal, rows, set_clock

__all__ = ["view"]


# A21


def test_the_stream_goes_on_with_its_next_event(view: EventStore) -> None:
    first, second = append_to(view, "a", "a")
    park(view, "a")
    discarded = view.discard_dead_letter("v", "order", "a", "a test order")
    assert discarded is not None
    assert (discarded.offset, discarded.event_id) == (first.offset, first.event_id)
    assert view.dead_letters("v") == []
    assert drained(view) == [("a", second.offset)]
    assert len(view.get_events("a", "order")) == 2  # the log keeps it
    pump(view, "v")
    assert rows(view.connection, "select from event_store.stream_locks") == []


def test_who_did_it_and_why_is_written_down(view: EventStore) -> None:
    (event,) = append_to(view, "a")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    park(view, "a", error="no such customer")
    view.discard_dead_letter("v", "order", "a", "a test order")
    ((operation, name, by_caller, reason, detail, done_at),) = rows(
        view.connection,
        "select operation, view, done_by = session_user, reason, detail, done_at from event_store.audit_log where operation <> 'register_view'",
    )
    assert (operation, name, by_caller, reason) == ("discard_dead_letter", "v", True, "a test order")
    assert done_at.isoformat() == "2030-01-01T00:00:00+00:00"
    assert (detail["decider"], detail["decider_id"], detail["offset"]) == ("order", "a", event.offset)
    assert (detail["event"], detail["event_id"]) == ("placed", str(event.event_id))
    assert (detail["attempts"], detail["last_error"]) == (1, "no such customer")


def test_an_event_that_the_stream_does_not_stand_at_any_more_is_not_given_up(view: EventStore) -> None:
    first, second = append_to(view, "a", "a")
    park(view, "a")
    before = locks(view)
    refused = refusal(NotParked, partial(view.discard_dead_letter, "v", "order", "a", "no", second.offset))
    assert f"parked at offset {first.offset}, not at {second.offset}" in str(refused.detail)
    assert locks(view) == before
    discarded = view.discard_dead_letter("v", "order", "a", "yes", first.offset)
    assert discarded is not None
    assert discarded.offset == first.offset


def test_a_late_answer_for_a_discarded_event_is_refused(view: EventStore) -> None:
    append_to(view, "a", "a")
    view.register_view("v", max_attempts=1)
    pump(view, "v")
    (event,) = view.lease_events("v")
    view.fail_event("v", "a", event.offset, "no", event.lease_token)
    view.discard_dead_letter("v", "order", "a", "no")
    before = locks(view)
    refusal(NotInFlight, lambda: view.ack_event("v", "a", event.offset, event.lease_token))
    refusal(NotInFlight, lambda: view.nack_event("v", "a"))
    assert locks(view) == before


def test_after_it_any_session_may_answer_for_the_next_event(view: EventStore, connect: Connect) -> None:
    """The former event was taken over; of the next one there is one delivery only."""
    append_to(view, "a", "a")
    view.register_view("v", max_attempts=1)
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    view.stream_events("v", 1, 60)
    set_clock(view.connection, "2030-01-01 00:01:00+00")
    assert view.stream_events("v") == []  # its consumer never answered: parked
    view.discard_dead_letter("v", "order", "a", "kills its consumers")
    (event,) = view.stream_events("v")
    EventStore(connect()).ack_event("v", "a", event.offset)


def test_a_stream_of_which_the_view_wants_nothing_any_more_is_freed(view: EventStore) -> None:
    append(view, "a")
    park(view, "a")
    view.register_view("v", events=["shipped"])
    assert view.discard_dead_letter("v", "order", "a", "not wanted") is None
    pump(view, "v")
    assert rows(view.connection, "select from event_store.stream_locks") == []


def test_discarding_at_once_discards_one_event(view: EventStore, connect: Connect) -> None:
    append_to(view, "a", "a")
    park(view, "a")
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([partial(s.discard_dead_letter, "v", "order", "a", "no") for s in stores])
    errors = sorted(type(result.exception()).__name__ for result in results)
    assert errors == ["NoneType", "NotParked", "NotParked"]
    assert len(drained(view)) == 1


def test_what_is_not_parked_is_not_discarded(view: EventStore) -> None:
    append_to(view, "a", "waits")
    park(view, "a")
    before = locks(view)
    for decider, decider_id in (("order", "waits"), ("invoice", "a"), ("order", "never"), ("order", None), (None, "a")):
        refused = refusal(NotParked, partial(view.discard_dead_letter, "v", decider, decider_id, "no"))  # type: ignore[arg-type]
        assert "dead_letters" in str(refused.hint)
    assert locks(view) == before
    assert rows(view.connection, "select from event_store.audit_log where operation <> 'register_view'") == []


@pytest.mark.parametrize("reason", ["", None])
def test_a_reason_is_asked_for(view: EventStore, reason: str) -> None:
    append(view, "a")
    park(view, "a")
    assert "v_reason" in str(refusal(Malformed, lambda: view.discard_dead_letter("v", "order", "a", reason)).detail)
    assert len(view.dead_letters("v")) == 1


def test_an_unknown_view_is_refused(view: EventStore) -> None:
    refusal(UnknownView, lambda: view.discard_dead_letter("unknown", "order", "a", "no"))
