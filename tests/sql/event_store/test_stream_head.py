"""The end of a stream, as its next writer must know it, even when its events are deleted."""

from millrace.archive.store import ArchiveStore
from millrace.event_store import StreamHead
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, new_event, rows
from tests.support.sql_calls import append_events


def purge(store: PlatformStore, decider_id: str) -> None:
    """Delete every event of the stream's log partition, as an operator with an archive does."""
    store.sequence_events()
    ((partition, end),) = rows(
        store.connection,
        """
        select partition, high_water_mark from event_store.partitions
        where partition = event_store.stream_partition(%s::text, (select count(*) from event_store.partitions))
        """,
        decider_id,
    )
    ArchiveStore(store.connection).mark_archived(partition, end)
    ArchiveStore(store.connection).raise_low_water_mark(partition, end)
    assert ArchiveStore(store.connection).purge_events(partition) > 0


def test_it_is_the_last_event_and_how_many_there_were(orders: PlatformStore) -> None:
    first = append(orders, "o-1")
    assert orders.head("order", "o-1") == StreamHead(first.event_id, first.offset, 1, final=False)
    last = append(orders, "o-1", first.event_id, event="paid", final=True)
    assert orders.head("order", "o-1") == StreamHead(last.event_id, last.offset, 2, final=True)


def test_each_decider_has_its_head_and_an_uncommitted_event_is_none(orders: PlatformStore, connect: Connect) -> None:
    appended = append_events(orders, [new_event("x"), new_event("x", decider="invoice")])
    heads = [orders.head(decider, "x") for decider in ("order", "invoice")]
    assert [head and head.last_event_id for head in heads] == [event.event_id for event in appended]
    append(PlatformStore(connect(autocommit=False)), "o-2")
    assert orders.head("order", "o-2") is None
