"""Reading a log partition by positions, all events or some kinds; the ranges that it holds."""

from collections.abc import Iterable

import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import PositionOutOfRange, UnknownPartition
from millrace.event_store import AvailableRange, Event
from millrace.event_store.platform import PlatformStore
from tests.support.factories import append, append_to, ids_of_one_partition


@pytest.fixture
def log(orders: PlatformStore) -> PlatformStore:
    """Log partition 0 holds positions 2 to 7."""
    append_to(orders, *ids_of_one_partition(orders.connection, 2) * 4)
    orders.sequence_events()
    ArchiveStore(orders.connection).mark_archived(0, 2)
    ArchiveStore(orders.connection).raise_low_water_mark(0, 2)
    return orders


def positions(events: Iterable[Event]) -> list[int | None]:
    return [event.position for event in events]


def test_a_range_is_dense_in_order_and_capped_at_the_mark(log: PlatformStore) -> None:
    for purged in (False, True):
        assert ArchiveStore(log.connection).purge_events(0) == 2 if purged else True
        assert positions(log.read_log(0, 2, 3)) == [2, 3, 4]
        for limit in (3, 4, 2**63 - 1):
            assert [positions(log.read_log(0, n, limit)) for n in (5, 8)] == [[5, 6, 7], []]
    assert log.read_log(1, 0) == []


def test_what_the_log_does_not_hold_is_refused(log: PlatformStore) -> None:
    for from_position, fault in ((-1, "negative"), (1, "below the earliest"), (9, "beyond"), (2**62, "beyond")):
        with pytest.raises(PositionOutOfRange, match=f"{fault}.*; earliest position 2, high-water mark 8") as refused:
            log.read_log(0, from_position)
        assert refused.value.hint


@pytest.fixture
def kinds(orders: PlatformStore) -> PlatformStore:
    """Log partition 0 holds, twice: an order placed, an order paid, an invoice placed, an invoice paid."""
    for decider_id in ids_of_one_partition(orders.connection, 2):
        for decider in ("order", "invoice"):
            placed = append(orders, decider_id, decider=decider)
            append(orders, decider_id, placed.event_id, decider=decider, event="paid")
    orders.sequence_events()
    return orders


def test_only_what_fits_both_lists_is_read_and_counted(kinds: PlatformStore) -> None:
    for deciders, events, expected in (
        (None, None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([], [], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["order"], None, [0, 1, 4, 5]),
        (None, ["paid"], [1, 3, 5, 7]),
        (["invoice"], ["paid"], [3, 7]),
        (["order", "invoice"], ["paid", "placed"], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["unknown"], None, []),
    ):
        assert positions(kinds.read_log(0, 0, deciders=deciders, events=events)) == expected
    for from_position, limit, expected in ((0, 2, [3, 7]), (0, 1, [3]), (4, 1, [7]), (8, 1, [])):
        assert positions(kinds.read_log(0, from_position, limit, ["invoice"], ["paid"])) == expected


def test_a_partition_holds_what_is_from_the_first_kept_to_the_mark(log: PlatformStore) -> None:
    assert log.available_offset_range(0) == [AvailableRange(0, 2, 8, 6)]
    others = [AvailableRange(n, 0, 0, 0) for n in range(1, 16)]
    assert log.available_offset_range() == [AvailableRange(0, 2, 8, 6), *others]
    for partition in (16, -1):
        with pytest.raises(UnknownPartition, match="Log partitions are 0 to 15"):
            log.available_offset_range(partition)


def test_a_range_that_the_log_holds_is_valid_also_when_it_is_empty(log: PlatformStore) -> None:
    for from_position, to_position in ((2, 8), (2, 2), (5, 6), (8, 8)):
        log.validate_offset_range(0, from_position, to_position)
    log.validate_offset_range(1, 0, 0)


def test_a_range_that_it_does_not_hold_is_refused(log: PlatformStore) -> None:
    for from_position, to_position, fault in (
        (-1, 5, "-1 is negative"),
        (1, 5, "1 lies below the earliest position"),
        (5, 4, "the range ends at 4 before it begins at 5"),
        (5, 9, "9 lies beyond the high-water mark"),
        (9, 9, "9 lies beyond the high-water mark"),
    ):
        with pytest.raises(PositionOutOfRange, match=f"{fault}; earliest position 2, high-water mark 8"):
            log.validate_offset_range(0, from_position, to_position)
