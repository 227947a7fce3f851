"""Parked events, their errors, and the events that wait behind them; retry and discard."""

from functools import partial

from millrace.errors import NotParked
from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.sql.handlers.test_answers import locks
from tests.support.factories import Connect, append, append_to, at_once, pump, refusal, rows, set_clock


def park(store: PlatformStore, *decider_ids: str, view: str = "v", error: str = "no such customer") -> None:
    """Fail the next event of these streams until they are parked; the view gives up at once."""
    store.register_view(view, max_attempts=1)
    pump(store, view)
    for event in store.lease_events(view, 100):
        if event.decider_id in decider_ids:
            store.fail_event(view, event.decider_id, event.offset, error, event.lease_token)
        else:
            store.nack_event(view, event.decider_id, event.offset, event.lease_token)


def test_a_dead_letter_names_the_event_that_failed_and_why(view: PlatformStore) -> None:
    placed = append(view, "a")
    append(view, "a", placed.event_id, event="paid")
    append(view, "b")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    park(view, "a")
    (letter,) = view.dead_letters("v")
    assert (letter.view, letter.decider, letter.decider_id) == ("v", "order", "a")
    assert (letter.event, letter.offset, letter.waiting) == ("placed", placed.offset, 2)
    assert (letter.attempts, letter.last_error) == (1, "no such customer")
    assert str(letter.parked_at) == "2030-01-01 00:00:00+00:00"


def test_what_was_parked_first_comes_first_of_one_view_or_of_all(view: PlatformStore) -> None:
    view.register_view("w", "-infinity")
    append_to(view, "a", "b")
    for second, (name, decider_id) in enumerate([("w", "b"), ("v", "b"), ("v", "a")]):
        set_clock(view.connection, f"2030-01-01 00:00:0{second}+00")
        park(view, decider_id, view=name)
    assert [(letter.view, letter.decider_id) for letter in view.dead_letters()] == [("w", "b"), ("v", "b"), ("v", "a")]
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["b", "a"]


def test_only_what_the_view_wants_waits_and_is_given_up(view: PlatformStore) -> None:
    placed = append(view, "a")
    append(view, "a", placed.event_id, event="paid")
    park(view, "a")
    view.register_view("v", events=["paid"])
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.waiting) == ("paid", 1)
    view.register_view("v", events=["shipped"])
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.offset, letter.waiting) == (None, None, 0)
    assert view.discard_dead_letter("v", "order", "a", "not wanted") is None
    pump(view, "v")
    assert locks(view) == []


def test_in_bulk_mode_it_is_the_first_event_of_the_batch_that_failed(orders: PlatformStore) -> None:
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


def test_an_event_that_is_not_in_the_log_yet_has_not_failed(view: PlatformStore) -> None:
    placed = append(view, "a")
    park(view, "a")
    view.register_view("v", events=["paid"], max_attempts=1)
    paid = append(view, "a", placed.event_id, event="paid")
    (letter,) = view.dead_letters("v")
    assert (letter.event, letter.offset, letter.waiting) == (None, None, 1)
    assert view.discard_dead_letter("v", "order", "a", "nobody wants it") is None
    pump(view, "v")
    assert [event.offset for event in view.stream_events("v", 9)] == [paid.offset]


def drained(store: PlatformStore) -> list[tuple[str, int]]:
    got = []
    while events := store.lease_events("v", 100):
        for event in events:
            store.ack_event("v", event.decider_id, event.offset, event.lease_token)
            got.append((event.decider_id, event.offset))
    return got


def test_one_stream_those_of_a_decider_or_all_resume_in_order(view: PlatformStore) -> None:
    a1, *_, a2 = append_to(view, "a", "b", "c", "a")
    append(view, "a", decider="invoice")
    park(view, "a", "b", "c")
    (a3,) = append_to(view, "a")
    pump(view, "v")
    assert view.retry_dead_letters("v", "order", "a") == 1
    assert drained(view) == [("a", a1.offset), ("a", a2.offset), ("a", a3.offset)]
    left = [(letter.decider, letter.decider_id) for letter in view.dead_letters("v")]
    assert left == [("order", "b"), ("order", "c"), ("invoice", "a")]
    assert [view.retry_dead_letters("v", *decider) for decider in (("invoice",), (), ())] == [1, 2, 0]
    assert len(drained(view)) == 3


def test_retrying_at_once_retries_once(view: PlatformStore, connect: Connect) -> None:
    append_to(view, "a", "b", "c")
    park(view, "a", "b", "c")
    results = at_once([partial(PlatformStore(connect()).retry_dead_letters, "v") for _ in range(3)])
    assert sorted(result.result() for result in results) == [0, 0, 3]


def test_an_event_that_the_stream_does_not_stand_at_is_not_given_up(view: PlatformStore) -> None:
    first, second = append_to(view, "a", "a")
    park(view, "a")
    before = locks(view)
    refused = refusal(NotParked, partial(view.discard_dead_letter, "v", "order", "a", "no", second.offset))
    assert f"parked at offset {first.offset}, not at {second.offset}" in str(refused.detail)
    assert locks(view) == before
    discarded = view.discard_dead_letter("v", "order", "a", "yes", first.offset)
    assert discarded is not None
    assert discarded.offset == first.offset


def test_discarding_at_once_discards_one_event(view: PlatformStore, connect: Connect) -> None:
    append_to(view, "a", "a")
    park(view, "a")
    results = at_once(
        [partial(PlatformStore(connect()).discard_dead_letter, "v", "order", "a", "no") for _ in range(3)]
    )
    errors = sorted(type(result.exception()).__name__ for result in results)
    assert errors == ["NoneType", "NotParked", "NotParked"]
    assert len(drained(view)) == 1


def test_what_is_not_parked_is_not_discarded(view: PlatformStore) -> None:
    append_to(view, "a", "waits")
    park(view, "a")
    before = locks(view)
    for decider, decider_id in (("order", "waits"), ("invoice", "a"), ("order", "never"), ("order", None), (None, "a")):
        refused = refusal(NotParked, partial(view.discard_dead_letter, "v", decider, decider_id, "no"))  # type: ignore[arg-type]
        assert "dead_letters" in str(refused.hint)
    assert locks(view) == before
    assert rows(view.connection, "select from event_store.audit_log where operation <> 'register_view'") == []
    assert len(view.dead_letters("v")) == 1
