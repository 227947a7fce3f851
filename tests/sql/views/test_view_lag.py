"""How far a view is behind."""

from typing import LiteralString

import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.errors import UnknownView
from millrace.resources.event_store import EventStore, PartitionLag, StreamFailure
from tests.support.factories import (
    append,
    append_many,
    append_to,
    buffers,
    ids_of_one_partition,
    pump,
    set_clock,
    value,
)

# B7


def test_lag_is_mark_minus_position_and_0_at_the_end(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    zero, three = (ids_of_one_partition(orders.connection, 1, partition)[0] for partition in (0, 3))
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, zero, zero, three)
    orders.sequence_events()
    set_clock(orders.connection, "2030-01-01 00:01:30+00")
    lag = orders.view_lag("v")
    assert [each.partition for each in lag] == list(range(16))
    assert lag[0] == PartitionLag(0, 0, 2, 2, 2, 90.0)
    assert lag[1] == PartitionLag(1, 0, 0, 0, 0, None)
    assert lag[3] == PartitionLag(3, 0, 1, 1, 1, 90.0)
    orders.commit_batch("v", orders.claim_batch("v", "me"))
    assert orders.view_lag("v")[0] == PartitionLag(0, 2, 2, 0, 0, None)
    assert sum(each.behind for each in orders.view_lag("v")) == 0


def test_events_that_the_view_does_not_want_are_not_pending(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", deciders=["order"], events=["paid"])
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    first = append(orders, decider_id)
    append(orders, decider_id, first.event_id, event="paid")
    append(orders, decider_id, decider="invoice", event="paid")
    orders.sequence_events()
    (lag, *_) = orders.view_lag("v")
    assert (lag.behind, lag.lag) == (3, 1)
    assert lag.lag_seconds is not None


def test_in_rows_mode_what_waits_in_a_lock_is_pending(orders: EventStore) -> None:
    orders.register_view("v", "-infinity")
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, decider_id, decider_id)
    orders.sequence_events()
    orders.dispatch_events("v")
    set_clock(orders.connection, "2030-01-01 00:00:10+00")
    (lag, *_) = orders.view_lag("v")
    assert lag == PartitionLag(0, 2, 2, 0, 2, 10.0)
    (event,) = orders.stream_events("v")
    orders.ack_event("v", decider_id, event.offset)
    assert orders.view_lag("v")[0].lag == 1


def test_in_bulk_mode_what_waits_or_is_parked_is_pending_and_what_is_parked_has_no_age(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=1)
    bad, good = ids_of_one_partition(orders.connection, 2)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    append_to(orders, bad, good, bad)
    leases = orders.claim_batch("v", "me")
    orders.fail_streams("v", leases[0], [StreamFailure("order", bad, "no")])
    orders.commit_batch("v", leases)
    set_clock(orders.connection, "2030-01-01 00:00:10+00")
    append_to(orders, bad, good)
    orders.sequence_events()
    # two that are parked wait for an operator; those that came now wait for the consumer
    assert orders.view_lag("v")[0] == PartitionLag(0, 3, 5, 2, 4, 0.0)
    orders.discard_dead_letter("v", "order", bad, "a test")
    orders.commit_batch("v", orders.claim_batch("v", "me"))
    assert orders.view_lag("v")[0] == PartitionLag(0, 5, 5, 0, 0, None)


def test_lag_is_never_negative(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    (decider_id,) = ids_of_one_partition(orders.connection, 1)
    orders.seek_view("v", "RESET_TO_OFFSET", 5, partition=0)
    append_to(orders, decider_id)
    orders.sequence_events()
    assert orders.view_lag("v")[0] == PartitionLag(0, 5, 1, 0, 0, None)
    assert orders.poll_views()[0].due == 0
    assert orders.view_info("v")[0].behind == 0


def test_what_was_given_up_is_not_pending(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk")
    append_to(orders, *ids_of_one_partition(orders.connection, 2) * 2)
    orders.commit_batch("v", orders.claim_batch("v", "me"))
    ArchiveStore(orders.connection).mark_archived(0, 4)
    ArchiveStore(orders.connection).raise_low_water_mark(0, 4)
    ArchiveStore(orders.connection).purge_events(0)
    assert orders.view_lag("v")[0] == PartitionLag(0, 4, 4, 0, 0, None)


def test_what_was_given_up_is_not_pending_before_a_purge_either(orders: EventStore) -> None:
    append_to(orders, *ids_of_one_partition(orders.connection, 2) * 2)
    orders.sequence_events()
    ArchiveStore(orders.connection).mark_archived(0, 4)
    ArchiveStore(orders.connection).raise_low_water_mark(0, 3)
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("orders", "-infinity", mode="bulk", deciders=["order"])
    assert [orders.view_lag(view)[0].lag for view in ("all", "orders")] == [1, 1]


def behind(orders: EventStore, events: int) -> None:
    """Put a bulk view with a filter, and one without, so many events of 16 log partitions behind."""
    append_many(orders.connection, events)
    orders.sequence_events()
    orders.connection.execute("vacuum analyze event_store.events, event_store.event_log")
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("placed", "-infinity", mode="bulk", events=["placed"])
    orders.register_view("paid", "-infinity", mode="bulk", events=["paid"])


def test_a_view_without_a_filter_reads_one_event_of_each_log_partition(orders: EventStore) -> None:
    behind(orders, 5000)
    assert sum(lag.lag for lag in orders.view_lag("all")) == 5000
    read: LiteralString = "select pg_stat_get_xact_tuples_fetched('event_store.events_pkey'::regclass)"
    with orders.connection.transaction():
        before = value(orders.connection, read)
        assert all(lag.exact and lag.lag_seconds is not None for lag in orders.view_lag("all"))
        assert value(orders.connection, read) - before == 16
    assert buffers(orders.connection, "select event_store.view_lag('all')") < 400


def test_a_filtered_view_is_counted_up_to_100_000_positions_and_then_at_least(orders: EventStore) -> None:
    behind(orders, 100_000)
    for view, wanted in (("placed", 100_000), ("paid", 0)):
        lags = orders.view_lag(view)
        assert (sum(lag.lag for lag in lags), all(lag.exact for lag in lags)) == (wanted, True)
    append(orders, "one more")
    orders.sequence_events()
    for view in ("placed", "paid"):
        assert not all(lag.exact for lag in orders.view_lag(view))
    append_many(orders.connection, 59_999, "more")
    orders.sequence_events()
    placed, paid = orders.view_lag("placed"), orders.view_lag("paid")
    assert [lag.lag for lag in placed] == [6250] * 16
    assert not any(lag.exact for lag in (*placed, *paid))
    assert sum(lag.behind for lag in placed) == 160_000
    # nothing wanted among what was read: it may be as old as what comes then
    assert all(lag.lag == 0 and lag.lag_seconds is not None for lag in paid)
    assert [sum(lag.lag for lag in orders.view_lag("all"))] == [160_000]


def test_of_a_view_that_is_further_behind_than_that_999_events_behind_the_checkpoints_are_counted(
    orders: EventStore,
) -> None:
    orders.register_view("999", "-infinity")
    orders.register_view("1000", "-infinity")
    append_to(orders, *["a"] * 999)
    pump(orders, "999")
    append(orders, "b")
    pump(orders, "1000")
    append_many(orders.connection, 100_000)
    orders.sequence_events()
    # the stream of one event is ahead of one view and behind the other: both are 100,000 positions or one more behind
    for view, behind, exact in (("999", 100_001, True), ("1000", 100_000, True)):
        lags = orders.view_lag(view)
        assert sum(lag.behind for lag in lags) == behind
        assert (sum(lag.lag for lag in lags), all(lag.exact for lag in lags)) == (101_000, exact)
    append(orders, "c")
    orders.sequence_events()
    for view, exact in (("999", True), ("1000", False)):
        lags = orders.view_lag(view)
        assert (sum(lag.lag for lag in lags), all(lag.exact for lag in lags)) == (101_001, exact)


def test_every_view_has_its_own_lag(orders: EventStore) -> None:
    append(orders)
    orders.register_view("all", "-infinity", mode="bulk")
    orders.register_view("new", mode="bulk")
    assert [sum(each.behind for each in orders.view_lag(view)) for view in ("all", "new")] == [1, 0]


def test_an_unknown_view_is_refused(orders: EventStore) -> None:
    with pytest.raises(UnknownView, match="register_view"):
        orders.view_lag("unknown")
