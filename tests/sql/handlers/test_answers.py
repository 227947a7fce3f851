"""A consumer's answers for an event in flight: acknowledged, given back, failed, still at work."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import LiteralString

from millrace.errors import Malformed, NotInFlight
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, append_to, pump, refusal, rows, set_clock, value

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def locks(store: PlatformStore) -> object:
    return rows(store.connection, "select to_jsonb(k) from event_store.stream_locks k order by k.decider_id, k.decider")


def at(store: PlatformStore, **later: float) -> datetime:
    """Set the session's clock to noon plus `later`."""
    time = NOON + timedelta(**later)
    set_clock(store.connection, time.isoformat())
    return time


def test_an_ack_frees_the_stream_and_returns_its_lock(view: PlatformStore) -> None:
    first, second = pump(view, "v", "a", "a")
    view.stream_events("v")
    (lock,) = view.ack_event("v", "a", first.offset)
    assert (lock.view, lock.decider_id, lock.offset, lock.last_offset) == ("v", "a", second.offset, first.offset)
    assert not lock.offset_final
    assert [event.offset for event in view.stream_events("v")] == [second.offset]


def test_an_ack_of_anything_but_the_event_in_flight_is_refused(view: PlatformStore) -> None:
    appended = append_to(view, "a", "a", "a", "b")

    def is_refused(decider_id: str, offset: int, why: str = "") -> None:
        before = locks(view)
        detail = str(refusal(NotInFlight, lambda: view.ack_event("v", decider_id, offset)).detail)
        assert f"offset {offset}" in detail
        assert why in detail
        assert locks(view) == before

    is_refused("a", appended[0].offset, "nothing of this stream is waiting")
    pump(view, "v")
    is_refused("a", appended[0].offset, "nothing in flight")
    view.stream_events("v", 10)
    view.ack_event("v", "a", appended[0].offset)
    is_refused("a", appended[0].offset, f"acknowledged up to {appended[0].offset}")
    view.stream_events("v", 10)
    is_refused("a", appended[0].offset)  # backwards
    is_refused("a", appended[2].offset)  # beyond the delivered events
    is_refused("b", appended[1].offset)  # in flight in another stream
    is_refused("never", appended[1].offset)
    is_refused("a", 10**9)
    is_refused("a", -1)
    view.ack_event("v", "a", appended[1].offset)


def test_a_nacked_event_is_delivered_again_at_once_or_not_before_its_time(view: PlatformStore) -> None:
    pump(view, "v", "a", "a")
    at(view)
    (event,) = view.stream_events("v")
    (lock,) = view.nack_event("v", "a")
    assert lock.last_offset < event.offset
    assert view.stream_events("v") == [event]
    # an event given back does not count as an attempt
    assert rows(view.connection, "select attempts from event_store.stream_locks") == [(1,)]
    view.schedule_nack_event("v", "a", 1500)
    # a waiting stream does not delay others
    pump(view, "v", "b")
    assert [event.decider_id for event in view.stream_events("v", 10)] == ["b"]
    at(view, milliseconds=1499)
    assert view.stream_events("v") == []
    at(view, milliseconds=1500)
    assert view.stream_events("v") == [event]


def test_a_nack_of_nothing_and_an_ack_after_a_nack_are_refused(view: PlatformStore) -> None:
    (event,) = append_to(view, "a")
    answers = partial(view.nack_event, "v", "a"), partial(view.schedule_nack_event, "v", "a", 1)

    def are_refused(why: str) -> None:
        before = locks(view)
        for answer in answers:
            assert why in str(refusal(NotInFlight, answer).detail)
        assert locks(view) == before

    are_refused("nothing of this stream is waiting")
    pump(view, "v")
    are_refused("nothing in flight")
    view.stream_events("v")
    view.nack_event("v", "a")
    refusal(NotInFlight, lambda: view.ack_event("v", "a", event.offset))
    assert len(view.stream_events("v")) == 1
    view.ack_event("v", "a", event.offset)
    are_refused("")


def test_of_deciders_that_share_an_id_the_offset_tells_which(view: PlatformStore) -> None:
    append(view, "x")
    append(view, "x", decider="invoice")
    pump(view, "v")
    order, invoice = view.lease_events("v", 10)
    for ambiguous in (lambda: view.nack_event("v", "x"), lambda: view.schedule_nack_event("v", "x", 0)):
        assert "deciders invoice, order" in str(refusal(Malformed, ambiguous).detail)
    view.nack_event("v", "x", invoice.offset)
    assert [event.offset for event in view.lease_events("v", 10)] == [invoice.offset]
    view.nack_event("v", "x", None, order.lease_token)  # a token alone identifies the delivery too
    assert [event.offset for event in view.lease_events("v", 10)] == [order.offset]
    view.fail_event("v", "x", invoice.offset, "no")
    assert rows(view.connection, "select decider from event_store.stream_locks where in_flight > 0") == [("order",)]
    (lock,) = view.ack_event("v", "x", order.offset)
    assert (lock.offset, lock.last_offset) == (order.offset, order.offset)


def test_why_it_was_given_back_is_kept_until_an_ack(view: PlatformStore) -> None:
    pump(view, "v", "a")
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


def fail(store: PlatformStore, decider_id: str, error: str = "no such customer") -> datetime:
    """Fetch all free events, fail this stream's, give the rest back; return the end of its backoff."""
    for event in store.lease_events("v", 100, 60):
        if event.decider_id == decider_id:
            (lock,) = store.fail_event("v", decider_id, event.offset, error, event.lease_token)
        else:
            store.nack_event("v", event.decider_id, event.offset, event.lease_token)
    return lock.locked_until


def test_a_failing_stream_waits_longer_each_time_and_is_then_parked(view: PlatformStore) -> None:
    pump(view, "v", "poison", "poison")
    now = NOON
    waits = []
    for _ in range(4):
        set_clock(view.connection, now.isoformat())
        until = fail(view, "poison")
        waits.append((until - now).total_seconds())
        set_clock(view.connection, (until - timedelta(milliseconds=1)).isoformat())
        assert view.lease_events("v", 10) == []
        now = until
    assert waits == [5, 10, 20, 40]
    set_clock(view.connection, now.isoformat())
    assert fail(view, "poison", "still no such customer") == datetime.max.replace(tzinfo=UTC)
    set_clock(view.connection, (now + timedelta(days=999)).isoformat())
    assert view.lease_events("v", 10) == []
    (letter,) = view.dead_letters("v")
    assert (letter.decider_id, letter.attempts, letter.last_error) == ("poison", 5, "still no such customer")
    assert (letter.parked_at, letter.waiting) == (now, 2)
    # the backoff grows to an hour at most
    delays = value(
        view.connection,
        "select array_agg(event_store_private.retry_delay(n)::text) from unnest('{0,1,10,11,2147483647}'::int[]) n",
    )
    assert delays == ["00:00:02.5", "00:00:05", "00:42:40", "01:00:00", "01:00:00"]


def test_a_long_error_and_the_longest_extension_are_taken(view: PlatformStore) -> None:
    pump(view, "v", "a")
    (event,) = view.lease_events("v")
    view.extend_lock("v", "a", event.offset, 3600)
    error = "é'\"\\\n" * 50_000
    view.fail_event("v", "a", event.offset, error)
    assert rows(view.connection, "select last_error = %s from event_store.stream_locks", error) == [(True,)]
