"""Reading a log partition by its offsets."""

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import Malformed, PositionOutOfRange, UnknownPartition
from millrace.resources.event_store import EventStore
from tests.support.factories import append_to, ids_of_one_partition


@pytest.fixture
def log(orders: EventStore) -> EventStore:
    """Log partition 0 holds positions 2 to 7."""
    append_to(orders, *ids_of_one_partition(orders.connection, 2) * 4)
    orders.sequence_events()
    ArchiveStore(orders.connection).mark_archived(0, 2)
    ArchiveStore(orders.connection).raise_low_water_mark(0, 2)
    return orders


# B6


@pytest.mark.parametrize("purged", [False, True])
def test_a_range_is_dense_in_order_and_capped_at_the_mark(log: EventStore, purged: bool) -> None:
    assert ArchiveStore(log.connection).purge_events(0) == 2 if purged else True
    for from_position, limit, offsets in (
        (2, 3, [2, 3, 4]),
        (5, 3, [5, 6, 7]),
        (5, 4, [5, 6, 7]),
        (5, 2**63 - 1, [5, 6, 7]),
        (8, 1, []),
        (8, 2**63 - 1, []),
    ):
        assert [event.position for event in log.read_log(0, from_position, limit)] == offsets
    assert log.read_log(1, 0) == []


def test_what_the_log_does_not_hold_is_refused(log: EventStore) -> None:
    for from_position, fault in (
        (-1, "negative"),
        (1, "below the earliest"),
        (9, "beyond"),
        (2**62, "beyond"),
    ):
        with pytest.raises(PositionOutOfRange, match=f"{fault}.*; earliest position 2, high-water mark 8") as refused:
            log.read_log(0, from_position)
        assert refused.value.hint
    with pytest.raises(Malformed, match="an end of the range is null"):
        log.read_log(0, None)  # type: ignore[arg-type]
    for limit in (0, -1, None):
        with pytest.raises(Malformed, match="v_limit"):
            log.read_log(0, 2, limit)  # type: ignore[arg-type]
    for partition in (16, -1, None):
        with pytest.raises(UnknownPartition, match="Log partitions are 0 to 15"):
            log.read_log(partition, 0)  # type: ignore[arg-type]
