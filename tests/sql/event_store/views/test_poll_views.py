"""The state of all views, polled in one call."""

from random import Random
from typing import LiteralString

import pytest

from millrace.event_store import StreamFailure, ViewPoll
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.views.test_view_lag import FILTERS, random_events
from tests.support import factories
from tests.support.patience import wait_until
from tests.support.sql_calls import append_events


def test_there_is_one_row_for_each_view(orders: PlatformStore) -> None:
    factories.append_to(orders, "o-1", "o-2", "o-3")
    orders.register_view("pushed", "-infinity", 300, 2, "http://localhost")
    orders.register_view("bulk", "-infinity", mode="bulk")
    orders.register_view("new", mode="bulk")
    orders.connection.execute("update event_store.views set enabled = false where view = 'new'")
    assert orders.poll_views() == [
        ViewPoll("bulk", "bulk", True, None, None, 3, 0, 0, 0, 3),
        ViewPoll("new", "bulk", False, None, None, 0, 0),
        ViewPoll("pushed", "rows", True, 2, "http://localhost", 3, 0, 0, None, 3),
    ]


def test_consumers_count_once_by_name_until_their_sessions_end(
    orders: PlatformStore, connect: factories.Connect
) -> None:
    for view in ("v", "w"):
        orders.register_view(view, "-infinity", mode="bulk")

    def counted() -> int:
        (v, w), (info,) = orders.poll_views(), orders.view_info("v")
        assert (v.consumers, w.consumers) == (info.consumers, 0)
        return info.consumers

    nameless = [PlatformStore(connect()), PlatformStore(connect())]
    for store in nameless:
        store.attach_consumer("v")
        store.attach_consumer("v", "run 1")
    orders.attach_consumer("v", "run 2")
    assert counted() == 4
    for _ in range(2):
        orders.detach_consumer("v", "run 2")
        nameless[0].detach_consumer("v")
        orders.detach_consumer("nobody", "run")
        assert counted() == 2
    factories.terminate(orders.connection, nameless[1].connection.info.backend_pid)
    wait_until(lambda: counted() == 0, "the consumers of a session that was killed are gone")


def test_a_consumer_whose_pid_another_session_got_is_gone(bulk: PlatformStore) -> None:
    """As after a restart of the server."""
    bulk.attach_consumer("v", "run 1")
    bulk.begin_drain("v", "run 1")

    def lives() -> list[object]:
        return [bulk.poll_views()[0].consumers, bulk.drain_states("v")["v"].lives]

    assert lives() == [1, True]
    bulk.connection.execute("update event_store.consumers set session_began_at = session_began_at - interval '1 s'")
    assert lives() == [0, False]


def test_if_postgres_hides_when_a_session_began_its_pid_decides(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    other = connect()
    PlatformStore(other).attach_consumer("v", "run 1")
    for hidden in ("select", "update event_store.consumers set session_began_at = null"):
        bulk.connection.execute(hidden.encode())
        assert bulk.poll_views()[0].consumers == 1
    factories.terminate(bulk.connection, other.info.backend_pid)
    wait_until(lambda: bulk.poll_views()[0].consumers == 0, "it ended")


def test_on_a_pooled_session_a_consumer_counts_until_its_time_is_over(bulk: PlatformStore) -> None:
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    bulk.attach_consumer("v", "run 1", 60)
    factories.set_clock(bulk.connection, "2030-01-01 00:00:59+00")
    assert bulk.poll_views()[0].consumers == 1
    factories.set_clock(bulk.connection, "2030-01-01 00:01:00+00")
    assert bulk.poll_views()[0].consumers == 0
    bulk.attach_consumer("v", "run 2")
    assert factories.rows(bulk.connection, "select consumer from event_store.consumers") == [("run 2",)]


def test_in_rows_mode_free_locks_count_until_nothing_is_left(view: PlatformStore) -> None:
    factories.append_to(view, "o-1", "o-1", "o-2")
    view.sequence_events()
    view.dispatch_events("v")
    assert view.poll_views()[0].due == 2
    while events := view.stream_events("v", 10):
        for event in events:
            view.ack_event("v", event.decider_id, event.offset)
    view.dispatch_events("v")
    assert view.poll_views()[0].due == 0


@pytest.mark.parametrize("when", ["before the ack", "while the ack is open"])
def test_an_event_that_came_during_a_delivery_counts(
    view: PlatformStore, connect: factories.Connect, when: str
) -> None:
    factories.append_to(view, "o-1")
    factories.pump(view, "v")
    (event,) = view.stream_events("v")  # the last event
    consumer = connect(autocommit=False)
    if when == "while the ack is open":
        PlatformStore(consumer).ack_event("v", "o-1", event.offset)
    factories.append_to(view, "o-1")
    assert view.poll_views()[0].due == 0  # without a position it would not be delivered
    factories.pump(view, "v")
    if when == "before the ack":
        PlatformStore(consumer).ack_event("v", "o-1", event.offset)
    consumer.commit()
    assert view.poll_views()[0].due == 1
    assert len(view.stream_events("v")) == 1


def test_streams_that_caught_up_are_not_due_and_cost_a_look_up_each(view: PlatformStore) -> None:
    factories.append_many(view.connection, 1000)
    factories.pump(view, "v")
    view.ack_events("v", [event.offset for event in view.stream_events("v", 1000)])
    assert factories.value(view.connection, "select count(*) from event_store.stream_locks where caught_up") == 1000
    assert view.poll_views()[0].due == 0
    assert factories.buffers(view.connection, "select event_store_platform.poll_views()") < 6000


def test_only_the_named_views_are_asked(orders: PlatformStore) -> None:
    for view in ("a", "b", "c"):
        orders.register_view(view, "-infinity", mode="bulk")
    factories.append_to(orders, "o-1")
    orders.sequence_events()
    assert [(row.view, row.due) for row in orders.poll_views(["c", "a", "nobody", "a"])] == [("a", 1), ("c", 1)]
    assert orders.poll_views([]) == []
    assert len(orders.poll_views(None)) == 3


def test_events_that_a_view_does_not_want_never_make_it_due(orders: PlatformStore) -> None:
    for mode in ("rows", "bulk"):
        orders.register_view(f"paid {mode}", "-infinity", mode=mode, events=["paid"])
        orders.register_view(f"invoices {mode}", "-infinity", mode=mode, deciders=["invoice"])
    for _ in range(5):
        factories.append_to(orders, *[f"o-{n}" for n in range(20)])
        orders.sequence_events()
        assert {row.due for row in orders.poll_views()} == {0}
    assert {row.ahead for row in orders.poll_views()} == {100}
    append_events(orders, [factories.new_event("o-1", event="paid"), factories.new_event("i-1", decider="invoice")])
    orders.sequence_events()
    assert [(row.due, row.ahead) for row in orders.poll_views()] == [(1, 102)] * 4


def test_each_view_is_told_what_it_wants_from_where_it_stands(orders: PlatformStore) -> None:
    for view, filters in FILTERS.items():
        orders.register_view(view, "-infinity", mode="bulk", **filters)  # type: ignore[arg-type]
    random = Random(7)
    for step in range(25):
        append_events(orders, random_events(random))
        orders.sequence_events()
        query = """
            select view, count("offset") from event_store.checkpoints c
            join event_store.views v using (view)
            left join (event_store.event_log l join event_store.events e using ("offset")) on l.partition = c.partition
              and l.position >= c.position and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
            group by view order by view
        """
        left = factories.rows(orders.connection, query)
        assert [(row.view, row.due) for row in orders.poll_views()] == left, f"step {step}"
        for view in random.sample([*FILTERS], 2):
            if leases := orders.claim_batch(view, "me", random.randrange(1, 9)):
                orders.commit_batch(view, leases)


def test_what_is_far_behind_is_counted_to_a_thousand(orders: PlatformStore) -> None:
    (decider_id,) = factories.ids_of_one_partition(orders.connection, 1)
    factories.append_to(orders, *[decider_id] * 1500)
    orders.sequence_events()
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("order", "-infinity", mode="bulk", deciders=["order"])
    orders.register_view("invoice", "-infinity", mode="bulk", deciders=["invoice"])
    polled = [(row.view, row.due, row.ahead) for row in orders.poll_views()]
    assert polled == [("all", 1000, 1500), ("invoice", 0, 1500), ("order", 1000, 1500)]


def test_of_what_no_poll_looks_at_a_view_is_told_until_it_is_passed_over(orders: PlatformStore) -> None:
    for n in range(10):  # each has a tenth of the events read
        orders.register_view(f"invoice-{n}", "-infinity", mode="bulk", deciders=["invoice"])
    (decider_id,) = factories.ids_of_one_partition(orders.connection, 1)
    factories.append_to(orders, *[decider_id] * 2500)
    orders.sequence_events()
    assert [(row.due, row.ahead) for row in orders.poll_views()] == [(1, 2500)] * 10
    orders.pass_over_unwanted("invoice-3")
    assert [(row.due, row.ahead) for row in orders.poll_views(["invoice-3"])] == [(0, 0)]


def test_streams_to_be_tried_again_and_locked_ones_are_told_apart(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=2)
    factories.set_clock(orders.connection, "2030-01-01 00:00:00+00")
    factories.append_to(orders, "o-1", "o-2", "o-3")
    leases = orders.claim_batch("v", "me")
    for lease in leases:
        failed = [StreamFailure("order", event.decider_id, "no") for event in orders.read_batch("v", lease)]
        orders.fail_streams("v", lease, failed)
    orders.commit_batch("v", leases)

    def told() -> tuple[int, int, int | None, int]:
        (row,) = orders.poll_views()
        return row.due, row.retries, row.locked, row.ahead

    assert told() == (0, 0, 3, 0)
    factories.append_to(orders, "o-1", "o-4")
    orders.sequence_events()
    assert told() == (2, 0, 3, 2)
    factories.set_clock(orders.connection, "2030-01-01 00:00:05+00")
    assert told() == (5, 3, 3, 2)
    leases = orders.claim_batch("v", "me")
    for lease in leases:
        if "o-2" in {event.decider_id for event in orders.read_batch("v", lease)}:
            orders.fail_streams("v", lease, [StreamFailure("order", "o-2", "no")])
    orders.commit_batch("v", leases)
    assert told() == (0, 0, 1, 0)  # a dead letter is never due
    orders.retry_dead_letters("v")
    assert told() == (1, 1, 1, 0)


def test_a_stream_with_a_lock_and_nothing_left_is_not_due(bulk: PlatformStore) -> None:
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    factories.append_to(bulk, "o-1")
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [StreamFailure("order", "o-1", "no")])
    bulk.commit_batch("v", [lease])
    bulk.register_view("v", events=["paid"])
    factories.set_clock(bulk.connection, "2030-01-01 01:00:00+00")
    (row,) = bulk.poll_views()
    assert (row.due, row.retries, row.locked) == (0, 0, 1)


def test_a_poll_with_nothing_ahead_reads_no_event_and_no_other_view(orders: PlatformStore) -> None:
    orders.register_view("mine", "-infinity", mode="bulk", events=["paid"])
    factories.append_many(orders.connection, 500)
    orders.sequence_events()
    orders.pass_over_unwanted("mine")
    read: LiteralString = "select pg_stat_get_xact_tuples_fetched('event_store.events'::regclass)"
    with orders.connection.transaction():
        before = factories.value(orders.connection, read)
        orders.poll_views()
        assert factories.value(orders.connection, read) == before
    counts = []
    for numbers in (range(30), range(30, 90)):  # after the first, indexes have their levels
        for n in numbers:
            orders.register_view(f"v{n}", "-infinity", mode="bulk", events=["placed"])
        orders.poll_views(["mine"])
        counts.append(factories.buffers(orders.connection, "select event_store_platform.poll_views('{mine}')"))
    few, many = counts
    # the views themselves fill some more pages; reading the checkpoints of 60 views would be thousands
    assert many <= few + 20
