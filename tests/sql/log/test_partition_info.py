"""What each log partition is: marks, size, activity, who consumes it."""

from typing import LiteralString

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.event_store import EventStore
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import append_to, ids_of_one_partition, set_clock, value

__all__ = ["bulk"]

# B11


def test_there_is_one_row_for_each_partition_with_its_marks_and_its_last_activity(bulk: EventStore) -> None:
    (decider_id,) = ids_of_one_partition(bulk.connection, 1, partition=2)
    for day in (1, 2):
        set_clock(bulk.connection, f"2030-01-0{day} 00:00:00+00")
        append_to(bulk, *[decider_id] * 3)
    bulk.sequence_events()
    info = bulk.partition_info()
    assert [each.partition for each in info] == list(range(16))
    assert (info[2].earliest_position, info[2].archived_position, info[2].high_water_mark, info[2].events) == (
        0,
        0,
        6,
        6,
    )
    assert info[2].last_activity == value(bulk.connection, "select max(created_at) from event_store.events")
    assert (info[0].events, info[0].bytes, info[0].last_activity, info[0].unarchived_since) == (0, 0, None, None)
    assert info[2].bytes > 0
    first: LiteralString = "select min(created_at) from event_store.events"
    assert info[2].unarchived_since == value(bulk.connection, first) < info[2].last_activity
    ArchiveStore(bulk.connection).mark_archived(2, 5)
    assert bulk.partition_info()[2].unarchived_since == info[2].last_activity
    ArchiveStore(bulk.connection).mark_archived(2, 6)
    assert bulk.partition_info()[2].unarchived_since is None


def test_active_views_are_those_with_a_live_lease_or_an_event_in_flight(bulk: EventStore) -> None:
    one, two = (ids_of_one_partition(bulk.connection, 1, partition)[0] for partition in (1, 2))
    bulk.register_view("r", "-infinity")
    bulk.register_view("idle", "-infinity", mode="bulk")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    append_to(bulk, one, two)
    assert {each.active_views for each in bulk.partition_info()} == {0}
    bulk.claim_batch("v", "me", 1, 60)
    bulk.dispatch_events("r")
    assert len(bulk.stream_events("r", 1, 30)) == 1
    assert [each.active_views for each in bulk.partition_info()[:3]] == [0, 2, 0]
    set_clock(bulk.connection, "2030-01-01 00:00:30+00")
    assert [each.active_views for each in bulk.partition_info()[:3]] == [0, 1, 0]
    set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    assert [each.active_views for each in bulk.partition_info()[:3]] == [0, 0, 0]


def test_counts_stay_true_when_history_is_given_up(bulk: EventStore) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 1) * 4)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    activity = bulk.partition_info()[0].last_activity
    ArchiveStore(bulk.connection).mark_archived(0, 4)
    for mark in (3, 4):
        ArchiveStore(bulk.connection).raise_low_water_mark(0, mark)
        for _ in range(2):
            info = bulk.partition_info()[0]
            assert (info.earliest_position, info.archived_position, info.high_water_mark, info.events) == (
                mark,
                4,
                4,
                4 - mark,
            )
            ArchiveStore(bulk.connection).purge_events(0)
    assert info.bytes == 0
    assert activity is not None
