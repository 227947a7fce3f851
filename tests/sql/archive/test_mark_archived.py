"""Saying what is kept outside, too."""

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import Malformed, PositionOutOfRange, UnknownPartition
from millrace.resources.event_store import EventStore
from tests.support.factories import append_to, ids_of_one_partition

# B8


def test_it_never_moves_back_nor_beyond_the_high_water_mark(orders: EventStore) -> None:
    append_to(orders, *ids_of_one_partition(orders.connection, 1) * 5)
    orders.sequence_events()
    assert [ArchiveStore(orders.connection).mark_archived(0, offset) for offset in (0, 3, 2, 5)] == [0, 3, 3, 5]
    for offset in (6, -1, 2**62):
        with pytest.raises(PositionOutOfRange, match="cannot be archived; earliest position 0, high-water mark 5"):
            ArchiveStore(orders.connection).mark_archived(0, offset)
    with pytest.raises(Malformed, match="v_to_position is null"):
        ArchiveStore(orders.connection).mark_archived(0, None)  # type: ignore[arg-type]
    assert orders.partition_info()[0].archived_position == 5


def test_an_unknown_partition_is_refused(orders: EventStore) -> None:
    for partition in (16, -1, None):
        with pytest.raises(UnknownPartition, match="0 to 15"):
            ArchiveStore(orders.connection).mark_archived(partition, 0)  # type: ignore[arg-type]
