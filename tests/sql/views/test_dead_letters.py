"""What is parked, why, and what waits behind it."""

import pytest

from millrace.resources.errors import UnknownView
from millrace.resources.event_store import EventStore, StreamFailure
from tests.sql.rows.test_stream_events import view
from tests.support.factories import append, append_to, pump, refusal, set_clock

__all__ = ["park", "view"]


def park(store: EventStore, *decider_ids: str, view: str = "v", error: str = "no such customer") -> None:
    """Fail the next event of these streams until they are parked; the view gives up at once."""
    store.register_view(view, max_attempts=1)
    pump(store, view)
    for event in store.lease_events(view, 100):
        if event.decider_id in decider_ids:
            store.fail_event(view, event.decider_id, event.offset, error, event.lease_token)
        else:
            store.nack_event(view, event.decider_id, event.offset, event.lease_token)


def test_a_dead_letter_names_the_event_that_failed_and_why(view: EventStore) -> None:
    placed = append(view, "a")
    append(view, "a", placed.event_id, event="paid")
    append(view, "b")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    park(view, "a")
    (letter,) = view.dead_letters("v")
    assert (letter.view, letter.decider, letter.decider_id) == ("v", "order", "a")
    assert (letter.event, letter.offset, letter.waiting) == ("placed", placed.offset, 2)
    assert (letter.attempts, letter.last_error) == (1, "no such customer")
    assert letter.parked_at.isoformat() == "2030-01-01T00:00:00+00:00"


def test_what_was_parked_first_comes_first_of_one_view_or_of_all(view: EventStore) -> None:
    view.register_view("w", "-infinity")
    append_to(view, "a", "b")
    for second, (name, decider_id) in enumerate([("w", "b"), ("v", "b"), ("v", "a")]):
        set_clock(view.connection, f"2030-01-01 00:00:0{second}+00")
        park(view, decider_id, view=name)
    assert [(letter.view, letter.decider_id) for letter in view.dead_letters()] == [("w", "b"), ("v", "b"), ("v", "a")]
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["b", "a"]


def test_only_what_the_view_wants_waits(view: EventStore) -> None:
    placed = append(view, "a")
    append(view, "a", placed.event_id, event="paid")
    park(view, "a")
    view.register_view("v", events=["paid"], max_attempts=1)
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.waiting) == ("paid", 1)
    view.register_view("v", events=["shipped"], max_attempts=1)
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.offset, letter.waiting) == (None, None, 0)


def test_in_bulk_mode_it_is_the_first_event_of_the_batch_that_failed(orders: EventStore) -> None:
    orders.register_view("b", "-infinity", mode="bulk", max_attempts=1)
    append_to(orders, "a")
    orders.commit_batch("b", orders.claim_batch("b", "me"))
    failed, _ = append_to(orders, "a", "a")
    (lease,) = orders.claim_batch("b", "me")
    assert orders.fail_streams("b", lease, [StreamFailure("order", "a", "no such customer")]) == 1
    orders.commit_batch("b", [lease])
    append_to(orders, "a")
    (letter,) = orders.dead_letters("b")
    assert (letter.offset, letter.waiting) == (failed.offset, 3)


def test_an_event_that_is_not_in_the_log_yet_has_not_failed(view: EventStore) -> None:
    placed = append(view, "a")
    park(view, "a")
    view.register_view("v", events=["paid"], max_attempts=1)
    paid = append(view, "a", placed.event_id, event="paid")
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.offset, letter.waiting) == (None, None, 1)
    assert view.discard_dead_letter("v", "order", "a", "nobody wants it") is None
    pump(view, "v")
    assert [event.offset for event in view.stream_events("v", 9)] == [paid.offset]


@pytest.mark.parametrize("name", ["unknown", ""])
def test_an_unknown_view_is_refused(view: EventStore, name: str) -> None:
    refusal(UnknownView, lambda: view.dead_letters(name))
