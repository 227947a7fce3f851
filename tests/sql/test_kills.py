"""Consumers and dispatchers that are killed in a call: no lock or event is lost, the dead session leases nothing.

Belongs here: pg_terminate_backend inside stream_events, lease_events, dispatch_events and ack_event. Not here: kills
between two calls (the test of each function) and of the sequencer alone (test_sequence_events).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from tests.sql.rows.test_stream_events import view
from tests.support.factories import (
    Connect,
    append_to,
    assert_log_holds_every_event_once,
    pump,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience

__all__ = ["view"]

Call = Callable[[EventStore], object]

CALLS: dict[str, Call] = {
    "stream_events": lambda store: store.stream_events("v", 100),
    "lease_events": lambda store: store.lease_events("v", 100),
    "dispatch_events": lambda store: store.dispatch_events("v"),
}
# where the call stops: what another session locks
POINTS = {
    "sequencing": "lock table event_store.event_log in share mode",
    "dispatching": "select from event_store.views where view = 'v' for update",  # new locks refer to it
    "removing": "select pg_advisory_xact_lock(4711)",
    "leasing": "select pg_advisory_xact_lock(4712)",
}
WHERE_A_CALL_STOPS = [
    *[("lease_events", point) for point in POINTS],
    ("stream_events", "leasing"),
    ("dispatch_events", "dispatching"),
    ("dispatch_events", "removing"),
]


@contextmanager
def stopped(store: EventStore, connect: Connect, call: Call, point: str) -> Iterator[psycopg.Connection]:
    """Yield a session that waits in the call at that point; when the block ends, the lock that it waits for is free."""
    store.connection.execute(
        """
        create function pause() returns trigger language plpgsql as $$
        begin
          perform pg_advisory_xact_lock(case tg_op when 'DELETE' then 4711 else 4712 end);
          return coalesce(new, old);
        end $$;
        create trigger pause_at_remove before delete on event_store.stream_locks for each row
        when (current_setting('test.waits_at_gate', true) = 'yes') execute function pause();
        create trigger pause_at_lease before update on event_store.stream_locks for each row
        when (current_setting('test.waits_at_gate', true) = 'yes' and new.in_flight is not null) execute function pause();
        """
    )
    holder, doomed = connect(autocommit=False), connect()
    holder.execute(POINTS[point].encode())
    doomed.execute("set test.waits_at_gate = 'yes'")
    # nobody sequenced within the last second: it does
    set_clock(doomed, (datetime.now(UTC) + timedelta(seconds=5)).isoformat())
    result = start(lambda: call(EventStore(doomed)))
    wait_blocked(store.connection, doomed.info.backend_pid)
    yield doomed
    holder.rollback()
    assert isinstance(result.exception(patience()), psycopg.OperationalError)


def consumed(store: EventStore) -> list[tuple[str, int, int]]:
    """Consume all that the view gives: stream, offset and which delivery it was."""
    got = []
    pump(store, "v")
    while events := store.lease_events("v", 100):
        for event in events:
            store.ack_event("v", event.decider_id, event.offset, event.lease_token)
            got.append((event.decider_id, event.offset, event.attempt))
        pump(store, "v")
    return got


@pytest.mark.parametrize(("call", "point"), WHERE_A_CALL_STOPS)
def test_a_call_killed_half_way_loses_no_lock_and_no_event_and_leases_nothing(
    view: EventStore, connect: Connect, call: str, point: str
) -> None:
    # a lock with nothing left, one with something left, streams without one
    done, *waiting = append_to(view, "done", "waits", "waits")
    pump(view, "v")
    (event,) = view.lease_events("v", 1)
    view.ack_event("v", "done", event.offset, event.lease_token)
    assert event.offset == done.offset
    waiting += append_to(view, "new", "waits", "newer")
    if point != "sequencing":
        view.sequence_events()
    with stopped(view, connect, CALLS[call], point) as doomed:
        view.connection.execute("set lock_timeout = '30s'")
        waiting += append_to(view, "new", "done", "newest")
        terminate(view.connection, doomed.info.backend_pid)
    assert value(view.connection, "select count(*) from event_store.stream_locks where in_flight is not null") == 0
    names = ["waits", "waits", "new", "waits", "newer", "new", "done", "newest"]
    got = consumed(view)
    # each event once, and by its first delivery
    assert sorted(got) == sorted((name, e.offset, 1) for name, e in zip(names, waiting, strict=True))
    for name in set(names):
        assert [o for n, o, _ in got if n == name] == sorted(o for n, o, _ in got if n == name)
    assert rows(view.connection, "select from event_store.stream_locks") == []
    assert_log_holds_every_event_once(view.connection)


@pytest.mark.parametrize(("call", "point"), [each for each in WHERE_A_CALL_STOPS if each[1] != "sequencing"])
def test_while_a_call_hangs_others_are_given_what_it_does_not_hold_and_after_its_kill_the_rest(
    view: EventStore, connect: Connect, call: str, point: str
) -> None:
    append_to(view, "done")
    pump(view, "v")
    (event,) = view.lease_events("v", 1)
    view.ack_event("v", "done", event.offset, event.lease_token)
    append_to(view, "waits")
    pump_without_removing(view)
    append_to(view, "new")
    view.sequence_events()
    other = EventStore(connect())
    other.connection.execute("set lock_timeout = '30s'")
    with stopped(view, connect, CALLS[call], point) as doomed:
        held = other.lease_events("v", 100)
        assert [e.decider_id for e in held] == ([] if point == "leasing" else ["waits"])
        terminate(view.connection, doomed.info.backend_pid)
    pump(other, "v")
    held += other.lease_events("v", 100)
    assert sorted(e.decider_id for e in held) == ["new", "waits"]
    assert other.ack_events("v", [e.offset for e in held], [e.lease_token for e in held]) == {e.offset for e in held}
    other.dispatch_events("v")
    assert rows(view.connection, "select from event_store.stream_locks") == []


def pump_without_removing(store: EventStore) -> None:
    """Sequence and dispatch while somebody holds the locks that have nothing left, so that these stay."""
    store.sequence_events()
    with psycopg.connect(store.connection.info.dsn, password=store.connection.info.password) as holder:
        holder.execute("select from event_store.stream_locks for update")
        store.dispatch_events("v")
