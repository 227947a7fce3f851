"""The session that blocks the whole log with an open transaction."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from millrace.event_store import SequencerHolder
from millrace.event_store.platform import PlatformStore
from millrace.sequencer import held_up
from tests.support.factories import Connect, append_to, rows, set_clock, start, start_blocked, value
from tests.support.logins import Login
from tests.support.patience import patience, wait_until


def end_later(store: PlatformStore) -> SequencerHolder | None:
    """End a session that blocks the log for longer than an open transaction may, by a clock that is ahead."""
    set_clock(store.connection, (datetime.now(UTC) + timedelta(seconds=15)).isoformat())
    ended = store.end_log_holder()
    set_clock(store.connection, "")
    return ended


def test_an_open_transaction_that_sequenced_is_named_with_its_login(orders: PlatformStore, connect: Connect) -> None:
    append_to(orders, "o-1")
    assert orders.sequencer_holder() is None
    assert held_up(orders) is None
    other = connect(autocommit=False)
    other.execute("set application_name = 'a consumer'")
    other.execute("select event_store_platform.sequence_events()")
    append_to(orders, "o-2")
    # no session can give the second event its position
    assert orders.sequence_events() == 0
    holder = held_up(orders, seconds=0.2)
    assert holder is not None
    assert (holder.pid, holder.login, holder.application_name) == (other.info.backend_pid, "postgres", "a consumer")
    assert holder.open_since is not None
    assert value(orders.connection, "select pg_terminate_backend(%s, 5000)", holder.pid)
    assert orders.sequencer_holder() is None
    # its sequenced positions were not committed
    assert orders.sequence_events() == 2


def test_who_idles_while_it_holds_the_log_is_ended(orders: PlatformStore, connect: Connect, login: Login) -> None:
    ours = append_to(orders, "o-1")[0].event_id
    writer = login("event_store_writer")
    consumer = PlatformStore(login("event_store_consumer"))
    writer.execute("begin")
    writer.execute("select * from event_store.await_positions(%s)", ([ours],))
    writer.execute("set idle_in_transaction_session_timeout = 0")
    # stating a reason does not make an operator
    assert consumer.end_log_holder("in my way") is None
    assert orders.end_log_holder() is None
    ended = end_later(orders)
    assert ended is not None
    assert (ended.pid, ended.login) == (writer.info.backend_pid, writer.info.user)
    wait_until(lambda: consumer.sequence_events() == 1, "another one sequences it")
    # no session is ended if none blocks the log; an operator need not wait for the limit
    assert orders.end_log_holder("in my way") is None
    append_to(orders, "o-2")
    busy = connect(autocommit=False)
    busy_pid = busy.info.backend_pid
    busy.execute("select event_store_platform.sequence_events()")
    at_work = start(lambda: busy.execute("select pg_sleep(3600)"))
    active = "select state from pg_stat_activity where pid = %s and query like '%%pg_sleep%%'"
    wait_until(lambda: rows(orders.connection, active, busy_pid) == [("active",)], "it works")
    assert end_later(orders) is None
    ended = orders.end_log_holder("in my way")
    assert ended is not None
    assert ended.pid == busy_pid
    assert isinstance(at_work.exception(patience()), psycopg.errors.AdminShutdown)
    operation = "select reason, (detail ->> 'pid')::int from event_store.audit_log where operation = 'end_log_holder' order by 1"
    assert rows(orders.connection, operation) == [("in my way", busy_pid), (None, writer.info.backend_pid)]


BESIDE_THE_LOG = [
    "select * from event_store_platform.expire_transactions()",
    "select event_store_platform.dispatch_events('v')",
    "select event_store.register_decider_event('zz', 'a', 'x')",
    "select event_store.register_producer('zz')",
]
OF_THE_LOG = [
    "select event_store_platform.sequence_events()",
    "select * from event_store.await_positions(array(select event_id from event_store.get_events('o-2', 'order')))",
]


@pytest.mark.parametrize("call", BESIDE_THE_LOG)
def test_so_is_one_that_holds_what_others_need_beside_the_log(orders: PlatformStore, login: Login, call: str) -> None:
    orders.register_view("v", "-infinity", owner="event_store_owner")
    other = login("event_store_consumer", "event_store_writer")
    other.execute("begin")
    other.execute(call.encode())
    other.execute("set idle_in_transaction_session_timeout = 0")
    assert orders.end_log_holder("in my way") is None
    ended = end_later(orders)
    assert ended is not None
    assert (ended.pid, ended.login) == (other.info.backend_pid, other.info.user)


@pytest.mark.parametrize("call", BESIDE_THE_LOG + OF_THE_LOG)
def test_a_transaction_that_holds_them_cannot_be_prepared(orders: PlatformStore, connect: Connect, call: str) -> None:
    """A prepared transaction has no session that could be ended."""
    append_to(orders, "o-1")
    orders.register_view("v", "-infinity", owner="event_store_owner")
    append_to(orders, "o-2")
    other = connect(autocommit=False)
    other.execute("set role event_store_consumer" if "zz" not in call else "set role event_store_writer")
    other.execute(call.encode())
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        other.execute("prepare transaction 'p'")


def test_a_session_that_the_role_that_migrated_may_not_end_is_left(orders: PlatformStore, connect: Connect) -> None:
    append_to(orders, "o-1")
    holder = connect(autocommit=False)
    PlatformStore(holder).sequence_events()
    with orders.connection.transaction(force_rollback=True):
        orders.connection.execute(
            "create role migrated in role event_store_owner;"
            "grant usage on schema event_store_private to migrated;"
            "grant execute on all functions in schema event_store_private to migrated;"
            "alter function event_store_platform.end_log_holder(text) owner to migrated"
        )
        assert orders.end_log_holder("in my way") is None
    assert orders.sequencer_holder() is not None
    holder.rollback()


def test_who_waits_for_the_holder_holds_nothing(orders: PlatformStore, connect: Connect) -> None:
    holder, waiting = connect(autocommit=False), connect()
    orders.connection.execute("set lock_timeout = '2s'")
    append_to(orders, "o-1")
    holder.execute("select event_store_platform.sequence_events()")
    waits = start_blocked(orders, waiting, lambda: waiting.execute("select from event_store.sequencer for update"))
    assert (
        value(orders.connection, "select pid from event_store_platform.sequencer_holder()") == holder.info.backend_pid
    )
    holder.rollback()
    waits.result(patience())


def test_calls_that_follow_each_other_hold_nothing_up(orders: PlatformStore, connect: Connect) -> None:
    other = PlatformStore(connect(autocommit=False))

    class Busy(PlatformStore):
        """A store where another session sequences between any two reads, each time in its own transaction."""

        def sequencer_holder(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
            other.connection.rollback()
            append_to(orders, "o-1")
            other.sequence_events()
            return super().sequencer_holder()

    assert held_up(Busy(orders.connection), seconds=60) is None
    other.connection.rollback()


def test_a_transaction_that_only_looked_or_only_appended_holds_nothing(orders: PlatformStore, connect: Connect) -> None:
    with connect(autocommit=False) as other:
        other.execute("select * from event_store_platform.sequencer_holder()")
        append_to(PlatformStore(other), "o-1")
        assert orders.sequencer_holder() is None
