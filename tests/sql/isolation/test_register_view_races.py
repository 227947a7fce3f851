"""Registering a view while others append and sequence: it gets all events after its start, and none sequenced before.

Belongs here: interleavings of register_view with the sequencer and with appends. Not here: its answers and its row
(test_register_view).
"""

import threading
from functools import partial

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from tests.support.factories import (
    Connect,
    append,
    append_to,
    at_once,
    ids_of_one_partition,
    pump,
    rows,
    start,
    value,
    wait_blocked,
)


def delivered(store: EventStore, view: str, mode: str) -> list[str]:
    """Consume all that the view gives; return the streams, one for each event."""
    got: list[str] = []
    if mode == "bulk":
        while leases := store.claim_batch(view, "owner"):
            got += [event.decider_id for lease in leases for event in store.read_batch(view, lease)]
            store.commit_batch(view, leases)
        return got
    pump(store, view)
    while events := store.lease_events(view, 1000):
        got += [event.decider_id for event in events]
        store.ack_events(view, [event.offset for event in events], [event.lease_token for event in events])
        pump(store, view)
    return got


def stops_after_the_search(observer: psycopg.Connection, registrar: psycopg.Connection) -> None:
    """Let this session wait for the gate when it has searched history, and nobody else."""
    observer.execute(
        """
        create function pause() returns trigger language plpgsql as $$
        begin
          perform pg_advisory_xact_lock(4711);
          return null;
        end $$;
        create trigger pause after insert on event_store.checkpoints for each statement
        when (current_setting('test.waits_at_gate', true) = 'yes') execute function pause();
        """
    )
    registrar.execute("set test.waits_at_gate = 'yes'")


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_what_is_sequenced_while_history_is_searched_comes_only_if_it_is_not_before_the_start(
    orders: EventStore, connect: Connect, mode: str
) -> None:
    """Before register_view locks the sequencer's row, others raise the mark by events of both sides of the start."""
    known, before, after, later = ids_of_one_partition(orders.connection, 4)
    append_to(orders, known)
    orders.sequence_events()
    append_to(orders, before)  # has no offset yet
    gate, registrar = connect(), connect()
    gate.execute("select pg_advisory_lock(4711)")
    stops_after_the_search(orders.connection, registrar)
    registered = start(lambda: EventStore(registrar).register_view("v", mode=mode))
    wait_blocked(orders.connection, registrar.info.backend_pid)
    append_to(orders, after)
    assert orders.sequence_events() == 2  # a search, however long, keeps offsets from nobody
    gate.execute("select pg_advisory_unlock(4711)")
    registered.result(20)
    append_to(orders, later)
    assert delivered(orders, "v", mode) == [after, later]


@pytest.mark.parametrize("mode", ["rows", "bulk"])
@pytest.mark.parametrize("begun", ["before", "while searching"])
def test_an_append_in_flight_at_registration_is_delivered(
    orders: EventStore, connect: Connect, mode: str, begun: str
) -> None:
    """It commits when the view is there, after later events of its log partition got their offsets."""
    known, in_flight, later = ids_of_one_partition(orders.connection, 3)
    append_to(orders, known)
    orders.sequence_events()
    gate, registrar, writer = connect(), connect(), connect(autocommit=False)
    if begun == "before":
        append(EventStore(writer), in_flight)
    gate.execute("select pg_advisory_lock(4711)")
    stops_after_the_search(orders.connection, registrar)
    registered = start(lambda: EventStore(registrar).register_view("v", mode=mode))
    wait_blocked(orders.connection, registrar.info.backend_pid)
    if begun == "while searching":
        append(EventStore(writer), in_flight)
    append_to(orders, later)
    assert orders.sequence_events() == 1
    gate.execute("select pg_advisory_unlock(4711)")
    registered.result(20)
    writer.commit()
    assert sorted(delivered(orders, "v", mode)) == sorted([in_flight, later])


@pytest.mark.parametrize("mode", ["rows", "bulk"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_events_that_come_while_the_registration_holds_the_sequencer_wait_for_its_end(
    orders: EventStore, connect: Connect, mode: str, ends: str
) -> None:
    known, before, in_flight, later = ids_of_one_partition(orders.connection, 4)
    append_to(orders, known)
    orders.sequence_events()
    writer, registrar = connect(autocommit=False), connect(autocommit=False)
    append(EventStore(writer), in_flight)
    append_to(orders, before)
    EventStore(registrar).register_view("v", mode=mode)  # gives `before` its offset
    orders.connection.execute("set lock_timeout = '2s'")
    append_to(orders, later)
    writer.commit()
    assert orders.sequence_events() == 0
    if ends == "commit":
        registrar.commit()
        assert sorted(delivered(orders, "v", mode)) == sorted([in_flight, later])
    else:
        registrar.rollback()
        assert orders.sequence_events() == 3
        orders.register_view("v", "-infinity", mode=mode)
        assert sorted(delivered(orders, "v", mode)) == sorted([known, before, in_flight, later])


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_a_registration_while_somebody_else_sequences_misses_nothing_after_its_start(
    orders: EventStore, connect: Connect, mode: str
) -> None:
    known, before, in_flight, later = ids_of_one_partition(orders.connection, 4)
    append_to(orders, known)
    orders.sequence_events()
    since = value(orders.connection, "select clock_timestamp()::text")
    append_to(orders, before)
    writer, sequencer = connect(autocommit=False), connect(autocommit=False)
    append(EventStore(writer), in_flight)
    assert EventStore(sequencer).sequence_events() == 1
    orders.connection.execute("set lock_timeout = '2s'")
    orders.register_view("v", since, mode=mode)
    writer.commit()
    append_to(orders, later)
    sequencer.commit()
    assert sorted(delivered(orders, "v", mode)) == sorted([before, in_flight, later])


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_views_registered_while_all_append_and_sequence_get_what_comes_after_and_nothing_from_before(
    orders: EventStore, connect: Connect, mode: str
) -> None:
    ended = threading.Event()
    watcher = connect()

    def write(name: str) -> None:
        store = EventStore(connect())
        n = 0
        while not ended.is_set():
            append_to(store, *[f"{name}-{n + k}" for k in range(5)])
            n += 5

    def sequence() -> None:
        store = EventStore(connect())
        while not ended.is_set():
            store.sequence_events()

    def known() -> set[str]:
        """Return the streams whose event is in the log."""
        return {
            row[0]
            for row in rows(
                watcher, 'select decider_id from event_store.event_log join event_store.events using ("offset")'
            )
        }

    def register() -> None:
        store = EventStore(connect())
        for n in range(12):
            before = known()
            store.register_view(f"v{n}", mode=mode)
            (first,) = append_to(store, f"after-{n}")
            history[f"v{n}"] = before, first.offset

    history: dict[str, tuple[set[str], int]] = {}
    others = [start(partial(write, name)) for name in ("x", "y")] + [start(sequence) for _ in range(2)]
    try:
        (registering,) = at_once([register])
    finally:
        ended.set()
    for done in (registering, *others):
        done.result(20)
    while orders.sequence_events():
        pass
    for view, (before, first) in history.items():
        got = delivered(orders, view, mode)
        after = rows(orders.connection, 'select decider_id from event_store.events where "offset" >= %s', first)
        assert len(got) == len(set(got))
        assert not set(got) & before
        assert {row[0] for row in after} <= set(got)


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_an_append_that_is_in_flight_when_the_registration_begins_is_delivered_also_if_it_is_sequenced_meanwhile(
    orders: EventStore, connect: Connect, mode: str
) -> None:
    known, in_flight = ids_of_one_partition(orders.connection, 2)
    append_to(orders, known)
    orders.sequence_events()
    gate, registrar, writer = connect(), connect(), connect(autocommit=False)
    append(EventStore(writer), in_flight)
    gate.execute("select pg_advisory_lock(4711)")
    stops_after_the_search(orders.connection, registrar)
    registered = start(lambda: EventStore(registrar).register_view("v", mode=mode))
    wait_blocked(orders.connection, registrar.info.backend_pid)
    writer.commit()
    assert orders.sequence_events() == 1
    gate.execute("select pg_advisory_unlock(4711)")
    registered.result(20)
    assert delivered(orders, "v", mode) == [in_flight]
