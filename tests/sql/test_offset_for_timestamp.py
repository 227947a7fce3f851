"""From a time to an offset, exactly."""

import pytest

from resources.errors import Malformed, UnknownPartition
from resources.event_store import EventStore
from tests.factories import Connect, append, ids_of_one_partition, set_clock


def append_at(store: EventStore, decider_id: str, minute: int) -> None:
    set_clock(store.connection, f"2030-01-01 00:{minute:02}:00+00")
    append(store, decider_id)
    set_clock(store.connection, "")


def when(minute: int, second: int = 0) -> str:
    return f"2030-01-01 00:{minute:02}:{second:02}+00"


# B4


def test_it_is_exact_where_times_do_not_rise_along_the_log(orders: EventStore, connect: Connect) -> None:
    ids = ids_of_one_partition(orders.connection, 6)
    slow = EventStore(connect(autocommit=False))
    append_at(slow, ids[0], 1)  # commits last
    for decider_id, minute in zip(ids[1:5], (2, 6, 4, 7), strict=True):
        append_at(orders, decider_id, minute)
        orders.sequence_events()
    slow.connection.commit()
    append_at(orders, ids[5], 8)
    orders.sequence_events()
    assert [event.created_at.minute for event in orders.read_log(0, 0)] == [2, 6, 4, 7, 1, 8]
    found = [orders.offset_for_timestamp(0, when(minute)) for minute in range(10)]
    assert found == [0, 0, 0, 1, 1, 1, 1, 3, 5, 6]
    assert orders.offset_for_timestamp(0, when(2, 1)) == 1
    assert orders.offset_for_timestamp(1, when(0)) == 0


def test_it_finds_kept_events_only(orders: EventStore) -> None:
    (decider_id, *others) = ids_of_one_partition(orders.connection, 4)
    for minute, each in enumerate((decider_id, *others)):
        append_at(orders, each, minute)
    orders.sequence_events()
    orders.mark_archived(0, 2)
    orders.raise_low_water_mark(0, 2)
    for _ in range(2):
        assert [orders.offset_for_timestamp(0, time) for time in ("-infinity", when(0), when(3), "infinity")] == [
            2,
            2,
            3,
            4,
        ]
        orders.purge_events(0)


def test_what_is_malformed_is_refused(orders: EventStore) -> None:
    with pytest.raises(UnknownPartition):
        orders.offset_for_timestamp(16, when(0))
    for time in (None, "soon"):
        with pytest.raises(Malformed):
            orders.offset_for_timestamp(0, time)  # type: ignore[arg-type]
