"""Where an event is in the log, and whether a position is missing."""

from uuid import uuid4

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore, LogPosition
from tests.support.factories import (
    Connect,
    append,
    append_many,
    append_to,
    buffers,
    ids_of_one_partition,
    refusal,
    rows,
)


def test_an_event_has_its_log_partition_at_once_and_its_position_when_it_is_sequenced(orders: EventStore) -> None:
    three, seven = (ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (3, 7))
    first, second, other = append_to(orders, three, three, seven)
    assert orders.log_position(second.event_id) == LogPosition(3, None)
    orders.sequence_events()
    assert [orders.log_position(event.event_id) for event in (first, second, other)] == [
        LogPosition(3, 0),
        LogPosition(3, 1),
        LogPosition(7, 0),
    ]
    (found,) = orders.read_log(3, 1, 1)
    assert found.event_id == second.event_id


def test_an_event_that_is_not_stored_has_no_place(orders: EventStore, connect: Connect) -> None:
    writer = EventStore(connect(autocommit=False))
    mine = append(writer)
    assert orders.log_position(mine.event_id) is None
    place = writer.log_position(mine.event_id)
    assert place is not None
    assert place.position is None
    assert orders.log_position(uuid4()) is None


def test_a_purged_event_has_no_place_and_leaves_no_gap(orders: EventStore) -> None:
    first, _ = append_to(orders, *ids_of_one_partition(orders.connection, 2))
    orders.sequence_events()
    archive = ArchiveStore(orders.connection)
    archive.mark_archived(0, 1)
    archive.raise_low_water_mark(0, 1)
    assert archive.purge_events(0) == 1
    assert orders.log_position(first.event_id) is None
    assert orders.log_gaps() == []


def test_it_reads_a_few_pages_however_long_the_log_is(orders: EventStore) -> None:
    append_many(orders.connection, 5000)
    orders.sequence_events()
    event = append(orders, "o-1")
    orders.sequence_events()
    query = "select event_store.log_position(%s)"
    buffers(orders.connection, query, event.event_id)
    assert buffers(orders.connection, query, event.event_id) <= 20


# Positions that are missing: there are none, unless something is broken


def test_a_missing_position_is_told_while_it_is_among_the_newest(orders: EventStore) -> None:
    append_to(orders, *["o-1"] * 10)
    orders.sequence_events()
    assert orders.log_gaps() == []
    ((partition,),) = rows(orders.connection, "select distinct partition from event_store.event_log")
    orders.connection.execute("delete from event_store.event_log where position = 5")
    assert orders.log_gaps() == [partition]
    assert orders.log_gaps(5) == [partition]
    assert orders.log_gaps(4) == []
    assert refusal(Malformed, lambda: orders.log_gaps(0)).detail == "v_recent is 0"
