"""Reading one stream: all of it, its last event, any part in either direction, at the cost of the events read."""

from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.test_stream_head import purge
from tests.support.factories import append_to, new_event, rows
from tests.support.sql_calls import append_events, get_events, get_last_event


def read(store: PlatformStore, *arguments: int | None, backwards: bool = False) -> list[int | None]:
    return [event.version for event in store.read("order", "o-1", *arguments, backwards=backwards)]


def test_all_events_come_in_order_and_those_of_another_decider_never(orders: PlatformStore) -> None:
    appended = append_to(orders, "o-1", "o-2", "o-1", "o-1")
    (invoice,) = append_events(orders, [new_event("o-1", decider="invoice")])
    events = get_events(orders, "o-1", "order")
    assert [event.event_id for event in events] == [appended[n].event_id for n in (0, 2, 3)]
    assert [event.previous_id for event in events] == [None, events[0].event_id, events[1].event_id]
    assert get_last_event(orders, "o-1", "order") == events[-1]
    assert [event.event_id for event in get_events(orders, "o-1", "invoice")] == [invoice.event_id]
    full = list(orders.read("order", "o-1"))
    assert [(event.event_id, event.offset, event.data, event.version, event.metadata) for event in full] == [
        (event.event_id, event.offset, event.data, number, None) for number, event in enumerate(events, 1)
    ]
    for decider_id, decider in (("o-3", "order"), ("o-2", "invoice"), ("O-1", "order"), ("", "")):
        assert get_events(orders, decider_id, decider) == list(orders.read(decider, decider_id)) == []
        assert get_last_event(orders, decider_id, decider) is None
        assert orders.head(decider, decider_id) is None


def test_any_part_either_way(orders: PlatformStore) -> None:
    append_to(orders, *["o-1"] * 10, "o-2")
    assert read(orders) == list(range(1, 11))
    assert read(orders, 4) == [4, 5, 6, 7, 8, 9, 10]
    assert read(orders, 4, 2) == [4, 5]
    assert read(orders, None, 3) == [1, 2, 3]
    assert read(orders, 11) == []
    assert read(orders, backwards=True) == list(range(10, 0, -1))
    assert read(orders, None, 3, backwards=True) == [10, 9, 8]
    assert read(orders, 4, backwards=True) == [4, 3, 2, 1]
    assert read(orders, 400, 1, backwards=True) == [10]


def test_a_long_stream_is_read_as_it_is_asked_for(orders: PlatformStore) -> None:
    append_events(orders, [new_event("o-1") for _ in range(1203)])
    assert read(orders) == list(range(1, 1204))
    assert read(orders, backwards=True) == list(range(1203, 0, -1))
    assert read(orders, 2, 1001) == list(range(2, 1003))
    assert read(orders, 700, 600, backwards=True) == list(range(700, 100, -1))
    # the last page is full, and nothing is before it
    assert read(orders, 1000, backwards=True) == list(range(1000, 0, -1))
    some = orders.read("order", "o-1")
    assert next(some).version == 1
    append_to(orders, "o-1")
    assert len([*some]) == 1203  # a later page has the events appended meanwhile


def test_what_was_purged_is_not_there(orders: PlatformStore) -> None:
    append_to(orders, *["o-1"] * 3)
    purge(orders, "o-1")
    assert read(orders) == []
    assert get_last_event(orders, "o-1", "order") is None
    append_to(orders, "o-1", "o-1", "o-2")
    assert read(orders) == [4, 5]
    assert read(orders, backwards=True) == [5, 4]
    # a view has the heads of all streams
    heads = rows(orders.connection, "select decider_id, version from event_store.streams order by 1")
    assert heads == [("o-1", 5), ("o-2", 1)]
