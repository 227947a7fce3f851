"""New events become locks; empty locks are removed; no event is lost in between."""

from typing import LiteralString

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.sql_calls import append_events


def waiting(store: PlatformStore) -> list[str]:
    return [
        row[0] for row in factories.rows(store.connection, "select decider_id from event_store.stream_locks order by 1")
    ]


def assert_nothing_falls_between(store: PlatformStore, acked: int = -1) -> None:
    """Assert that each event below a checkpoint is acknowledged (all up to `acked` are), or its stream has a lock."""
    lost = factories.rows(
        store.connection,
        """
        select e.decider_id, e."offset"
        from event_store.checkpoints c
        join event_store.event_log l on l.partition = c.partition and l.position < c.position
        join event_store.events e using ("offset")
        where e."offset" > %s and not exists (
          select from event_store.stream_locks k
          where k.view = c.view and k.decider_id = e.decider_id and k.decider = e.decider
        )
        """,
        acked,
    )
    assert lost == []


def test_a_note_that_dispatching_failed_never_waits_for_a_dispatch(view: PlatformStore, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.execute("select from event_store.dispatches for update")
    view.connection.execute("set lock_timeout = '1ms'")
    view.fail_dispatch("v", "no room")
    other.rollback()
    assert view.standing() == []


def test_a_window_bounds_what_one_call_passes(view: PlatformStore) -> None:
    (decider_id,) = factories.ids_of_one_partition(view.connection, 1)
    factories.append_to(view, *[decider_id] * 25)
    view.sequence_events()
    assert [view.dispatch_events("v", 10) for _ in range(4)] == [10, 10, 5, 0]


def test_a_lock_stays_while_its_stream_has_an_event_that_is_not_sequenced(view: PlatformStore) -> None:
    (first,) = factories.pump(view, "v", "a")
    view.stream_events("v")
    view.ack_event("v", "a", first.offset)
    factories.append_to(view, "a")
    view.dispatch_events("v")
    assert waiting(view) == ["a"]
    factories.pump(view, "v")
    assert len(view.stream_events("v")) == 1


def test_a_lock_whose_stream_is_ahead_of_the_checkpoint_stays(view: PlatformStore) -> None:
    """Else the stream's next lock would begin before acknowledged events, and deliver them twice."""
    hot, other = factories.ids_of_one_partition(view.connection, 2)
    factories.pump(view, "v", hot)
    factories.append_to(view, *[other] * 5, hot)
    view.sequence_events()
    for _ in range(2):
        (event,) = view.stream_events("v", 1)
        assert event.decider_id == hot
        view.ack_event("v", hot, event.offset)
    view.dispatch_events("v", 2)  # not up to the second event of the hot stream
    assert hot in waiting(view)
    while view.dispatch_events("v", 2):
        pass
    assert waiting(view) == [other]


def test_an_open_consumer_blocks_nobody_and_hides_no_event(view: PlatformStore, connect: Connect) -> None:
    factories.pump(view, "v", "a", "b")
    consumer = connect(autocommit=False)
    held = PlatformStore(consumer).stream_events("v", 1)
    PlatformStore(consumer).ack_event("v", held[0].decider_id, held[0].offset)
    view.connection.execute("set lock_timeout = '2s'")
    factories.append_to(view, "a", "b", "c")
    view.sequence_events()
    assert view.dispatch_events("v") == 3
    assert [event.decider_id for event in view.stream_events("v", 10)] == ["b", "c"]
    consumer.commit()
    assert waiting(view) == ["a", "b", "c"]
    assert_nothing_falls_between(view)


def test_a_second_dispatcher_skips_what_the_first_holds(view: PlatformStore, connect: Connect) -> None:
    factories.append_to(view, "a", "b")
    view.sequence_events()
    first = connect(autocommit=False)
    assert PlatformStore(first).dispatch_events("v") == 2
    view.connection.execute("set lock_timeout = '2s'")
    assert view.dispatch_events("v") == 0
    first.rollback()
    assert view.dispatch_events("v") == 2


def test_an_event_dispatched_beside_a_sweep_is_not_lost(view: PlatformStore, connect: Connect) -> None:
    """The remover reads before the event exists, and removes after another dispatcher has passed the event."""
    first, other = factories.ids_of_one_partition(view.connection, 2)
    factories.pump(view, "v", first)
    (event,) = view.stream_events("v", 10)
    view.ack_event("v", first, event.offset)
    # the remover waits in its delete statement; the snapshot of that statement is older than the wait
    view.connection.execute(
        """
        create function pause() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(4711); return old; end $$;
        create trigger pause before delete on event_store.stream_locks for each row execute function pause();
        """
    )
    gate, remover = connect(), connect()
    gate.execute("select pg_advisory_lock(4711)")
    removed = factories.start_blocked(view, remover, lambda: PlatformStore(remover).dispatch_events("v"))
    factories.append_to(view, first, other)
    view.sequence_events()
    dispatcher = connect()
    dispatcher.execute("set lock_timeout = '2s'")
    PlatformStore(dispatcher).dispatch_events("v")
    gate.execute("select pg_advisory_unlock(4711)")
    removed.result(patience())
    assert_nothing_falls_between(view, event.offset)
    factories.pump(view, "v")
    assert {e.decider_id for e in view.stream_events("v", 10)} == {first, other}


@pytest.mark.parametrize("state", ["free", "in flight", "lock ended", "given back", "failed"])
def test_a_narrowed_filter_leaves_no_lock_for_ever(view: PlatformStore, state: str) -> None:
    factories.append(view, "unwanted")
    factories.append(view, "wanted", event="paid")
    factories.pump(view, "v")
    factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
    event = None
    if state != "free":
        (event,) = view.lease_events("v", 1, 60)
        assert event.decider_id == "unwanted"
        if state == "given back":
            view.schedule_nack_event("v", "unwanted", 60_000, event.offset, event.lease_token)
        elif state == "failed":
            view.fail_event("v", "unwanted", event.offset, "no", event.lease_token)
    view.register_view("v", events=["paid"])
    view.dispatch_events("v")
    assert waiting(view) == (["wanted"] if state == "free" else ["unwanted", "wanted"])
    if event and state == "in flight":
        view.ack_event("v", "unwanted", event.offset, event.lease_token)
    factories.set_clock(view.connection, "2030-01-01 00:01:00+00")
    assert [e.decider_id for e in view.lease_events("v", 10)] == ["wanted"]
    view.dispatch_events("v")
    assert waiting(view) == ["wanted"]


def test_locks_that_a_narrowed_filter_empties_go_at_once(view: PlatformStore) -> None:
    """Not a few each minute: until they are gone, every search for a wanted event passes all of them."""
    factories.append(view, "wanted", event="paid")
    factories.pump(view, "v")
    factories.set_clock(view.connection, "2030-01-01 00:00:00+00")
    view.dispatch_events("v")
    view.connection.execute(
        """
        insert into event_store.stream_locks (view, decider, decider_id, partition, last_offset, locked_until, created_at, updated_at)
        select 'v', 'order', 'empty-' || n, n % 16, 0, '2029-01-01', now(), now() from generate_series(1, 45000) n
        """
    )
    view.register_view("v", events=["paid"])
    for _ in range(3):
        view.dispatch_events("v")
    assert waiting(view) == ["wanted"]
    # the next sweep of all locks is due in the next minute
    assert factories.value(view.connection, "select swept_at < '2030-01-01' from event_store.dispatches")
    view.dispatch_events("v")
    assert factories.value(view.connection, "select swept_at = '2030-01-01' from event_store.dispatches")


def test_one_call_makes_no_more_locks_than_can_be_swept_at_once(view: PlatformStore) -> None:
    append_events(view, [factories.new_event(f"o-{n}") for n in range(21_000)])
    view.sequence_events()
    assert view.dispatch_events("v", 2**31 - 1, 2**31 - 1) <= 20_000
    assert view.dispatch_events("v", 2**31 - 1, 2**31 - 1) >= 1000


def test_a_widened_filter_counts_for_later_events(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", events=["paid"])
    placed = factories.append(orders, "a")
    factories.pump(orders, "v")
    assert waiting(orders) == []
    orders.register_view("v", events=["paid", "shipped"])
    shipped = factories.append(orders, "a", placed.event_id, event="shipped")
    factories.pump(orders, "v")
    assert [e.offset for e in orders.lease_events("v")] == [shipped.offset]


def test_while_enough_streams_wait_no_more_get_a_lock_and_none_is_lost(view: PlatformStore) -> None:
    factories.append_to(view, "a", "b")
    view.sequence_events()
    assert view.dispatch_events("v", max_waiting=2) == 2
    factories.append_to(view, "c", "d")
    view.sequence_events()
    assert view.dispatch_events("v", max_waiting=2) == 0
    assert waiting(view) == ["a", "b"]
    assert [poll.due for poll in view.poll_views() if poll.view == "v"] == [4]
    taken = view.lease_events("v")
    assert view.dispatch_events("v", max_waiting=2) == 2  # one of the two is in flight, so it no longer waits
    taken += view.lease_events("v", 10)
    assert sorted(event.decider_id for event in taken) == ["a", "b", "c", "d"]
    assert_nothing_falls_between(view)


def test_streams_that_wait_for_a_retry_or_are_parked_leave_room_for_others(view: PlatformStore) -> None:
    view.register_view("v", max_attempts=1)
    factories.pump(view, "v", "parked", "later")
    events = {event.decider_id: event for event in view.lease_events("v", 10)}
    view.fail_event("v", "parked", events["parked"].offset, "a test")
    view.schedule_nack_event("v", "later", 60_000, events["later"].offset)
    factories.append(view, "new")
    view.sequence_events()
    assert view.dispatch_events("v", max_waiting=1) == 1


def test_each_new_stream_is_one_probe_however_many_wait(view: PlatformStore) -> None:
    """Even if the planner has no statistics of the tables yet."""
    factories.pump(view, "v", *[f"waiting-{n}" for n in range(300)])
    factories.append_to(view, *[f"new-{n}" for n in range(50)])
    view.sequence_events()
    probes: LiteralString = "select pg_stat_get_xact_numscans('event_store.stream_locks_pkey'::regclass)"
    with view.connection.transaction():
        before = factories.value(view.connection, probes)
        assert view.dispatch_events("v") == 50
        assert factories.value(view.connection, probes) >= before + 50


def test_empty_locks_are_removed_while_enough_streams_wait(view: PlatformStore) -> None:
    factories.pump(view, "v", "a", "b")
    (event,) = view.lease_events("v")
    view.ack_event("v", event.decider_id, event.offset)
    view.dispatch_events("v", max_waiting=1)
    assert waiting(view) == [{"a": "b", "b": "a"}[event.decider_id]]
