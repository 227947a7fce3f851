"""An event's position in the log, missing positions, and the state of each log partition."""

from typing import LiteralString
from uuid import uuid4

from millrace.archive.store import ArchiveStore
from millrace.event_store import LogPosition, PartitionInfo
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, ids_of_one_partition, purge, rows, set_clock, value


def test_an_event_has_its_partition_at_once_and_its_position_later(orders: PlatformStore) -> None:
    three, seven = (ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (3, 7))
    first, second, other = append_to(orders, three, three, seven)
    assert orders.log_position(second.event_id) == LogPosition(3, None)
    orders.sequence_events()
    places = [orders.log_position(event.event_id) for event in (first, second, other)]
    assert places == [LogPosition(3, 0), LogPosition(3, 1), LogPosition(7, 0)]
    (found,) = orders.read_log(3, 1, 1)
    assert found.event_id == second.event_id


def test_an_event_that_is_not_stored_has_no_place(orders: PlatformStore, connect: Connect) -> None:
    writer = PlatformStore(connect(autocommit=False))
    mine = append(writer)
    assert orders.log_position(mine.event_id) is None
    place = writer.log_position(mine.event_id)
    assert place is not None
    assert place.position is None
    assert orders.log_position(uuid4()) is None
    # a purged event has no position either, and leaves no gap
    first, _ = append_to(orders, *ids_of_one_partition(orders.connection, 2))
    orders.sequence_events()
    assert purge(orders, 0, 1) == 1
    assert orders.log_position(first.event_id) is None
    assert orders.log_gaps() == []


def test_a_missing_position_is_told_while_it_is_among_the_newest(orders: PlatformStore) -> None:
    append_to(orders, *["o-1"] * 10)
    orders.sequence_events()
    assert orders.log_gaps() == []
    ((partition,),) = rows(orders.connection, "select distinct partition from event_store.event_log")
    orders.connection.execute("delete from event_store.event_log where position = 5")
    assert orders.log_gaps() == [partition]
    assert orders.log_gaps(5) == [partition]
    assert orders.log_gaps(4) == []


def counts(info: PartitionInfo) -> tuple[int, int, int, int]:
    return info.earliest_position, info.archived_position, info.high_water_mark, info.events


def test_each_partition_has_a_row_with_its_marks_and_last_activity(bulk: PlatformStore) -> None:
    (decider_id,) = ids_of_one_partition(bulk.connection, 1, partition=2)
    for day in (1, 2):
        set_clock(bulk.connection, f"2030-01-0{day} 00:00:00+00")
        append_to(bulk, *[decider_id] * 3)
    bulk.sequence_events()
    info = bulk.partition_info()
    assert [each.partition for each in info] == list(range(16))
    assert counts(info[2]) == (0, 0, 6, 6)
    assert info[2].last_activity == value(bulk.connection, "select max(created_at) from event_store.events")
    assert (info[0].events, info[0].bytes, info[0].last_activity, info[0].unarchived_since) == (0, 0, None, None)
    assert info[2].bytes > 0
    first: LiteralString = "select min(created_at) from event_store.events"
    assert info[2].unarchived_since == value(bulk.connection, first) < info[2].last_activity
    ArchiveStore(bulk.connection).mark_archived(2, 5)
    assert bulk.partition_info()[2].unarchived_since == info[2].last_activity
    ArchiveStore(bulk.connection).mark_archived(2, 6)
    assert bulk.partition_info()[2].unarchived_since is None


def test_active_views_are_those_with_a_live_lease_or_an_event_in_flight(bulk: PlatformStore) -> None:
    one, two = (ids_of_one_partition(bulk.connection, 1, partition)[0] for partition in (1, 2))
    bulk.register_view("r", "-infinity")
    bulk.register_view("idle", "-infinity", mode="bulk")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    append_to(bulk, one, two)
    assert {each.active_views for each in bulk.partition_info()} == {0}
    bulk.claim_batch("v", "me", 1, 60)
    bulk.dispatch_events("r")
    assert len(bulk.stream_events("r", 1, 30)) == 1
    for time_, active in (("00:00:00", 2), ("00:00:30", 1), ("00:01:00", 0)):
        set_clock(bulk.connection, f"2030-01-01 {time_}+00")
        assert [each.active_views for each in bulk.partition_info()[:3]] == [0, active, 0]


def test_counts_stay_true_when_history_is_given_up(bulk: PlatformStore) -> None:
    append_to(bulk, *ids_of_one_partition(bulk.connection, 1) * 4)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    ArchiveStore(bulk.connection).mark_archived(0, 4)
    for mark in (3, 4):
        ArchiveStore(bulk.connection).raise_low_water_mark(0, mark)
        for _ in range(2):
            info = bulk.partition_info()[0]
            assert counts(info) == (mark, 4, 4, 4 - mark)
            ArchiveStore(bulk.connection).purge_events(0)
    assert info.bytes == 0
