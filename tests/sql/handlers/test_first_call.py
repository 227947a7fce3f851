"""Without a sequencer, a caller of stream_events gets events at once, and never blocks the log for long."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import IsolationLevel

from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from millrace.read_models.stored.store import ReadModelStore
from tests.sql.handlers.test_stream_events import fetched
from tests.support.factories import Connect, append, pump, set_clock, value
from tests.support.logins import logins
from tests.support.patience import wait_until

CALLS: dict[str, Callable[[psycopg.Connection], psycopg.Cursor]] = {
    "bound parameters": lambda c: c.execute("select * from event_store.stream_events(%s, %s::int)", ("v", 10)),
    "lease_events, bound": lambda c: c.execute("select * from event_store.lease_events(%s, %s::int)", ("v", 10)),
    "prepared": lambda c: c.execute("select * from event_store.stream_events(%s)", ("v",), prepare=True),
    "simple protocol": lambda c: psycopg.ClientCursor(c).execute("select * from event_store.stream_events('v', 10)"),
}


def test_every_call_without_a_sequencer_has_the_events(view: PlatformStore, connect: Connect) -> None:
    for autocommit in (True, False):
        for name, call in CALLS.items():
            consumer = connect(autocommit=autocommit)
            for stream in ("a", "b"):
                append(view, f"{name} {autocommit} {stream}")
                assert len(call(consumer).fetchall()) == 1, name
                consumer.commit()


IDLES: LiteralString = "show idle_in_transaction_session_timeout"
HOLDING: dict[str, Callable[[PlatformStore], object]] = {
    "stream_events": lambda store: store.stream_events("v", 10),
    "sequence_events": lambda store: store.sequence_events(),
    "claim_batch": lambda store: store.claim_batch("b", "me"),
    "claim_views": lambda store: store.claim_views(["b"], "me"),
    "claim_partition": lambda store: store.claim_partition("b", 0, "me"),
    "register_view": lambda store: store.register_view("new"),
    "seek_view": lambda store: store.seek_view("b", "RESET_TO_LATEST"),
    "register_decider_event": lambda store: store.register_decider_event("order", "new", "x"),
    "expire_transactions": lambda store: ProducerStore(store.connection).expire_transactions(),
    "lock_model": lambda store: ReadModelStore(store.connection).lock_model("m"),
}


def test_a_call_that_holds_what_others_need_bounds_its_idling(view: PlatformStore, connect: Connect) -> None:
    view.register_view("b", "-infinity", mode="bulk")
    append(view, "a")
    holder = connect(autocommit=False)
    for door, call in HOLDING.items():
        call(PlatformStore(holder))
        assert value(holder, IDLES) == "10s", door
        holder.rollback()


def test_dispatching_anothers_view_is_bounded_and_ones_own_is_not(view: PlatformStore) -> None:
    with logins(view.connection) as login:
        view.register_view("theirs", "-infinity", owner="event_store_owner")
        consumer = login("event_store_consumer")
        for name, then in (("theirs", "10s"), ("v", value(consumer, IDLES))):
            with consumer.transaction():
                PlatformStore(consumer).dispatch_events(name)
                assert value(consumer, IDLES) == then


def test_a_shorter_time_of_the_caller_stays(view: PlatformStore, connect: Connect) -> None:
    for own, then in (("3s", "3s"), ("1h", "10s"), ("10500ms", "10s"), ("2d", "10s")):
        consumer = connect()
        consumer.execute("select set_config('idle_in_transaction_session_timeout', %s, false)", (own,))
        before = value(consumer, IDLES)
        append(view, own)
        with consumer.transaction():
            assert len(PlatformStore(consumer).stream_events("v", 10)) == 1
            assert value(consumer, IDLES) == then
        # only in that transaction
        assert value(consumer, IDLES) == before


def test_a_forgotten_transaction_keeps_the_log_from_nobody_for_long(view: PlatformStore, connect: Connect) -> None:
    """In the simple query protocol it looks like a transaction of one statement."""
    append(view, "a")
    forgotten = connect()
    view.connection.execute(
        "create or replace function event_store_private.bound_idle_transaction(v_longest interval default null) returns void language sql as "
        "$$ select set_config('idle_in_transaction_session_timeout', '50ms', true) $$"
    )
    ended = psycopg.errors.IdleInTransactionSessionTimeout, psycopg.OperationalError
    with suppress(*ended):  # a slow client finds its session ended when it reads the answer
        psycopg.ClientCursor(forgotten).execute("begin; select event_store.stream_events('v', 10)")
    append(view, "b")
    wait_until(lambda: view.sequence_events() == 2, "the sequencer goes on")
    with pytest.raises(ended):
        forgotten.execute("select")
    # nothing is lost: the events that it leased are free
    pump(view, "v")
    assert {stream for stream, _ in fetched(view)} == {"a", "b"}


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_a_sequencer_at_work_is_left_alone(view: PlatformStore, connect: Connect, level: IsolationLevel) -> None:
    consumer = connect(autocommit=False)
    consumer.isolation_level = level
    for connection in (view.connection, consumer):
        set_clock(connection, "2030-01-01 00:00:00+00")
    consumer.commit()
    pump(view, "v")
    view.attend_log(10)
    append(view, "a")
    assert PlatformStore(consumer).stream_events("v", 10) == []
    assert value(consumer, IDLES) != "10s"
    assert view.sequence_events() == 1  # no session holds the sequencer's row


@pytest.mark.parametrize(("away_s", "hands_over"), [(14, False), (16, True)])
def test_a_call_hands_over_where_nobody_did_for_15_seconds(view: PlatformStore, away_s: int, hands_over: bool) -> None:
    """A sequencer skips a view for ten seconds while the view has no new events."""
    began = datetime(2030, 1, 1, tzinfo=UTC)
    set_clock(view.connection, began.isoformat())
    pump(view, "v")
    set_clock(view.connection, (began + timedelta(seconds=away_s)).isoformat())
    append(view, "a")
    view.sequence_events()
    view.attend_log(10)
    assert view.is_attended()
    assert bool(view.stream_events("v", 10)) is hands_over
