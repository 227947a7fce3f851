"""Listing checked files of the archive: no gap, no overlap, one writer."""

from functools import partial

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import Malformed, PositionOutOfRange, UnknownPartition
from millrace.resources.event_store import EventStore
from tests.support.factories import Connect, append_to, ids_of_one_partition, refusal, rows

CHECKSUM = "0" * 64


def listed(store: EventStore) -> list[tuple[int | None, int | None]]:
    return [(row.from_position, row.to_position) for row in ArchiveStore(store.connection).archive_state(0)]


@pytest.fixture
def at_ten(orders: EventStore) -> EventStore:
    """Log partition 0 holds ten events, of which eight are listed in two files."""
    append_to(orders, *ids_of_one_partition(orders.connection, 2) * 5)
    orders.sequence_events()
    ArchiveStore(orders.connection).list_archive_file(0, 0, 4, "a", 1, CHECKSUM)
    ArchiveStore(orders.connection).list_archive_file(0, 4, 8, "b", 1, CHECKSUM)
    return orders


def test_a_listed_file_is_archived_and_replaces_files_within_its_range(at_ten: EventStore) -> None:
    assert ArchiveStore(at_ten.connection).list_archive_file(0, 4, 10, "c", 1, CHECKSUM) == 10
    assert listed(at_ten) == [(0, 4), (4, 10)]
    assert at_ten.partition_info()[0].archived_position == 10


def test_a_file_that_leaves_a_gap_overlaps_or_goes_beyond_the_log_is_refused(at_ten: EventStore) -> None:
    for begin, end in ((9, 10), (6, 10), (2, 9), (8, 11), (8, 8), (-1, 4)):
        refused = refusal(
            PositionOutOfRange,
            partial(ArchiveStore(at_ten.connection).list_archive_file, 0, begin, end, "c", 1, CHECKSUM),
        )
        assert str(begin) in str(refused.detail)
    assert listed(at_ten) == [(0, 4), (4, 8)]
    for path, size, checksum in (("", 1, CHECKSUM), ("c", 0, CHECKSUM), ("c", 1, "abc")):
        with pytest.raises(Malformed):
            ArchiveStore(at_ten.connection).list_archive_file(0, 8, 10, path, size, checksum)
    for call in (
        lambda: ArchiveStore(at_ten.connection).list_archive_file(16, 0, 1, "c", 1, CHECKSUM),
        lambda: ArchiveStore(at_ten.connection).archive_state(16),
        lambda: ArchiveStore(at_ten.connection).lock_archive(16, "me"),
    ):
        refusal(UnknownPartition, call)


def test_listing_and_marking_happen_together_or_not_at_all(at_ten: EventStore, connect: Connect) -> None:
    doomed = EventStore(connect(autocommit=False))
    ArchiveStore(doomed.connection).list_archive_file(0, 8, 10, "c", 1, CHECKSUM)
    doomed.connection.rollback()
    assert listed(at_ten) == [(0, 4), (4, 8)]
    assert rows(at_ten.connection, "select archived_position from event_store.partitions where partition = 0") == [(8,)]
