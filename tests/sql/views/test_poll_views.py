"""What a poller knows of all views in one call."""

import pytest

from millrace.resources.errors import Malformed, UnknownView
from millrace.resources.event_store import EventStore, StreamFailure, ViewPoll
from tests.support.factories import (
    Connect,
    append_many,
    append_to,
    buffers,
    pump,
    refusal,
    rows,
    set_clock,
    value,
    wait_until,
)


def test_there_is_one_row_for_each_view(orders: EventStore) -> None:
    append_to(orders, "o-1", "o-2", "o-3")
    orders.register_view("pushed", "-infinity", 300, 2, "http://localhost")
    orders.register_view("bulk", "-infinity", mode="bulk")
    orders.register_view("new", mode="bulk")
    orders.connection.execute("update event_store.views set enabled = false where view = 'new'")
    assert orders.poll_views() == [
        ViewPoll("bulk", "bulk", True, None, None, 3, 0),
        ViewPoll("new", "bulk", False, None, None, 0, 0),
        ViewPoll("pushed", "rows", True, 2, "http://localhost", 3, 0),
    ]


def test_live_consumers_are_counted_until_their_sessions_end(orders: EventStore, connect: Connect) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    orders.register_view("w", "-infinity", mode="bulk")
    consumers = [connect(), connect()]
    for consumer in consumers:
        EventStore(consumer).attach_consumer("v")
    assert [(row.view, row.consumers) for row in orders.poll_views()] == [("v", 2), ("w", 0)]
    consumers[0].close()
    orders.connection.execute("select pg_terminate_backend(%s)", (consumers[1].info.backend_pid,))
    wait_until(lambda: orders.poll_views()[0].consumers == 0, "both consumers are gone")


def test_a_consumer_counts_once_by_its_name_whichever_session_it_says_so_from(
    orders: EventStore, connect: Connect
) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    for store in (EventStore(connect()), EventStore(connect())):
        store.attach_consumer("v", "run 1")
    orders.attach_consumer("v", "run 2")
    assert orders.poll_views()[0].consumers == orders.view_info("v")[0].consumers == 2


def test_on_a_pooled_session_that_lives_on_a_consumer_counts_until_its_time_is_over(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    orders.attach_consumer("v", "run 1", 60)
    set_clock(orders.connection, "2030-01-01 00:00:59+00")
    assert orders.poll_views()[0].consumers == 1
    set_clock(orders.connection, "2030-01-01 00:01:00+00")
    assert orders.poll_views()[0].consumers == 0
    orders.attach_consumer("v", "run 2")
    assert rows(orders.connection, "select consumer from event_store.consumers") == [("run 2",)]


@pytest.mark.parametrize(("consumer", "seconds"), [("", 60), ("x" * 201, 60), ("run", 0), ("run", 3601)])
def test_a_malformed_attachment_is_refused(orders: EventStore, consumer: str, seconds: int) -> None:
    orders.register_view("v")
    refusal(Malformed, lambda: orders.attach_consumer("v", consumer, seconds))


def test_a_consumer_of_an_unknown_view_is_refused(orders: EventStore) -> None:
    with pytest.raises(UnknownView):
        orders.attach_consumer("nobody")


def test_in_rows_mode_free_locks_count_until_nothing_is_left(orders: EventStore) -> None:
    orders.register_view("v", "-infinity")
    append_to(orders, "o-1", "o-1", "o-2")
    orders.sequence_events()
    orders.dispatch_events("v")
    assert orders.poll_views()[0].due == 2
    while events := orders.stream_events("v", 10):
        for event in events:
            orders.ack_event("v", event.decider_id, event.offset)
    orders.dispatch_events("v")
    assert orders.poll_views()[0].due == 0


@pytest.mark.parametrize("when", ["before the ack", "while the ack is open"])
def test_an_event_that_came_while_its_stream_was_in_flight_counts(
    orders: EventStore, connect: Connect, when: str
) -> None:
    orders.register_view("v", "-infinity")
    append_to(orders, "o-1")
    pump(orders, "v")
    (event,) = orders.stream_events("v")  # nothing is after it
    consumer = connect(autocommit=False)
    if when == "while the ack is open":
        EventStore(consumer).ack_event("v", "o-1", event.offset)
    append_to(orders, "o-1")
    assert orders.poll_views()[0].due == 0  # without its position nobody would be given it
    pump(orders, "v")
    if when == "before the ack":
        EventStore(consumer).ack_event("v", "o-1", event.offset)
    consumer.commit()
    assert orders.poll_views()[0].due == 1
    assert len(orders.stream_events("v")) == 1


def test_streams_that_caught_up_are_not_due_and_cost_a_look_up_each(orders: EventStore) -> None:
    orders.register_view("v", "-infinity")
    append_many(orders.connection, 1000)
    pump(orders, "v")
    orders.ack_events("v", [event.offset for event in orders.stream_events("v", 1000)])
    assert value(orders.connection, "select count(*) from event_store.stream_locks where caught_up") == 1000
    assert orders.poll_views()[0].due == 0
    assert buffers(orders.connection, "select event_store.poll_views()") < 6000


def test_in_bulk_mode_a_retry_counts_when_it_is_due_and_a_dead_letter_never(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=2)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, "o-1")
    orders.sequence_events()
    for _ in range(2):
        assert orders.poll_views()[0].due == 1
        leases = orders.claim_batch("v", "me")
        orders.fail_streams("v", leases[0], [StreamFailure("order", "o-1", "no")])
        orders.commit_batch("v", leases)
        assert orders.poll_views()[0].due == 0
        set_clock(orders.connection, "2030-01-01 00:00:05+00")
    assert len(orders.dead_letters()) == 1
    orders.retry_dead_letters("v")
    assert orders.poll_views()[0].due == 1


def test_no_view_is_no_row(store: EventStore) -> None:
    assert store.poll_views() == []
