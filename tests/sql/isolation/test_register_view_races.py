"""Registering a view beside appends and sequencers: it gets all events after its start, none sequenced before."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import LiteralString

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append_to, at_once, ids_of_one_partition, pump, rows, start, start_blocked
from tests.support.patience import patience


def delivered(store: PlatformStore, view: str) -> list[str]:
    """Consume all events of the view; return the stream of each event."""
    got: list[str] = []
    if "bulk" in view:
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


def in_the_log(store: PlatformStore, number: int) -> list[str]:
    """Return streams of one partition; the first stream's event is in the log."""
    found = ids_of_one_partition(store.connection, number)
    append_to(store, found[0])
    store.sequence_events()
    return found


MODES = ("rows", "bulk")


@contextmanager
def searched(orders: PlatformStore, connect: Connect) -> Iterator[None]:
    """Register a view of each mode: within the block both have searched history; after it they are registered."""
    orders.connection.execute(
        """
        create function pause() returns trigger language plpgsql as $$
        begin
          perform pg_advisory_xact_lock(4711);
          return null;
        end $$;
        create trigger pause after insert on event_store.checkpoints for each statement execute function pause();
        """
    )
    gate = connect()
    gate.execute("select pg_advisory_lock(4711)")
    registered = []
    for mode in MODES:
        registrar = PlatformStore(connect())
        registered.append(start_blocked(orders, registrar, partial(registrar.register_view, mode, mode=mode)))
    yield
    gate.execute("select pg_advisory_unlock(4711)")
    for done in registered:
        done.result(patience())
    orders.connection.execute("drop function pause() cascade")


def test_what_comes_while_history_is_searched_is_delivered_if_new(orders: PlatformStore, connect: Connect) -> None:
    """Before register_view locks the sequencer's row, others raise the mark by events before and after the start."""
    _, before, after, later = in_the_log(orders, 4)
    append_to(orders, before)  # has no position yet
    with searched(orders, connect):
        append_to(orders, after)
        assert orders.sequence_events() == 2  # even a long search does not block sequencing
    append_to(orders, later)
    for view in MODES:
        assert delivered(orders, view) == [after, later]


@pytest.mark.parametrize(
    ("begun", "commits"), [("before", "after"), ("while searching", "after"), ("before", "while searching")]
)
def test_an_append_in_flight_is_delivered(orders: PlatformStore, connect: Connect, begun: str, commits: str) -> None:
    """It commits once the view exists, after later events got their positions, or it is sequenced meanwhile."""
    _, in_flight, later = in_the_log(orders, 3)
    writer = connect(autocommit=False)
    if begun == "before":
        append_to(PlatformStore(writer), in_flight)
    with searched(orders, connect):
        if begun == "while searching":
            append_to(PlatformStore(writer), in_flight)
        if commits == "while searching":
            writer.commit()
            assert orders.sequence_events() == 1
        append_to(orders, later)
        assert orders.sequence_events() == 1
    writer.commit()
    for view in MODES:
        assert sorted(delivered(orders, view)) == sorted([in_flight, later])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_events_wait_while_a_registration_holds_the_sequencer(
    orders: PlatformStore, connect: Connect, ends: str
) -> None:
    known, before, in_flight, later = in_the_log(orders, 4)
    writer, registrar = connect(autocommit=False), connect(autocommit=False)
    append_to(PlatformStore(writer), in_flight)
    append_to(orders, before)
    for mode in MODES:
        PlatformStore(registrar).register_view(mode, mode=mode)  # gives `before` its position
    orders.connection.execute("set lock_timeout = '2s'")
    append_to(orders, later)
    writer.commit()
    assert orders.sequence_events() == 0
    if ends == "commit":
        registrar.commit()
        expected = [in_flight, later]
    else:
        registrar.rollback()
        assert orders.sequence_events() == 3
        expected = [known, before, in_flight, later]
        for mode in MODES:
            orders.register_view(mode, "-infinity", mode=mode)
    for view in MODES:
        assert sorted(delivered(orders, view)) == sorted(expected)


def test_a_registration_beside_a_sequencer_misses_nothing(orders: PlatformStore, connect: Connect) -> None:
    _, before, in_flight, later = in_the_log(orders, 4)
    ((since,),) = rows(orders.connection, "select clock_timestamp()::text")
    append_to(orders, before)
    writer, sequencer = connect(autocommit=False), connect(autocommit=False)
    append_to(PlatformStore(writer), in_flight)
    assert PlatformStore(sequencer).sequence_events() == 1
    orders.connection.execute("set lock_timeout = '2s'")
    for mode in MODES:
        orders.register_view(mode, since, mode=mode)
    writer.commit()
    append_to(orders, later)
    sequencer.commit()
    for view in MODES:
        assert sorted(delivered(orders, view)) == sorted([before, in_flight, later])


def test_views_registered_amid_appends_get_exactly_what_comes_after(orders: PlatformStore, connect: Connect) -> None:
    ended = threading.Event()
    watcher = connect()

    def write(name: str) -> None:
        store = PlatformStore(connect())
        n = 0
        while not ended.is_set():
            append_to(store, *[f"{name}-{n + k}" for k in range(5)])
            n += 5

    def sequence() -> None:
        store = PlatformStore(connect())
        while not ended.is_set():
            store.sequence_events()

    def known() -> set[str]:
        """Return the streams with an event in the log."""
        logged: LiteralString = 'select decider_id from event_store.event_log join event_store.events using ("offset")'
        return {decider_id for (decider_id,) in rows(watcher, logged)}

    def register() -> None:
        store = PlatformStore(connect())
        for n in range(12):
            before = known()
            view = f"{MODES[n % 2]}-{n}"
            store.register_view(view, mode=MODES[n % 2])
            (first,) = append_to(store, f"after-{n}")
            history[view] = before, first.offset

    history: dict[str, tuple[set[str], int]] = {}
    others = [start(partial(write, name)) for name in ("x", "y")] + [start(sequence) for _ in range(2)]
    try:
        (registering,) = at_once([register])
    finally:
        ended.set()
    for done in (registering, *others):
        done.result(patience())
    while orders.sequence_events():
        pass
    for view, (before, first) in history.items():
        got = delivered(orders, view)
        after = rows(orders.connection, 'select decider_id from event_store.events where "offset" >= %s', first)
        assert len(got) == len(set(got))
        assert not set(got) & before
        assert {row[0] for row in after} <= set(got)
