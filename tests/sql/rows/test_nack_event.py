"""Giving an event back: at once, or for later."""

from functools import partial
from typing import LiteralString
from uuid import uuid4

import pytest

from millrace.resources.errors import Malformed, NotInFlight, UnknownView, WrongMode
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.sql.rows.test_ack_event import COLUMNS, locks
from tests.sql.rows.test_stream_events import view
from tests.support.factories import Connect, append, append_to, pump, refusal, rows, set_clock, take_over

__all__ = ["view"]


def test_a_nacked_event_is_delivered_again_at_once(view: EventStore) -> None:
    append_to(view, "a", "a")
    pump(view, "v")
    (event,) = view.stream_events("v")
    (lock,) = view.nack_event("v", "a")
    assert lock.last_offset < event.offset
    assert view.stream_events("v") == [event]
    # what was given back is no attempt
    assert rows(view.connection, "select attempts from event_store.stream_locks") == [(1,)]


def test_a_scheduled_nack_delivers_not_before_its_time(view: EventStore) -> None:
    append(view, "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.stream_events("v")
    view.schedule_nack_event("v", "a", 1500)
    set_clock(view.connection, "2030-01-01 00:00:01.499+00")
    assert view.stream_events("v") == []
    set_clock(view.connection, "2030-01-01 00:00:01.5+00")
    assert view.stream_events("v") == [event]


def test_a_stream_that_waits_does_not_keep_others_waiting(view: EventStore) -> None:
    append_to(view, "a", "b")
    pump(view, "v")
    view.stream_events("v", 1)
    view.schedule_nack_event("v", "a", 60_000)
    assert [event.decider_id for event in view.stream_events("v", 10)] == ["b"]


def test_a_nack_without_an_event_in_flight_is_refused(view: EventStore) -> None:
    (event,) = append_to(view, "a")
    with pytest.raises(NotInFlight, match="nothing of this stream is waiting"):
        view.nack_event("v", "a")
    pump(view, "v")
    with pytest.raises(NotInFlight, match="nothing in flight"):
        view.nack_event("v", "a")
    view.stream_events("v")
    view.ack_event("v", "a", event.offset)
    before = locks(view)
    with pytest.raises(NotInFlight):
        view.nack_event("v", "a")
    with pytest.raises(NotInFlight):
        view.schedule_nack_event("v", "a", 1)
    assert locks(view) == before


def test_an_ack_after_a_nack_is_refused(view: EventStore) -> None:
    (event,) = append_to(view, "a")
    pump(view, "v")
    view.stream_events("v")
    view.nack_event("v", "a")
    with pytest.raises(NotInFlight):
        view.ack_event("v", "a", event.offset)
    assert len(view.stream_events("v")) == 1


# A12


def test_a_late_nack_with_its_token_frees_nobodys_lease(view: EventStore, connect: Connect) -> None:
    """The stream went on since: what is in flight now was never delivered to who is late."""
    append_to(view, "a", "a")
    pump(view, "v")
    holder = EventStore(connect())
    late, held = take_over(view, holder)
    token = late.lease_token
    holder.ack_event("v", "a", held.offset)
    (following,) = holder.lease_events("v", 1, 600)
    before = locks(view)
    for answer in (
        lambda: view.nack_event("v", "a", None, token),
        lambda: view.schedule_nack_event("v", "a", 0, None, token),
    ):
        assert "for somebody else" in str(refusal(NotInFlight, answer).detail)
    assert locks(view) == before
    holder.ack_event("v", "a", following.offset)


def test_a_nack_without_offset_is_for_what_is_in_flight_whichever_session_gives_it(
    view: EventStore, connect: Connect
) -> None:
    append(view, "a")
    pump(view, "v")
    other = EventStore(connect())
    for again in (partial(other.nack_event, "v", "a"), partial(other.schedule_nack_event, "v", "a", 0)):
        (event,) = view.stream_events("v")
        again()
        assert view.stream_events("v") == [event]
        view.nack_event("v", "a")


def test_a_nack_with_its_offset_counts_from_any_session_while_its_lock_lasts(
    view: EventStore, connect: Connect
) -> None:
    append(view, "a")
    pump(view, "v")
    (event,) = view.stream_events("v")
    EventStore(connect()).nack_event("v", "a", event.offset)
    assert view.stream_events("v") == [event]


def test_of_two_deciders_that_share_an_id_the_offset_tells_which_is_given_back(view: EventStore) -> None:
    append(view, "x")
    append(view, "x", decider="invoice")
    pump(view, "v")
    order, invoice = view.lease_events("v", 10)
    for ambiguous in (lambda: view.nack_event("v", "x"), lambda: view.schedule_nack_event("v", "x", 0)):
        assert "deciders invoice, order" in str(refusal(Malformed, ambiguous).detail)
    view.nack_event("v", "x", invoice.offset)
    assert [event.offset for event in view.lease_events("v", 10)] == [invoice.offset]
    view.nack_event("v", "x", None, order.lease_token)  # a token tells, too
    assert [event.offset for event in view.lease_events("v", 10)] == [order.offset]


def test_a_late_nack_of_an_offset_does_not_free_the_other_decider(view: EventStore, connect: Connect) -> None:
    append(view, "x")
    pump(view, "v")
    holder = EventStore(connect())
    _, held = take_over(view, holder)
    holder.ack_event("v", "x", held.offset)
    append(view, "x", decider="invoice")
    pump(view, "v")
    assert [event.decider for event in holder.stream_events("v", 10)] == ["invoice"]
    before = locks(view)
    refusal(NotInFlight, lambda: view.nack_event("v", "x", held.offset))
    assert locks(view) == before


@pytest.mark.parametrize("milliseconds", ["-1", "null", "9223372036854775807"])
def test_a_malformed_delay_is_refused(view: EventStore, milliseconds: str) -> None:
    append(view, "a")
    pump(view, "v")
    view.stream_events("v")
    with pytest.raises(Malformed), refusals():
        view.connection.execute(f"select event_store.schedule_nack_event('v', 'a'::text, {milliseconds})".encode())


def test_a_wrong_view_is_refused(view: EventStore) -> None:
    view.register_view("bulk", mode="bulk")
    for name, error in (("unknown", UnknownView), ("bulk", WrongMode)):
        with pytest.raises(error):
            view.nack_event(name, "a")


def test_they_are_called_with_uuids_as_in_fstore_sql(view: EventStore) -> None:
    decider_id = uuid4()
    append(view, str(decider_id))
    pump(view, "v")
    for query in (
        "select * from event_store.nack_event(v_view => 'v', v_decider_id => %s)",
        "select * from event_store.schedule_nack_event(v_view => 'v', v_decider_id => %s, v_milliseconds => 0)",
    ):
        assert len(view.stream_events("v")) == 1
        cursor = view.connection.execute(query.encode(), (decider_id,))
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == COLUMNS
        assert len(cursor.fetchall()) == 1


def test_why_it_was_given_back_is_the_locks_error_until_the_event_is_acknowledged(view: EventStore) -> None:
    append(view, "a")
    pump(view, "v")
    errors: LiteralString = "select last_error, attempts, parked_at from event_store.stream_locks"
    for error, kept in (("no answer", "no answer"), (None, "no answer"), ("", "no answer"), ("HTTP 503", "HTTP 503")):
        (event,) = view.lease_events("v")
        view.nack_event("v", "a", event.offset, event.lease_token, error)
        assert rows(view.connection, errors) == [(kept, 0, None)]
    (event,) = view.lease_events("v")
    view.schedule_nack_event("v", "a", 0, event.offset, event.lease_token, "HTTP 429")
    assert rows(view.connection, errors) == [("HTTP 429", 0, None)]
    (event,) = view.lease_events("v")
    view.ack_event("v", "a", event.offset, event.lease_token)
    assert rows(view.connection, "select from event_store.stream_locks where last_error is not null") == []


@pytest.mark.parametrize("decider_id", ["a", "0b5c1d9e-0000-4000-8000-000000000001"])
def test_fstore_sqls_callers_give_back_as_before(view: EventStore, decider_id: str) -> None:
    append(view, decider_id)
    pump(view, "v")
    uuid = "::uuid" if len(decider_id) > 1 else ""
    for call in (
        "nack_event('v', %s{})",
        "nack_event(v_view => 'v', v_decider_id => %s{})",
        "schedule_nack_event('v', %s{}, 0)",
        "schedule_nack_event(v_view => 'v', v_decider_id => %s{}, v_milliseconds => 0)",
    ):
        assert len(view.stream_events("v")) == 1
        query = f"select decider_id from event_store.{call.format(uuid)}"
        assert view.connection.execute(query.encode(), (decider_id,)).fetchall() == [(decider_id,)]
