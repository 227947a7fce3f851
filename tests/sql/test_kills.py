"""Consumers and dispatchers killed in a call: no lock or event is lost, and the dead session leases nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.patience import patience

Call = Callable[[PlatformStore], object]

CALLS: dict[str, Call] = {
    "stream_events": lambda store: store.stream_events("v", 100),
    "lease_events": lambda store: store.lease_events("v", 100),
    "dispatch_events": lambda store: store.dispatch_events("v"),
}
# the points where a call stops, and the locks of another session that stop it
POINTS = {
    "sequencing": "lock table event_store.event_log in share mode",
    "dispatching": "select from event_store.views where view = 'v' for update",  # new locks refer to it
    "removing": "select pg_advisory_xact_lock(4711)",
    "leasing": "select pg_advisory_xact_lock(4712)",
}
WHERE_A_CALL_STOPS = [
    *[("lease_events", point) for point in POINTS],
    *[("stream_events", "leasing"), ("dispatch_events", "dispatching"), ("dispatch_events", "removing")],
]


@contextmanager
def stopped(store: PlatformStore, connect: factories.Connect, call: Call, point: str) -> Iterator[psycopg.Connection]:
    """Yield a session that waits in the call at that point; at the end of the block the lock is released."""
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
    # no session sequenced within the last second, so this call does
    factories.set_clock(doomed, (datetime.now(UTC) + timedelta(seconds=5)).isoformat())
    result = factories.start(lambda: call(PlatformStore(doomed)))
    factories.wait_blocked(store.connection, doomed.info.backend_pid)
    yield doomed
    holder.rollback()
    assert isinstance(result.exception(patience()), psycopg.OperationalError)


def consumed(store: PlatformStore) -> list[tuple[str, int, int]]:
    """Consume all events of the view; return stream, offset and number of the delivery."""
    got = []
    factories.pump(store, "v")
    while events := store.lease_events("v", 100):
        for event in events:
            store.ack_event("v", event.decider_id, event.offset, event.lease_token)
            got.append((event.decider_id, event.offset, event.attempt))
        factories.pump(store, "v")
    return got


@pytest.fixture
def view(orders: PlatformStore) -> PlatformStore:
    """Return a store with a rows view `v` and an empty lock."""
    orders.register_view("v", "-infinity")
    factories.append_to(orders, "done")
    factories.pump(orders, "v")
    (event,) = orders.lease_events("v", 1)
    orders.ack_event("v", "done", event.offset, event.lease_token)
    return orders


@pytest.mark.parametrize(("call", "point"), WHERE_A_CALL_STOPS)
def test_a_call_killed_midway_loses_nothing(
    view: PlatformStore, connect: factories.Connect, call: str, point: str
) -> None:
    waiting = factories.append_to(view, "waits", "waits")
    pump_without_removing(view)
    # beside an empty lock, a lock with a pending event, and streams without a lock
    waiting += factories.append_to(view, "new", "waits", "newer")
    if point != "sequencing":
        view.sequence_events()
    with stopped(view, connect, CALLS[call], point) as doomed:
        view.connection.execute("set lock_timeout = '30s'")
        waiting += factories.append_to(view, "new", "done", "newest")
        factories.terminate(view.connection, doomed.info.backend_pid)
    assert (
        factories.value(view.connection, "select count(*) from event_store.stream_locks where in_flight is not null")
        == 0
    )
    names = ["waits", "waits", "new", "waits", "newer", "new", "done", "newest"]
    got = consumed(view)
    # each event once, at its first delivery
    assert sorted(got) == sorted((name, e.offset, 1) for name, e in zip(names, waiting, strict=True))
    for name in set(names):
        assert [o for n, o, _ in got if n == name] == sorted(o for n, o, _ in got if n == name)
    assert factories.rows(view.connection, "select from event_store.stream_locks") == []
    factories.assert_log_holds_every_event_once(view.connection)


@pytest.mark.parametrize(("call", "point"), [each for each in WHERE_A_CALL_STOPS if each[1] != "sequencing"])
def test_while_a_call_hangs_others_go_on(
    view: PlatformStore, connect: factories.Connect, call: str, point: str
) -> None:
    factories.append_to(view, "waits")
    pump_without_removing(view)
    factories.append_to(view, "new")
    view.sequence_events()
    other = PlatformStore(connect())
    other.connection.execute("set lock_timeout = '30s'")
    with stopped(view, connect, CALLS[call], point) as doomed:
        held = other.lease_events("v", 100)
        assert [e.decider_id for e in held] == ([] if point == "leasing" else ["waits"])
        factories.terminate(view.connection, doomed.info.backend_pid)
    factories.pump(other, "v")
    held += other.lease_events("v", 100)
    assert sorted(e.decider_id for e in held) == ["new", "waits"]
    assert other.ack_events("v", [e.offset for e in held], [e.lease_token for e in held]) == {e.offset for e in held}
    other.dispatch_events("v")
    assert factories.rows(view.connection, "select from event_store.stream_locks") == []


def pump_without_removing(store: PlatformStore) -> None:
    """Sequence and dispatch while another session holds the empty locks, so that these stay."""
    store.sequence_events()
    with psycopg.connect(store.connection.info.dsn, password=store.connection.info.password) as holder:
        holder.execute("select from event_store.stream_locks for update")
        store.dispatch_events("v")
