"""The acknowledged and the owed events of one stream for each view."""

from millrace.errors import EventNotRegistered
from millrace.event_store import StreamFailure, StreamView
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, append_to, pump, refusal, set_clock
from tests.support.sql_calls import get_events


def owed(store: PlatformStore, view: str, decider_id: str = "a") -> tuple[int, int | None]:
    found = of(store, view, decider_id)
    return found.owed, found.first_owed


def of(store: PlatformStore, view: str, decider_id: str = "a") -> StreamView:
    (found,) = (one for one in store.stream_views("order", decider_id) if one.view == view)
    return found


def test_a_view_owes_what_its_checkpoint_did_not_pass(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    first, second = append_to(orders, "a", "a")
    assert owed(orders, "v") == (2, first.offset)
    orders.commit_batch("v", orders.claim_batch("v", "me"))
    assert owed(orders, "v") == (0, None)
    place = orders.log_position(second.event_id)
    assert place is not None
    assert (of(orders, "v").partition, of(orders, "v").position) == (place.partition, 2)
    (third,) = append_to(orders, "a")
    # an event without a position is owed too
    assert owed(orders, "v") == (1, third.offset)


def test_a_view_owes_only_what_it_wants(orders: PlatformStore) -> None:
    orders.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    orders.register_view("invoices", "-infinity", mode="bulk", deciders=["invoice"])
    orders.register_view("later")
    append(orders, "a")
    append(orders, "a", get_events(orders, "a", "order")[0].event_id, event="paid")
    orders.sequence_events()
    orders.register_view("new")
    assert {view.view: view.owed for view in orders.stream_views("order", "a")} == {"later": 2, "new": 0, "placed": 1}


def test_a_stream_in_flight_waiting_or_parked_owes_from_its_lock_on(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", max_attempts=2)
    first, second = pump(orders, "v", "a", "a")
    assert of(orders, "v").owed == 2
    orders.stream_events("v", 10)
    assert (of(orders, "v").in_flight, of(orders, "v").attempts) == (first.offset, 1)
    orders.ack_event("v", "a", first.offset)
    held = of(orders, "v")
    assert (held.owed, held.first_owed, held.last_offset, held.in_flight) == (1, second.offset, first.offset, None)
    orders.stream_events("v", 10)
    orders.fail_event("v", "a", second.offset, "no such customer")
    waiting = of(orders, "v")
    assert (waiting.owed, waiting.attempts, waiting.last_error, waiting.parked_at) == (1, 1, "no such customer", None)
    assert waiting.locked_until is not None
    set_clock(orders.connection, "2100-01-01 00:00:00+00")
    orders.stream_events("v", 10)
    orders.fail_event("v", "a", second.offset, "still no such customer")
    parked = of(orders, "v")
    assert (parked.owed, parked.attempts, parked.last_error) == (1, 2, "still no such customer")
    assert parked.parked_at is not None


def test_a_parked_stream_of_a_bulk_view_owes_behind_the_checkpoint(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=1)
    first, _ = append_to(orders, "a", "a")
    append_to(orders, "b")
    leases = orders.claim_batch("v", "me")
    lease = next(lease for lease in leases if any(e.decider_id == "a" for e in orders.read_batch("v", lease)))
    with orders.connection.transaction():
        orders.fail_streams("v", lease, [StreamFailure("order", "a", "no such customer")])
        orders.commit_batch("v", leases)
    parked = of(orders, "v")
    assert parked.position >= 2
    assert (parked.owed, parked.first_owed, parked.last_error) == (2, first.offset, "no such customer")
    assert parked.parked_at is not None
    assert of(orders, "v", "b").owed == 0


def test_an_unknown_decider_is_refused_an_unknown_stream_owed_nothing(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity")
    refusal(EventNotRegistered, lambda: orders.stream_views("ordr", "a"))
    assert of(orders, "v", "no such stream").owed == 0


def test_of_a_long_stream_the_newest_events_are_counted(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    third = append_to(orders, *"aaaaa")[2]
    (found,) = orders.stream_views("order", "a", most=3)
    assert (found.owed, found.first_owed) == (3, third.offset)
