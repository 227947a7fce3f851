"""The archive's list of files and the purge: no gap between files, history deleted in pieces, nothing else changed."""

from dataclasses import replace
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import ForbiddenChange, Malformed, PositionOutOfRange
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.support import factories
from tests.support.patience import patience
from tests.support.sql_calls import append_events, get_events

CHECKSUM = "0" * 64
BY_HAND: list[LiteralString] = [
    "delete from event_store.events",
    "update event_store.events set data = '{}'",
    "truncate event_store.events",
]


@pytest.fixture
def given_up(bulk: PlatformStore) -> PlatformStore:
    """Two streams of five events each in log partition 0; the first six events are given up, none is deleted."""
    factories.append_to(bulk, *factories.ids_of_one_partition(bulk.connection, 2) * 5)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    ArchiveStore(bulk.connection).mark_archived(0, 6)
    assert ArchiveStore(bulk.connection).raise_low_water_mark(0, 6, "archived") == 6
    return bulk


def purge(connection: psycopg.Connection, limit: int = 100) -> int:
    return ArchiveStore(connection).purge_events(0, limit)


def kept(store: PlatformStore) -> list[Any]:
    joined: LiteralString = 'event_store.event_log l full join event_store.events e using ("offset")'
    return factories.rows(store.connection, f"select l.position, e.event_id from {joined} order by 1")


def assert_by_hand_is_refused(connection: psycopg.Connection, *changes: LiteralString) -> None:
    before = kept(PlatformStore(connection))
    for change in changes or BY_HAND:
        with pytest.raises(ForbiddenChange), refusals(), connection.transaction():
            connection.execute(change)
    assert kept(PlatformStore(connection)) == before


def test_what_lies_below_the_low_water_mark_goes_and_the_marks_stay(given_up: PlatformStore) -> None:
    before, ranges = kept(given_up), given_up.available_offset_range(0)
    assert [purge(given_up.connection, 4) for _ in range(3)] == [4, 2, 0]
    assert kept(given_up) == before[6:]
    assert given_up.available_offset_range(0) == ranges
    (info, *_) = given_up.partition_info()
    assert (info.earliest_position, info.archived_position, info.high_water_mark, info.events) == (6, 6, 10, 4)
    assert [event.position for event in given_up.read_log(0, 6)] == [6, 7, 8, 9]
    with pytest.raises(PositionOutOfRange, match="5 lies below the earliest position"):
        given_up.read_log(0, 5)
    # no events of other log partitions are given up
    archive = ArchiveStore(given_up.connection)
    factories.append_to(given_up, *(f"o-{n}" for n in range(50)))
    given_up.sequence_events()
    assert sum(archive.purge_events(partition, 2**63 - 1) for partition in range(16)) == 0


def test_all_of_a_log_partition_can_go_and_its_streams_go_on(given_up: PlatformStore) -> None:
    one, two = factories.ids_of_one_partition(given_up.connection, 2)
    last = {each: get_events(given_up, each, "order")[-1].event_id for each in (one, two)}
    ArchiveStore(given_up.connection).mark_archived(0, 10)
    ArchiveStore(given_up.connection).raise_low_water_mark(0, 10)
    assert purge(given_up.connection) == 10
    assert kept(given_up) == []
    assert given_up.available_offset_range(0)[0].events == 0
    assert get_events(given_up, one, "order") == []
    appended = factories.append(given_up, one, last[one], event="paid")
    assert appended.previous_id == last[one]
    (batched,) = append_events(given_up, [replace(factories.new_event(two), previous_id=last[two])])
    assert batched.previous_id == last[two]
    (lease,) = given_up.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (10, 12)
    assert [event.event_id for event in given_up.read_batch("v", lease)] == [appended.event_id, batched.event_id]
    assert factories.rows(given_up.connection, "select distinct version from event_store.streams") == [(6,)]


def test_events_are_not_changed_by_hand_whatever_a_purge_does(
    given_up: PlatformStore, connect: factories.Connect
) -> None:
    assert_by_hand_is_refused(given_up.connection)
    given_up.connection.execute("create table refers (o bigint references event_store.events)")
    given_up.connection.execute('insert into refers select min("offset") from event_store.events')
    purger = connect(autocommit=False)
    before = kept(given_up)
    purger.execute("savepoint before")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        purge(purger)
    purger.execute("rollback to before")
    assert_by_hand_is_refused(purger, *BY_HAND[:2])
    purger.rollback()
    assert kept(given_up) == before
    given_up.connection.execute("drop table refers")
    assert purge(purger, 3) == 3
    for connection in (purger, given_up.connection):
        assert_by_hand_is_refused(connection, BY_HAND[0])
    purger.commit()
    # the purger's transaction stays open after the purge
    for connection in (given_up.connection, purger):
        assert_by_hand_is_refused(connection)


def test_no_setting_lets_go_what_is_kept_nor_stops_a_purge(given_up: PlatformStore) -> None:
    given_up.connection.execute("set event_store.purging = 'on'")
    assert_by_hand_is_refused(given_up.connection, *BY_HAND, "delete from event_store.deciders")
    given_up.connection.execute("reset event_store.purging; set event_store.on_forbidden_change = 'ignore'")
    assert purge(given_up.connection) == 6
    assert given_up.connection.execute("delete from event_store.events").rowcount == 0
    assert len(kept(given_up)) == 4


def test_a_purge_waits_for_no_other_one_nor_for_a_killed_one(
    given_up: PlatformStore, connect: factories.Connect
) -> None:
    before = kept(given_up)
    for ends, rest in (("killed", 6), ("committed", 4)):
        with given_up.connection.transaction(force_rollback=ends == "killed"):
            first = connect(autocommit=False)
            assert purge(first, 2) == 2
            assert purge(given_up.connection) == 0
            if ends == "killed":
                # a query within the transaction would see the session for ever
                factories.terminate(connect(), first.info.backend_pid)
                assert kept(given_up) == before
            else:
                first.commit()
            assert [purge(given_up.connection) for _ in range(2)] == [rest, 0]
            assert len(kept(given_up)) == 4


def test_purges_and_appends_at_once(given_up: PlatformStore, connect: factories.Connect) -> None:
    def remove() -> int:
        store = PlatformStore(connect())
        purged = 0
        while kept(store)[0][0] < 6:
            purged += purge(store.connection, 1)
        return purged

    def produce() -> int:
        store = PlatformStore(connect())
        for _ in range(10):
            factories.append_to(store, *factories.ids_of_one_partition(store.connection, 2))
            store.sequence_events()
        return 0

    assert sum(result.result() for result in factories.at_once([remove, remove, produce])) == 6
    given_up.sequence_events()
    assert [position for position, _ in kept(given_up)] == list(range(6, 30))


def test_a_purge_that_waited_for_a_lock_of_the_log_goes_on(given_up: PlatformStore, connect: factories.Connect) -> None:
    holder, purger = connect(autocommit=False), connect()
    holder.execute("lock table event_store.event_log in exclusive mode")
    waiting = factories.start(lambda: purge(purger))
    factories.wait_blocked(given_up.connection, purger.info.backend_pid)
    holder.rollback()
    assert waiting.result(patience()) == 6
    assert factories.value(given_up.connection, "select count(*) from event_store.events") == 4


def test_a_listed_file_is_archived_if_it_fits_the_log_and_the_files_before(orders: PlatformStore) -> None:
    factories.append_to(orders, *factories.ids_of_one_partition(orders.connection, 2) * 5)
    orders.sequence_events()
    archive = ArchiveStore(orders.connection)

    def listed() -> list[object]:
        files = [(row.from_position, row.to_position) for row in archive.archive_state(0)]
        return [*files, orders.partition_info()[0].archived_position]

    archive.list_archive_file(0, 0, 4, "a", 1, CHECKSUM)
    archive.list_archive_file(0, 4, 8, "b", 1, CHECKSUM)
    for begin, end in ((9, 10), (6, 10), (2, 9), (4, 6), (0, 6), (8, 11), (8, 8), (-1, 4)):
        refused = factories.refusal(
            PositionOutOfRange, partial(archive.list_archive_file, 0, begin, end, "c", 1, CHECKSUM)
        )
        assert str(begin) in str(refused.detail)
    for path, size, checksum in (("", 1, CHECKSUM), ("c", 0, CHECKSUM), ("c", 1, "abc")):
        factories.refusal(Malformed, partial(archive.list_archive_file, 0, 8, 10, path, size, checksum))
    # listed and marked together or not at all
    with orders.connection.transaction(force_rollback=True):
        archive.list_archive_file(0, 8, 10, "c", 1, CHECKSUM)
    assert listed() == [(0, 4), (4, 8), 8]
    # a new file replaces the files within its range
    assert archive.list_archive_file(0, 4, 10, "c", 1, CHECKSUM) == 10
    assert listed() == [(0, 4), (4, 10), 10]


def test_what_is_archived_never_moves_back_nor_beyond_the_high_water_mark(orders: PlatformStore) -> None:
    factories.append_to(orders, *factories.ids_of_one_partition(orders.connection, 1) * 5)
    orders.sequence_events()
    archive = ArchiveStore(orders.connection)
    assert [archive.mark_archived(0, offset) for offset in (0, 3, 2, 5)] == [0, 3, 3, 5]
    for offset in (6, -1, 2**62):
        with pytest.raises(PositionOutOfRange, match="cannot be archived; earliest position 0, high-water mark 5"):
            archive.mark_archived(0, offset)
    assert orders.partition_info()[0].archived_position == 5
