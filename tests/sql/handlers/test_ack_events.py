"""Acknowledging many at once: only events in flight for the caller."""

from millrace.event_store.platform import PlatformStore
from tests.sql.handlers.test_stream_events import LOCKS_READ
from tests.support.factories import Connect, append, append_to, pump, rows, start_blocked, value
from tests.support.patience import patience


def test_what_was_not_delivered_or_was_answered_before_is_left_out(view: PlatformStore) -> None:
    a, b, c, d = append_to(view, "a", "b", "c", "a")
    invoice = append(view, "a", decider="invoice")
    pump(view, "v")
    view.stream_events("v", 10)
    view.ack_event("v", "b", b.offset)
    offsets = [d.offset, c.offset, b.offset, a.offset, a.offset, 10**12, -1]
    assert view.ack_events("v", []) == view.ack_events("v", [], []) == set()
    assert view.ack_events("v", offsets) == {a.offset, c.offset}
    assert view.ack_events("v", offsets) == set()
    # the stream's next event is in flight: acknowledging an earlier one moves nothing back
    assert [event.offset for event in view.stream_events("v")] == [d.offset]
    assert view.ack_events("v", [a.offset]) == set()
    # the offset distinguishes two deciders with the same id; null is ignored
    found = rows(view.connection, "select event_store.ack_events('v', array[null, %s]::bigint[])", invoice.offset)
    assert found == [(invoice.offset,)]
    assert view.ack_events("v", [d.offset]) == {d.offset}


def test_of_a_stream_in_anothers_hands_the_first_to_commit_counts(view: PlatformStore, connect: Connect) -> None:
    pump(view, "v", "a", "b")
    events = view.lease_events("v", 10)
    offsets, tokens = [event.offset for event in events], [event.lease_token for event in events]
    first, second = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    first.ack_event("v", "a", offsets[0], tokens[0])
    answered = start_blocked(view, second, lambda: second.ack_events("v", offsets, tokens))
    first.connection.commit()
    assert answered.result(patience()) == {offsets[1]}


def test_streams_are_locked_in_one_order_whatever_the_order_of_the_offsets(
    view: PlatformStore, connect: Connect
) -> None:
    """The first caller holds the last stream and wants the first; the other must not hold the first meanwhile."""
    pump(view, "v", "a", "b", "c")
    a, b, c = (event.offset for event in view.stream_events("v", 10))
    gate, caller = connect(autocommit=False), PlatformStore(connect())
    gate.execute("select from event_store.stream_locks where decider_id = 'a' for update")
    answered = start_blocked(view, caller, lambda: caller.ack_events("v", [c, b, a]))
    # the call waits for the first stream and holds none of the later ones
    free = rows(view.connection, "select decider_id from event_store.stream_locks order by 1 for update skip locked")
    assert free == [("b",), ("c",)]
    gate.rollback()
    assert answered.result(patience()) == {a, b, c}


def test_an_acknowledgement_that_waits_for_an_extension_is_not_lost(view: PlatformStore, connect: Connect) -> None:
    (event,) = pump(view, "v", "a")
    (leased,) = view.lease_events("v")
    keeper, consumer = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    keeper.extend_lock("v", "a", event.offset, 600, leased.lease_token)
    answered = start_blocked(view, consumer, lambda: consumer.ack_events("v", [event.offset], [leased.lease_token]))
    keeper.connection.commit()
    assert answered.result(patience()) == {event.offset}


def test_each_answer_is_a_probe_however_many_locks_there_are(view: PlatformStore) -> None:
    """From the first call of a session on: a plan for the given arrays would read all locks of the view."""
    pump(view, "v", *[f"o-{n}" for n in range(1500)])
    events = view.lease_events("v", 1500)
    for n in range(7):
        chosen = events[10 * n : 10 * n + 10]
        with view.connection.transaction():
            before = value(view.connection, LOCKS_READ)
            assert len(view.ack_events("v", [e.offset for e in chosen], [e.lease_token for e in chosen])) == 10
            assert value(view.connection, LOCKS_READ) - before <= 100
