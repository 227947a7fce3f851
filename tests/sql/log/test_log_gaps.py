"""Positions that are missing: there are none, unless something is broken."""

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from tests.support.factories import append_to, refusal, rows


def test_a_missing_position_is_told_while_it_is_among_the_newest(orders: EventStore) -> None:
    append_to(orders, *["o-1"] * 10)
    orders.sequence_events()
    assert orders.log_gaps() == []
    ((partition,),) = rows(orders.connection, "select distinct partition from event_store.event_log")
    orders.connection.execute("delete from event_store.event_log where position = 5")
    assert orders.log_gaps() == [partition]
    assert orders.log_gaps(5) == [partition]
    assert orders.log_gaps(4) == []


def test_what_was_purged_is_no_gap(orders: EventStore) -> None:
    append_to(orders, *["o-1"] * 10)
    orders.sequence_events()
    ((partition,),) = rows(orders.connection, "select distinct partition from event_store.event_log")
    ArchiveStore(orders.connection).mark_archived(partition, 6)
    ArchiveStore(orders.connection).raise_low_water_mark(partition, 6)
    ArchiveStore(orders.connection).purge_events(partition)
    assert orders.log_gaps() == []


def test_as_many_as_none_is_refused(orders: EventStore) -> None:
    assert refusal(Malformed, lambda: orders.log_gaps(0)).detail == "v_recent is 0"
