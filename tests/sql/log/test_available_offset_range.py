"""What each log partition holds."""

import pytest

from millrace.resources.errors import UnknownPartition
from millrace.resources.event_store import AvailableRange, EventStore
from tests.sql.log.test_read_log import log
from tests.support.factories import append_to, ids_of_one_partition

__all__ = ["log"]

# B1, B6


def test_it_is_from_the_first_kept_offset_up_to_the_mark(log: EventStore) -> None:
    assert log.available_offset_range(0) == [AvailableRange(0, 2, 8, 6)]
    assert log.available_offset_range() == [
        AvailableRange(0, 2, 8, 6),
        *[AvailableRange(n, 0, 0, 0) for n in range(1, 16)],
    ]


def test_the_first_offset_is_0_and_batches_follow_each_other(orders: EventStore) -> None:
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    for events, mark in ((5, 5), (3, 8)):
        append_to(orders, *[decider_id] * events)
        orders.sequence_events()
        assert orders.available_offset_range(0) == [AvailableRange(0, 0, mark, mark)]
    assert [event.position for event in orders.read_log(0, 0)] == list(range(8))


def test_an_unknown_partition_is_refused(log: EventStore) -> None:
    for partition in (16, -1):
        with pytest.raises(UnknownPartition, match="Log partitions are 0 to 15"):
            log.available_offset_range(partition)
