"""The newest events, searched as people do."""

from datetime import UTC, datetime
from uuid import uuid4

from millrace.errors import EventNotRegistered
from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append_to, new_event, refusal, register_orders, rows, set_clock
from tests.support.sql_calls import BatchEvent, append_events


def ids(events: list[Event]) -> list[str]:
    return [event.decider_id for event in events]


def test_the_newest_come_first_with_their_place_in_the_log(orders: PlatformStore) -> None:
    append_to(orders, "a", "b", "c")
    orders.sequence_events()
    append_to(orders, "d")
    found = orders.latest_events(3)
    assert ids(found) == ["d", "c", "b"]
    assert found[0].position is None
    assert ids(orders.latest_events(2, before_offset=found[1].offset)) == ["b", "a"]
    for event in found:
        place = orders.log_position(event.event_id)
        assert place is not None
        assert (event.partition, event.position) == (place.partition, place.position)


def test_the_pages_of_an_id_begin_anywhere(orders: PlatformStore) -> None:
    of_two_streams = [
        new_event("a", decider=decider) for decider in ("order", "invoice", "invoice", "order", "invoice")
    ]
    offsets = [event.offset for event in append_events(orders, [new_event("b"), *of_two_streams, new_event("b")])]

    def page(before: int, decider: str | None = None) -> list[int]:
        return [event.offset for event in orders.latest_events(2, decider, "a", before_offset=before)]

    mine = offsets[1:6]
    for before in range(offsets[0] - 1, offsets[-1] + 2):
        assert page(before) == [offset for offset in reversed(mine) if offset < before][:2]
        assert page(before, "order") == [offset for offset in (mine[3], mine[0]) if offset < before]
    assert orders.latest_events(2, "order", "none", before_offset=offsets[-1]) == []


def test_each_filter_holds_and_all_hold_together(orders: PlatformStore) -> None:
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_events(orders, [new_event("a"), new_event("a", decider="invoice"), new_event("b", event="paid")])
    set_clock(orders.connection, "2030-01-02 00:00:00+00")
    marked = BatchEvent("order", "a", "paid", uuid4(), {}, uuid4(), metadata={"correlation_id": "request-7"})
    other = BatchEvent("invoice", "z", "paid", uuid4(), {}, uuid4(), metadata={"correlation_id": "request-7"})
    append_events(orders, [marked, other])
    assert ids(orders.latest_events(decider="order")) == ["a", "b", "a"]
    assert [event.decider for event in orders.latest_events(decider_id="a")] == ["order", "invoice", "order"]
    assert [event.version for event in orders.latest_events(decider="order", decider_id="a")] == [2, 1]
    assert ids(orders.latest_events(event="paid")) == ["z", "a", "b"]
    assert ids(orders.latest_events(correlation_id="request-7")) == ["z", "a"]
    since = datetime(2030, 1, 2, tzinfo=UTC)
    assert ids(orders.latest_events(since=since)) == ["z", "a"]
    assert ids(orders.latest_events(1, decider_id="a")) == ["a"]
    assert orders.latest_events(event="placed", since=since) == []
    one = {"decider": "order", "decider_id": "a", "event": "paid", "since": since, "correlation_id": "request-7"}
    assert [event.event_id for event in orders.latest_events(5, **one)] == [marked.event_id]  # type: ignore[arg-type]
    for name, value in {"decider": "invoice", "decider_id": "b", "event": "placed", "correlation_id": "x"}.items():
        assert orders.latest_events(5, **{**one, name: value}) == []  # type: ignore[arg-type]


def test_what_is_not_registered_is_refused_with_what_is(store: PlatformStore) -> None:
    assert store.latest_events() == []
    assert refusal(EventNotRegistered, lambda: store.latest_events(decider="order")).hint == "Registered are: none."
    orders = register_orders(store)
    unknown = refusal(EventNotRegistered, lambda: orders.latest_events(decider="ordr"))
    assert unknown.detail == "decider 'ordr'"
    assert unknown.hint == "Registered are: invoice, order."
    unknown = refusal(EventNotRegistered, lambda: orders.latest_events(decider="order", event="payed"))
    assert unknown.detail == "event 'payed' of decider 'order'"
    assert unknown.hint == "Registered are: paid, placed, shipped."
    refusal(EventNotRegistered, lambda: orders.latest_events(event="payed"))


def test_what_is_not_committed_is_not_seen(orders: PlatformStore) -> None:
    append_to(orders, "a")
    with orders.connection.transaction(force_rollback=True):
        append_to(orders, "b")
    assert ids(orders.latest_events()) == ["a"]
    assert rows(orders.connection, "select count(*) from event_store_platform.latest_events()") == [(1,)]
