"""Parked streams that are tried again: in order, with all attempts before them."""

from functools import partial

from millrace.resources.errors import Malformed, UnknownView
from millrace.resources.event_store import EventStore
from tests.sql.rows.test_stream_events import view
from tests.sql.views.test_dead_letters import park
from tests.support.factories import Connect, append, append_to, at_once, pump, refusal, rows, set_clock

__all__ = ["view"]


def drained(store: EventStore) -> list[tuple[str, int]]:
    got = []
    while events := store.lease_events("v", 100):
        for event in events:
            store.ack_event("v", event.decider_id, event.offset, event.lease_token)
            got.append((event.decider_id, event.offset))
    return got


# A21


def test_one_stream_resumes_in_order_and_the_others_stay_parked(view: EventStore) -> None:
    a1, _, a2 = append_to(view, "a", "b", "a")
    park(view, "a", "b")
    (a3,) = append_to(view, "a")
    pump(view, "v")
    assert view.retry_dead_letters("v", "order", "a") == 1
    assert drained(view) == [("a", a1.offset), ("a", a2.offset), ("a", a3.offset)]
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["b"]


def test_all_resume_at_once_or_those_of_one_decider(view: EventStore) -> None:
    append_to(view, "a", "b")
    append(view, "a", decider="invoice")
    park(view, "a", "b")
    assert view.retry_dead_letters("v", "invoice") == 1
    assert view.retry_dead_letters("v") == 2
    assert view.retry_dead_letters("v") == 0
    assert len(drained(view)) == 3


def test_a_retried_stream_has_all_attempts_before_it_and_can_be_parked_again(view: EventStore) -> None:
    append(view, "a")
    park(view, "a")
    view.register_view("v", max_attempts=2)
    view.retry_dead_letters("v")
    for n in (1, 2):
        set_clock(view.connection, f"2030-01-0{n} 00:00:00+00")
        (event,) = view.lease_events("v")
        assert event.attempt == n
        view.fail_event("v", "a", event.offset, f"no, {n}", event.lease_token)
    assert [(letter.attempts, letter.last_error) for letter in view.dead_letters("v")] == [(2, "no, 2")]


def test_a_retry_is_written_down(view: EventStore) -> None:
    append_to(view, "a", "b")
    park(view, "a", "b")
    view.retry_dead_letters("v", "order", "a", reason="the customer is there now")
    view.retry_dead_letters("v", "order", "never")
    assert rows(
        view.connection, "select operation, view, done_by = session_user, reason, detail from event_store.audit_log where operation <> 'register_view'"
    ) == [
        (
            "retry_dead_letters", "v", True, "the customer is there now",
            {"decider": "order", "decider_id": "a", "streams": 1},
        )
    ]  # fmt: skip


def test_retrying_at_once_retries_once(view: EventStore, connect: Connect) -> None:
    append_to(view, "a", "b", "c")
    park(view, "a", "b", "c")
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([partial(store.retry_dead_letters, "v") for store in stores])
    assert sorted(result.result() for result in results) == [0, 0, 3]


def test_an_event_that_went_by_while_its_stream_was_parked_is_not_lost(view: EventStore) -> None:
    append(view, "a")
    park(view, "a")
    append_to(view, *["a", "b"] * 3)
    for _ in range(3):
        pump(view, "v")
        drained(view)
    view.retry_dead_letters("v")
    assert [decider_id for decider_id, _ in drained(view)] == ["a"] * 4


def test_a_wrong_request_is_refused(view: EventStore) -> None:
    refusal(UnknownView, lambda: view.retry_dead_letters("unknown"))
    refusal(Malformed, lambda: view.retry_dead_letters("v", None, "a"))
