"""The loop that keeps the log in order: it sequences, dispatches, takes turns, and survives faults."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.event_store import Event, WantingView
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import APPENDED, Wakeups
from millrace.producers import ProducerStore
from millrace.sequencer import _Rounds, run_sequencer
from tests.event_store.test_wake_ups import listeners
from tests.support import factories
from tests.support.factories import Connect, append, new_event, rows, set_clock, start, terminate, unprepared, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events
from tests.support.views.pooler import PROGRAM, pooled


@contextmanager
def sequencer(dsn: str, *, pause_s: float = 0.01) -> Iterator[Future[None]]:
    stop = threading.Event()
    running = start(lambda: run_sequencer(dsn, stop, pause_s=pause_s))
    try:
        yield running
    finally:
        stop.set()
        assert running.result(patience()) is None


@pytest.fixture
def observer(connect: Connect) -> psycopg.Connection:
    return connect()


def sequenced(observer: psycopg.Connection) -> int:
    return int(value(observer, "select count(*) from event_store.event_log"))


def sessions(observer: psycopg.Connection) -> list[int]:
    query = """
        select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
          and query ~ 'sequence_events|poll_views|dispatch_events|attend_log|announce_positions'
    """
    return [pid for (pid,) in rows(observer, query)]


def test_only_rows_views_in_use_get_locks(orders: PlatformStore, dsn: str, observer: psycopg.Connection) -> None:
    for view, mode in (("wanted", "rows"), ("disabled", "rows"), ("bulk", "bulk")):
        orders.register_view(view, "-infinity", mode=mode)
    orders.connection.execute("update event_store.views set enabled = false where view = 'disabled'")
    append(orders)
    with sequencer(dsn):
        locked = "select distinct view from event_store.stream_locks"
        wait_until(lambda: rows(observer, locked) == [("wanted",)], "the enabled rows view has its lock")


def dispatched(observer: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(observer, "select view, dispatched_at from event_store.dispatches order by view")


def test_a_view_that_nothing_is_new_for_is_left_alone(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that only an event, or a view that is behind, is a reason to dispatch
    monkeypatch.setattr("millrace.sequencer.DISPATCH_ALL_EVERY_S", 600)
    for view in ("a", "b"):
        orders.register_view(view)
    with sequencer(dsn):
        append(orders, "o-1")
        wait_until(lambda: value(observer, "select count(*) from event_store.stream_locks") == 2, "both have it")
        for view in ("a", "b"):
            (event,) = orders.stream_events(view, 1)
            orders.ack_event(view, event.decider_id, event.offset)
        looked = set[object]()

        def rounds() -> int:
            looked.add(value(observer, "select event_store_platform.last_sequenced()"))
            return len(looked)

        wait_until(lambda: rounds() > 1, "a round")
        before = dispatched(observer)
        wait_until(lambda: rounds() > 4, "some rounds")
        assert dispatched(observer) == before
        orders.seek_view("a", "RESET_TO_EARLIEST", reason="again")
        wait_until(lambda: len(orders.stream_events("a", 1)) == 1, "it is given its event again")


def test_many_views_delay_none(
    orders: PlatformStore, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.sequencer.SLICE_S", 0)  # a view a round
    rounds = _Rounds(orders.connection)
    for n in range(9):
        orders.register_view(f"a-{n}")
    orders.register_view("other", owner="event_store_owner")
    orders.register_view("unwanted", deciders=["invoice"])
    while rounds.work():
        pass
    before = dict(dispatched(observer))

    def handed_over() -> set[object]:
        return {view for (view,) in rows(observer, "select distinct view from event_store.stream_locks")}

    append(orders, "o-1")
    rounds.work()
    append(orders, "o-2")
    rounds.work()
    assert sequenced(observer) == 2
    assert handed_over() == {"a-0", "other"}
    while rounds.work():
        pass
    assert handed_over() == {*(f"a-{n}" for n in range(9)), "other"}
    assert dict(dispatched(observer))["unwanted"] == before["unwanted"]
    settled = rounds.settled
    assert settled == rounds.marks
    assert sum(settled) == 2


def test_the_loop_ends_who_holds_it_up(
    orders: PlatformStore, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    append(orders)
    holder = connect(autocommit=False)
    holder.execute("set idle_in_transaction_session_timeout = 0")
    PlatformStore(holder).sequence_events()
    set_clock(orders.connection, "2100-01-01 00:00:00+00")
    rounds = _Rounds(orders.connection)
    rounds.work()
    assert f"pid={holder.info.backend_pid}" in caplog.text
    wait_until(lambda: rounds.work() == 1, "the event has its position")


def test_several_loops_give_every_event_one_offset(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection
) -> None:
    with sequencer(dsn), sequencer(dsn), sequencer(dsn):
        for n in range(30):
            append_events(orders, [new_event(f"o-{n}"), new_event(f"o-{n + 1}")])
        wait_until(lambda: sequenced(observer) == 60, "sixty events are in the log")
    factories.assert_log_holds_every_event_once(observer)


def test_the_loop_connects_again(orders: PlatformStore, dsn: str, observer: psycopg.Connection) -> None:
    ended = set[int]()

    def connected() -> bool:
        # between two polls a session may have run another query
        ended.update(sessions(observer))
        return bool(ended)

    with sequencer(dsn):
        wait_until(connected, "the loop is connected")
        for session in ended:
            terminate(observer, session)
        append(orders)
        wait_until(lambda: sequenced(observer) == 1, "the event is in the log")
        assert ended.isdisjoint(sessions(observer))


def test_it_stops_while_all_is_away(tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = tmp_path_factory.mktemp("none")
    stop = threading.Event()
    running = start(lambda: run_sequencer(f"postgresql://postgres@/none?host={nowhere}", stop))
    wait_until(lambda: "Retrying" in caplog.text, "it says that it tries again")
    stop.set()
    assert running.result(patience()) is None


def test_a_view_that_is_deleted_between_two_looks_does_not_end_the_loop(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.register_view("fleeting", "-infinity")
    orders.register_view("staying", "-infinity")
    dispatch: Callable[[PlatformStore, str], int] = PlatformStore.dispatch_events

    def deleted_first(self: PlatformStore, view: str) -> int:
        self.connection.execute("delete from event_store.views where view = 'fleeting'")
        return dispatch(self, view)

    monkeypatch.setattr(PlatformStore, "dispatch_events", deleted_first)
    append(orders)
    with sequencer(dsn):
        locked = "select view from event_store.stream_locks"
        wait_until(lambda: rows(observer, locked) == [("staying",)], "the view that is left has its lock")


@pytest.mark.parametrize("sqlstate", ["54000", "23514", "57014", "MR099"])
def test_an_error_in_one_view_holds_nobody_else_up(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, sqlstate: str
) -> None:
    monkeypatch.setattr("millrace.sequencer.PATIENCE_S", 0.05)
    for view in ("bad", "good"):
        orders.register_view(view, "-infinity")
    observer.execute(
        "create function event_store.fail() returns trigger language plpgsql as"
        f" $$ begin raise exception 'no room' using errcode = '{sqlstate}'; end $$;"
        "create trigger fail before insert on event_store.stream_locks for each row when (new.view = 'bad')"
        " execute function event_store.fail()".encode()
    )

    def handed_over(view: str) -> int:
        return int(value(observer, "select count(*) from event_store.stream_locks where view = %s", view))

    with sequencer(dsn) as running:
        append(orders, "o-1")
        wait_until(lambda: running.done() or handed_over("good") == 1, "the other view has its lock")
        assert not running.done(), running.exception()
        wait_until(lambda: [each.kind for each in orders.standing()] == ["not_dispatched"], "it is told")
        (problem,) = orders.standing()
        assert (problem.subject, problem.cause[-7:]) == ("bad", "no room")
        append(orders, "o-2")
        wait_until(lambda: handed_over("good") == 2, "and so it goes on")
        assert handed_over("bad") == 0
        assert not running.done()
        observer.execute("drop trigger fail on event_store.stream_locks")
        wait_until(lambda: handed_over("bad") == 2, "it is tried again")
        wait_until(lambda: orders.standing() == [], "it is told no more")


def test_a_view_that_fails_again_is_tried_later_and_later(
    orders: PlatformStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def fail(self: PlatformStore, view: str) -> int:
        tries.append(view)
        return int(value(self.connection, "select 1 / 0"))

    monkeypatch.setattr(PlatformStore, "dispatch_events", fail)
    orders.register_view("v")
    rounds, pauses = _Rounds(orders.connection), []
    for _ in range(8):
        rounds.aside = {view: (pause_s, 0.0) for view, (pause_s, _) in rounds.aside.items()}
        rounds._want([WantingView("v", "o")])
        rounds._dispatch()
        rounds._want([WantingView("v", "o")])
        assert not rounds.pending
        pauses.append(rounds.aside["v"][0])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(tries) == 8


def test_a_database_without_the_store_ends_the_loop_with_its_reason(dsn: str, observer: psycopg.Connection) -> None:
    observer.execute("drop schema event_store, event_store_platform, event_store_private cascade")
    with pytest.raises(psycopg.errors.InvalidSchemaName):
        run_sequencer(dsn, threading.Event())


def test_it_ends_transactions_of_producers_after_their_deadline(
    dsn: str, orders: PlatformStore, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ProducerStore(orders.connection)
    store.register_producer("p")
    set_clock(orders.connection, "2020-01-01 00:00:00+00")  # the loop's clock is at today
    store.begin_transaction("p", 0, 1, 0)
    with sequencer(dsn):
        wait_until(lambda: store.producer_statistics("p")[0].expired == 1, "the transaction has expired")
        # and again after a while
        assert store.begin_transaction("p", 0, 1, 0).status == "opened"
        assert value(observer, "select count(*) from event_store.transactions where state = 'open'") == 1
    monkeypatch.setattr("millrace.sequencer.PATIENCE_S", 0.05)
    with sequencer(dsn):
        wait_until(lambda: store.producer_statistics("p")[0].expired == 2, "the transaction has expired")
        store.begin_transaction("p", 0, 1, 0)
        wait_until(lambda: store.producer_statistics("p")[0].expired == 3, "the transaction has expired, too")


def asleep(observer: psycopg.Connection) -> bool:
    return bool(value(observer, "select mod(last_value, 2) = 1 from event_store.attended_seq"))


@pytest.fixture
def sleeping(orders: PlatformStore, dsn: str, observer: psycopg.Connection) -> Iterator[PlatformStore]:
    """Yield a store with a sleeping sequencer, which wakes by itself only after minutes."""
    unprepared(observer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace.sequencer.PAUSE_S", 600)
        with sequencer(dsn, pause_s=0.2):
            wait_until(lambda: asleep(observer), "the sequencer sleeps")
            yield orders


def test_an_append_wakes_a_loop_that_sleeps(sleeping: PlatformStore, observer: psycopg.Connection) -> None:
    for n in range(1, 4):
        append(sleeping, f"o-{n}")
        wait_until(lambda n=n: sequenced(observer) == n, "the event has its position")  # type: ignore[misc]
        wait_until(lambda: asleep(observer), "the sequencer sleeps again")


def test_what_is_committed_while_it_falls_asleep_is_not_left(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time before it records its sleep, an event is committed by a transaction that could not see the record."""
    unprepared(observer)
    monkeypatch.setattr("millrace.sequencer.PAUSE_S", 600)
    attend, appended = PlatformStore.attend_log, list[Event]()

    def after_an_append(self: PlatformStore, attended_s: int, sleeps: bool = False) -> bool:
        if sleeps and len(appended) < 5:
            appended.append(append(orders, f"o-{len(appended)}"))
        return attend(self, attended_s, sleeps)

    monkeypatch.setattr(PlatformStore, "attend_log", after_an_append)
    with sequencer(dsn, pause_s=0.2):
        wait_until(lambda: sequenced(observer) == 5, "no event waits for the end of a sleep")


def test_what_began_before_the_sleep_comes_soon(
    orders: PlatformStore, dsn: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    unprepared(observer)
    monkeypatch.setattr("millrace.sequencer.PAUSE_S", 600)
    writer = orders
    writer.connection.autocommit = False
    append(writer)  # no sequencer attends the log yet: the append notifies none
    with sequencer(dsn, pause_s=0.2):
        wait_until(lambda: asleep(observer), "the sequencer sleeps")
        writer.connection.commit()
        wait_until(lambda: sequenced(observer) == 1, "the event has its position")


def test_a_loop_that_lost_its_ear_listens_again(sleeping: PlatformStore, observer: psycopg.Connection) -> None:
    (pid,) = listeners(observer, APPENDED)
    terminate(observer, pid)
    append(sleeping, "o-1")
    wait_until(lambda: sequenced(observer) == 1, "the event has its position")
    wait_until(lambda: len(listeners(observer, APPENDED)) == 1 and asleep(observer), "it sleeps again")
    append(sleeping, "o-2")
    wait_until(lambda: sequenced(observer) == 2, "the next one, too")


def test_after_the_loop_nobody_is_said_to_attend_the_log(dsn: str, observer: psycopg.Connection) -> None:
    with sequencer(dsn):
        wait_until(lambda: value(observer, "select event_store_platform.is_attended()"), "it attends the log")
    assert value(observer, "select event_store_platform.is_attended()") is False


def test_who_waits_is_woken_for_what_a_consumer_sequenced(sleeping: PlatformStore, dsn: str) -> None:
    with Wakeups(dsn) as positions:
        append(sleeping, "o-1")
        sleeping.sequence_events()  # whichever sequencer is first
        assert positions.wait(patience())


def test_behind_a_pooler_the_loop_polls(orders: PlatformStore, dsn: str, observer: psycopg.Connection) -> None:
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    unprepared(observer)
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(dsn, Path(folder), 2) as address,
        sequencer(address),
    ):
        for n in range(1, 4):
            append(orders, f"o-{n}")
            wait_until(lambda n=n: sequenced(observer) == n, "the event has its position")  # type: ignore[misc]
        assert not asleep(observer)
