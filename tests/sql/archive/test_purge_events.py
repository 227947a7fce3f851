"""The archive's books and the purge: files without a gap, history deleted in pieces, nothing else changed."""

from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import ForbiddenChange, Malformed, PositionOutOfRange, UnknownPartition
from millrace.resources.event_store import ChainedEvent, EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import (
    Connect,
    append,
    append_to,
    at_once,
    ids_of_one_partition,
    new_event,
    refusal,
    rows,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience

CHECKSUM = "0" * 64
BY_HAND: list[LiteralString] = [
    "delete from event_store.events",
    "update event_store.events set data = '{}'",
    "truncate event_store.events",
]


@pytest.fixture
def given_up(bulk: EventStore) -> list[str]:
    """Append two streams of five events each to log partition 0; give up the first six events, but delete none."""
    ids = ids_of_one_partition(bulk.connection, 2)
    append_to(bulk, *ids * 5)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    ArchiveStore(bulk.connection).mark_archived(0, 6)
    assert ArchiveStore(bulk.connection).raise_low_water_mark(0, 6, "archived") == 6
    return ids


def kept(store: EventStore) -> list[Any]:
    return rows(
        store.connection,
        'select l.position, e.event_id from event_store.event_log l full join event_store.events e using ("offset") order by 1',
    )


def assert_by_hand_is_refused(store: EventStore) -> None:
    before = kept(store)
    for change in BY_HAND:
        with pytest.raises(ForbiddenChange), refusals(), store.connection.transaction():
            store.connection.execute(change)
    assert kept(store) == before


# B8


def test_what_lies_below_the_low_water_mark_goes_in_pieces_and_the_marks_stay(
    bulk: EventStore, given_up: list[str]
) -> None:
    assert given_up
    before, ranges = kept(bulk), bulk.available_offset_range(0)
    assert [ArchiveStore(bulk.connection).purge_events(0, 4) for _ in range(3)] == [4, 2, 0]
    assert kept(bulk) == before[6:]
    assert bulk.available_offset_range(0) == ranges
    (info, *_) = bulk.partition_info()
    assert (info.earliest_position, info.archived_position, info.high_water_mark, info.events) == (6, 6, 10, 4)
    assert [event.position for event in bulk.read_log(0, 6)] == [6, 7, 8, 9]
    with pytest.raises(PositionOutOfRange, match="5 lies below the earliest position"):
        bulk.read_log(0, 5)


def test_all_of_a_log_partition_can_go_and_its_streams_go_on(bulk: EventStore, given_up: list[str]) -> None:
    one, two = given_up
    last = {each: bulk.get_events(each, "order")[-1].event_id for each in given_up}
    ArchiveStore(bulk.connection).mark_archived(0, 10)
    ArchiveStore(bulk.connection).raise_low_water_mark(0, 10)
    assert ArchiveStore(bulk.connection).purge_events(0) == 10
    assert kept(bulk) == []
    assert bulk.available_offset_range(0)[0].events == 0
    assert bulk.get_events(one, "order") == []
    appended = append(bulk, one, last[one], event="paid")
    assert appended.previous_id == last[one]
    (batched,) = bulk.append_events([ChainedEvent(**vars(new_event(two)), previous_id=last[two])])
    assert batched.previous_id == last[two]
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (10, 12)
    assert [event.event_id for event in bulk.read_batch("v", lease)] == [appended.event_id, batched.event_id]
    versions = rows(bulk.connection, "select distinct version from event_store.streams")
    assert versions == [(6,)]


def test_events_are_not_changed_by_hand_before_during_nor_after(
    bulk: EventStore, given_up: list[str], connect: Connect
) -> None:
    assert given_up
    assert_by_hand_is_refused(bulk)
    purger = EventStore(connect(autocommit=False))
    assert ArchiveStore(purger.connection).purge_events(0, 3) == 3
    with pytest.raises(ForbiddenChange), refusals(), purger.connection.transaction():
        purger.connection.execute("delete from event_store.events")
    with pytest.raises(ForbiddenChange), refusals(), bulk.connection.transaction():
        bulk.connection.execute("delete from event_store.events")
    purger.connection.commit()
    for store in (bulk, purger):
        assert_by_hand_is_refused(store)


def test_after_an_error_nothing_is_open(bulk: EventStore, given_up: list[str], connect: Connect) -> None:
    assert given_up
    bulk.connection.execute("create table refers (o bigint references event_store.events)")
    bulk.connection.execute('insert into refers select min("offset") from event_store.events')
    purger = EventStore(connect(autocommit=False))
    before = kept(bulk)
    purger.connection.execute("savepoint before")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        ArchiveStore(purger.connection).purge_events(0)
    purger.connection.execute("rollback to before")
    for change in BY_HAND[:2]:
        with pytest.raises(ForbiddenChange), refusals(), purger.connection.transaction():
            purger.connection.execute(change)
    purger.connection.rollback()
    assert kept(bulk) == before


def test_the_setting_that_a_purge_uses_lets_nothing_go_that_is_kept(bulk: EventStore, given_up: list[str]) -> None:
    assert given_up
    bulk.connection.execute("set event_store.purging = 'on'")
    assert_by_hand_is_refused(bulk)
    with pytest.raises(ForbiddenChange), refusals():
        bulk.connection.execute("delete from event_store.deciders")


def test_a_purge_works_where_changes_are_ignored(bulk: EventStore, given_up: list[str]) -> None:
    assert given_up
    bulk.connection.execute("set event_store.on_forbidden_change = 'ignore'")
    assert ArchiveStore(bulk.connection).purge_events(0) == 6
    assert bulk.connection.execute("delete from event_store.events").rowcount == 0
    assert len(kept(bulk)) == 4


def test_after_a_kill_nothing_is_half_done(bulk: EventStore, given_up: list[str], connect: Connect) -> None:
    assert given_up
    before = kept(bulk)
    connection = connect(autocommit=False)
    assert ArchiveStore(connection).purge_events(0, 3) == 3
    terminate(bulk.connection, connection.info.backend_pid)
    assert kept(bulk) == before
    assert ArchiveStore(bulk.connection).purge_events(0) == 6


def test_a_second_purge_waits_for_nobody_and_finds_the_rest_later(
    bulk: EventStore, given_up: list[str], connect: Connect
) -> None:
    assert given_up
    first = EventStore(connect(autocommit=False))
    assert ArchiveStore(first.connection).purge_events(0, 2) == 2
    assert ArchiveStore(bulk.connection).purge_events(0, 100) == 0
    first.connection.commit()
    assert ArchiveStore(bulk.connection).purge_events(0) == 4
    assert ArchiveStore(bulk.connection).purge_events(0) == 0
    assert len(kept(bulk)) == 4


def test_purges_and_appends_at_once(bulk: EventStore, given_up: list[str], connect: Connect) -> None:
    def purge() -> int:
        store = EventStore(connect())
        purged = 0
        while kept(store)[0][0] < 6:
            purged += ArchiveStore(store.connection).purge_events(0, 1)
        return purged

    def produce() -> int:
        store = EventStore(connect())
        for _ in range(10):
            append_to(store, *given_up)
            store.sequence_events()
        return 0

    assert sum(result.result() for result in at_once([purge, purge, produce])) == 6
    bulk.sequence_events()
    assert [position for position, _ in kept(bulk)] == list(range(6, 30))


def test_a_purge_of_nothing_given_up_deletes_nothing(bulk: EventStore) -> None:
    append_to(bulk, "o-1")
    bulk.sequence_events()
    assert sum(ArchiveStore(bulk.connection).purge_events(partition, 2**63 - 1) for partition in range(16)) == 0


def test_what_is_out_of_range_is_refused(bulk: EventStore) -> None:
    archive = ArchiveStore(bulk.connection)
    for limit in (0, -1):
        with pytest.raises(Malformed, match="v_limit"):
            archive.purge_events(0, limit)
    for partition in (16, -1):
        for call in (
            partial(archive.purge_events, partition),
            partial(archive.mark_archived, partition, 0),
            partial(archive.raise_low_water_mark, partition, 0),
            partial(archive.list_archive_file, partition, 0, 1, "c", 1, CHECKSUM),
            partial(archive.archive_state, partition),
            partial(archive.lock_archive, partition, "me"),
        ):
            refusal(UnknownPartition, call)


def test_a_purge_that_waits_for_a_lock_of_the_log_goes_on_with_what_is_left(
    bulk: EventStore, given_up: list[str], connect: Connect
) -> None:
    assert given_up
    holder, purger = connect(autocommit=False), connect()
    holder.execute("lock table event_store.event_log in exclusive mode")
    waiting = start(lambda: ArchiveStore(purger).purge_events(0))
    wait_blocked(bulk.connection, purger.info.backend_pid)
    holder.rollback()
    assert waiting.result(patience()) == 6
    assert value(bulk.connection, "select count(*) from event_store.events") == 4


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


def test_listing_and_marking_happen_together_or_not_at_all(at_ten: EventStore, connect: Connect) -> None:
    doomed = EventStore(connect(autocommit=False))
    ArchiveStore(doomed.connection).list_archive_file(0, 8, 10, "c", 1, CHECKSUM)
    doomed.connection.rollback()
    assert listed(at_ten) == [(0, 4), (4, 8)]
    assert rows(at_ten.connection, "select archived_position from event_store.partitions where partition = 0") == [(8,)]


# B8


def test_what_is_archived_never_moves_back_nor_beyond_the_high_water_mark(orders: EventStore) -> None:
    append_to(orders, *ids_of_one_partition(orders.connection, 1) * 5)
    orders.sequence_events()
    assert [ArchiveStore(orders.connection).mark_archived(0, offset) for offset in (0, 3, 2, 5)] == [0, 3, 3, 5]
    for offset in (6, -1, 2**62):
        with pytest.raises(PositionOutOfRange, match="cannot be archived; earliest position 0, high-water mark 5"):
            ArchiveStore(orders.connection).mark_archived(0, offset)
    assert orders.partition_info()[0].archived_position == 5
