"""JSON that Postgres holds and Python cannot read: only its own event fails, never the rows beside it."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from millrace.errors import UnreadableData
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from tests.support.factories import append, append_to, pump, rows
from tests.support.hostile_json import UNREADABLE, append_text
from tests.support.sql_calls import get_events, get_last_event


def test_an_unreadable_event_is_named_where_it_is_read(orders: PlatformStore) -> None:
    append_to(orders, *UNREADABLE)
    for name, text in UNREADABLE.items():
        before = get_last_event(orders, name, "order")
        assert before is not None
        append_text(orders, name, text, before.event_id)
    orders.sequence_events()
    log = [event for p in orders.partition_info() for event in orders.read_log(p.partition, 0)]
    for name in UNREADABLE:
        bad = get_last_event(orders, name, "order")
        assert bad is not None
        for read in (get_events(orders, name, "order"), log):
            (same,) = (event for event in read if event.offset == bad.offset)
            assert same.data_json == bad.data_json
            with pytest.raises(UnreadableData) as unread:
                _ = same.data
            assert f"event {bad.event_id} at offset {bad.offset} of order {name}: " in (unread.value.detail or "")


def test_an_unreadable_value_of_a_producers_state_hides_no_other_one(orders: PlatformStore) -> None:
    producer = ProducerStore(orders.connection)
    producer.register_producer("p")
    producer.ingest_events("p", 0, 1, 0, state={"good": 1, "huge": 2})
    rows(orders.connection, "update event_store.producer_state set value = '1e5000' where key = 'huge' returning 1")
    good, huge = producer.get_producer_state("p", 0)
    assert (good.key, good.value, huge.value_json) == ("good", 1, f"1{'0' * 5000}")
    with pytest.raises(UnreadableData, match="state 'huge'"):
        _ = huge.value


def test_a_time_of_an_event_is_read_by_the_driver_itself_and_is_the_same(orders: PlatformStore) -> None:
    orders.connection.execute("set event_store.clock = '9999-12-31T23:59:59.999999Z'")
    last = append(orders, "a")
    assert last.created_at == datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    orders.connection.execute("set event_store.clock = '0001-01-01T00:00:00Z'")
    orders.connection.execute("set timezone = 'UTC'")
    assert append(orders, "b").created_at == datetime(1, 1, 1, tzinfo=UTC)
    orders.register_view("v", "-infinity")
    orders.connection.execute("reset event_store.clock")
    pump(orders, "v")
    taken = orders.lease_events("v", 2)
    assert {type(event) for event in taken} == {Delivery}
    assert {event.created_at.utcoffset() for event in taken} == {timedelta(0)}


def test_an_event_is_compared_and_kept_by_the_text_of_its_data(orders: PlatformStore) -> None:
    append(orders, "a", event_id=uuid4(), data={"b": 1.50, "a": [True, None]})
    (stored,) = orders.read("order", "a")
    assert stored == next(iter(orders.read("order", "a")))
    assert stored.data == {"a": [True, None], "b": 1.5}
    assert stored.data is stored.data
    assert hash(stored) == hash(next(iter(orders.read("order", "a"))))
