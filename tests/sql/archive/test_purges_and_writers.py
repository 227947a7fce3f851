"""A purged version is never used again, however old the snapshot of its writer."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import Conflict, Malformed, StreamClosed
from millrace.event_store import NewEvent, StreamHead
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.test_stream_head import purge
from tests.support import factories
from tests.support.patience import patience
from tests.support.sql_calls import append_event, append_events, get_events

Write = Callable[[PlatformStore, str, UUID | None], object]


def bare(store: PlatformStore, decider_id: str, previous: UUID | None) -> object:
    insert: LiteralString = """
        insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id)
        values ('placed', gen_random_uuid(), 'order', %s, '{}', gen_random_uuid(), %s)
    """
    return store.connection.execute(insert, (decider_id, previous))


WAYS: list[Write] = [
    factories.append,
    lambda store, stream, _: factories.append_to(store, stream),
    lambda store, stream, _: store.append("order", stream, NewEvent("placed"), NewEvent("paid")),
    bare,
]


def test_a_writer_with_an_old_snapshot_fails_to_serialize(orders: PlatformStore, connect: factories.Connect) -> None:
    for number, (write, known) in enumerate(product(WAYS, (True, False))):
        stream = f"o-{number}"
        first = factories.append(orders, stream).event_id if known else None
        late = PlatformStore(connect(autocommit=False))
        late.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert len(get_events(late, stream, "order")) == known
        factories.append_to(orders, stream, stream)
        purge(orders, stream)
        with pytest.raises(psycopg.errors.SerializationFailure):
            write(late, stream, first)
        late.connection.rollback()
        head = orders.head("order", stream)
        assert head
        assert head.version == 2 + known
        assert factories.value(orders.connection, "select count(*) from event_store.events") == 0


@pytest.mark.parametrize("meanwhile", [1, 2])
def test_a_batch_that_waited_during_a_purge_fails(
    orders: PlatformStore, connect: factories.Connect, meanwhile: int
) -> None:
    one, *_ = factories.ids_of_one_partition(orders.connection, 1, 0)
    two, *_ = factories.ids_of_one_partition(orders.connection, 1, 1)
    first, second = sorted((one, two))
    factories.append_to(orders, second)
    holder, waiter = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    factories.append(holder, first)
    waiting = factories.start(lambda: append_events(waiter, [factories.new_event(first), factories.new_event(second)]))
    factories.wait_blocked(orders.connection, waiter.connection.info.backend_pid)
    factories.append_to(orders, *[second] * meanwhile)  # up to the version that the waiter is about to use, or one more
    purge(orders, second)
    holder.connection.rollback()
    assert isinstance(waiting.exception(patience()), psycopg.errors.SerializationFailure)
    assert factories.value(orders.connection, "select count(*) from event_store.events") == 0
    appended = append_events(waiter, [factories.new_event(first), factories.new_event(second)])
    assert [event.version for event in appended] == [1, 2 + meanwhile]


def test_an_event_that_waited_during_a_purge_fails(orders: PlatformStore, connect: factories.Connect) -> None:
    one, *_ = factories.ids_of_one_partition(orders.connection, 1, 0)
    two, *_ = factories.ids_of_one_partition(orders.connection, 1, 1)
    (known,) = factories.append_to(orders, two)
    holder, waiter = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    event_id = uuid4()
    factories.append(holder, one, event_id=event_id)
    waiting = factories.start(lambda: factories.append(waiter, two, known.event_id, event_id=event_id))
    factories.wait_blocked(orders.connection, waiter.connection.info.backend_pid)
    factories.append_to(orders, two, two)
    purge(orders, two)
    holder.connection.rollback()
    assert isinstance(waiting.exception(patience()), psycopg.errors.SerializationFailure)
    head = orders.head("order", two)
    assert head
    assert head.version == 3


def test_a_purge_passes_by_a_writer_whose_snapshot_may_be_old(
    orders: PlatformStore, connect: factories.Connect
) -> None:
    archive = ArchiveStore(orders.connection)
    old, new = psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.READ_COMMITTED
    for partition, (write, level) in enumerate([*[(way, old) for way in WAYS], (bare, new)]):
        one, two = factories.ids_of_one_partition(orders.connection, 2, partition)
        factories.append_to(orders, one)
        writer = PlatformStore(connect(autocommit=False))
        writer.connection.isolation_level = level
        write(writer, two, None)
        orders.sequence_events()
        archive.mark_archived(partition, 1)
        archive.raise_low_water_mark(partition, 1)
        assert archive.purge_events(partition) == 0
        writer.connection.commit()
        assert archive.purge_events(partition) == 1
        marks: LiteralString = (
            "select earliest_position, purged_position from event_store.log_partitions where partition = %s"
        )
        assert factories.rows(orders.connection, marks, partition) == [(1, 1)]


def test_a_closed_stream_that_was_purged_stays_closed(orders: PlatformStore) -> None:
    last = factories.append(orders, "o-1", final=True)
    purge(orders, "o-1")
    for previous in (last.event_id, None):
        factories.refusal(StreamClosed, partial(factories.append, orders, "o-1", previous))
    with pytest.raises(StreamClosed):
        append_event(orders, "placed", uuid4(), "order", "o-1", {}, uuid4(), None, expected_version=0)
    with pytest.raises(StreamClosed):
        append_events(orders, [factories.new_event("o-1")])


def test_the_mark_is_raised_only_by_a_session_that_sees_what_is_committed(connect: factories.Connect) -> None:
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        late = connect(autocommit=False)
        late.isolation_level = level
        refused = factories.refusal(Malformed, partial(ArchiveStore(late).raise_low_water_mark, 0, 0))
        assert (refused.detail or "").startswith(f"transaction_isolation is {level.name.lower().replace('_', ' ')}")


def test_streams_go_on_with_the_next_version_after_all_was_purged(orders: PlatformStore) -> None:
    last = factories.append_to(orders, "o-1", "o-1")[-1]
    purge(orders, "o-1")
    assert "stream_head" in str(factories.refusal(Conflict, lambda: factories.append(orders, "o-1")).hint)
    assert factories.append(orders, "o-1", last.event_id).previous_id == last.event_id
    append_event(orders, "placed", uuid4(), "order", "o-1", {}, uuid4(), None, expected_version=3)
    head = orders.head("order", "o-1")
    assert head
    bare(orders, "o-1", head.last_event_id)
    (last,) = append_events(orders, [factories.new_event("o-1")])
    assert last.version == 6
    assert [event.version for event in orders.read("order", "o-1")] == [3, 4, 5, 6]
    purge(orders, "o-1")
    assert orders.head("order", "o-1") == StreamHead(last.event_id, last.offset, 6, final=False)
    assert [event.version for event in append_events(orders, [factories.new_event("o-1")])] == [7]
