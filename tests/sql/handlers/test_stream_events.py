"""Rows mode: the next event of each free stream, one consumer at a time."""

from typing import LiteralString

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, pump, rows, set_clock, start_blocked, value
from tests.support.patience import patience

LOCKS_READ: LiteralString = """
    select sum(pg_stat_get_xact_tuples_returned(indexrelid) + pg_stat_get_xact_tuples_fetched(indexrelid))::int
    from pg_index where indrelid = 'event_store.stream_locks'::regclass
"""


@pytest.fixture
def view(orders: PlatformStore) -> PlatformStore:
    """Return a store with a rows view `v` that wants everything."""
    orders.register_view("v", "-infinity")
    return orders


def fetched(store: PlatformStore, limit: int = 100) -> list[tuple[str, int]]:
    return [(event.decider_id, event.offset) for event in store.stream_events("v", limit)]


def test_it_gives_each_streams_next_event_the_oldest_first(view: PlatformStore) -> None:
    a1, b1, a2, _ = append_to(view, "a", "b", "a", "b")
    append(view, "a", decider="invoice")  # another stream
    pump(view, "v", *[f"o-{n}" for n in range(7)])
    assert fetched(view, 1) == [("a", a1.offset)]
    assert fetched(view, 1) == [("b", b1.offset)]
    view.ack_event("v", "a", a1.offset)
    assert [event.decider for event in view.stream_events("v", 1)] == ["invoice"]
    assert [len(fetched(view, limit)) for limit in (4, 2**31 - 1, 1)] == [4, 4, 0]
    view.ack_event("v", "a", a2.offset)
    assert fetched(view) == []


def test_it_leaves_sequencing_to_others_where_somebody_did_it_just_now(view: PlatformStore, connect: Connect) -> None:
    consumer = connect(autocommit=False)
    for connection in (view.connection, consumer):
        set_clock(connection, "2030-01-01 00:00:00+00")
    pump(view, "v", "a")
    consumer.execute("select pg_current_xact_id()")
    assert len(PlatformStore(consumer).stream_events("v", 10)) == 1
    append(view, "b")
    assert PlatformStore(consumer).stream_events("v", 10) == []
    assert view.sequence_events() == 1  # no session holds the sequencer's lock


# A17


def test_a_hot_stream_does_not_starve_nor_starves_others(view: PlatformStore) -> None:
    """New streams come as fast as events are consumed, and a hot one has many: each gets its turn."""
    pump(view, "v", *["hot"] * 50, "cold")
    order = []
    for n in range(30):
        pump(view, "v", f"new-{n}")
        for decider_id, offset in fetched(view, 1):
            view.ack_event("v", decider_id, offset)
            order.append(decider_id)
    assert order[:2] == ["hot", "cold"]
    assert order.count("hot") > 3
    assert order.count("new-0") == order.count("new-5") == 1


def test_a_look_older_than_its_lock_leases_no_acknowledged_event(view: PlatformStore, connect: Connect) -> None:
    """A call finds a free stream, another takes and acknowledges the event, then the first gets the lock."""
    pump(view, "v", "a")
    # a session with this setting waits at the gate while it searches for pending streams
    view.connection.execute(
        """
        create or replace function event_store_private.wants(v_deciders text[], v_events text[], v_decider text, v_event text)
        returns boolean language plpgsql as $$
        begin
          if current_setting('test.waits_at_gate', true) = 'yes' then
            perform set_config('test.waits_at_gate', '', false);
            perform pg_advisory_xact_lock(4711);
          end if;
          return true;
        end $$;
        """
    )
    gate, older, other = connect(), PlatformStore(connect()), PlatformStore(connect())
    for store in (older, other):
        set_clock(store.connection, "2030-01-01 00:00:00+00")  # else the time of the ack alone would decide
    pump(other, "v")
    gate.execute("select pg_advisory_lock(4711)")
    older.connection.execute("set test.waits_at_gate = 'yes'")
    # a transaction that has written leaves dispatching, which also reads the filter, to others
    older.connection.autocommit = False
    older.connection.execute("select pg_current_xact_id()")
    fetching = start_blocked(view, older, lambda: older.stream_events("v", 10))
    (event,) = other.stream_events("v", 10)
    other.ack_event("v", "a", event.offset)
    gate.execute("select pg_advisory_unlock(4711)")
    assert fetching.result(patience()) == []
    older.connection.commit()
    assert rows(view.connection, "select in_flight, attempts from event_store.stream_locks") == [(None, 0)]


def test_a_stream_that_is_not_sequenced_keeps_nobody_waiting(view: PlatformStore, connect: Connect) -> None:
    pump(view, "v", "a")
    for decider_id, offset in fetched(view):
        view.ack_event("v", decider_id, offset)
    pump(view, "v", "b")
    append_to(view, "a")  # its lock is free and has waited longer
    connect(autocommit=False).execute("select from event_store.sequencer for update")
    view.connection.execute("update event_store.stream_locks set locked_until = '-infinity' where decider_id = 'a'")
    assert [decider_id for decider_id, _ in fetched(view, 1)] == ["b"]


def test_a_fetch_reads_no_more_locks_than_it_takes_however_many_wait(view: PlatformStore) -> None:
    """Even if the planner has no statistics of the tables yet."""
    set_clock(view.connection, "2030-01-01 00:00:00+00")  # another session dispatched within the second
    pump(view, "v", *[f"o-{n}" for n in range(300)])
    for limit in [1] * 7 + [3] * 3:  # from the sixth call on, a session may plan anew
        with view.connection.transaction():
            before = value(view.connection, LOCKS_READ)
            assert len(view.stream_events("v", limit)) == limit
            # plus the entries that earlier fetches left at the front of the index
            assert value(view.connection, LOCKS_READ) - before <= 15 * limit + 15
