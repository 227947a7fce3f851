"""Faults around a consumer: handlers that hang, unreadable events, sessions that end.

Not here: servers that restart, poolers (tests/processes/handlers/test_servers.py).
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import wraps

import psycopg
import pytest

from millrace.errors import HandlersHang, TryLater
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.handlers.declaration import Refused
from millrace.handlers.handling import TRIES
from millrace.handlers.lasting_connection import LastingConnection
from millrace.handlers.log_lines import Counters
from tests.handlers.test_consume import handled_by
from tests.support.factories import Connect, new_event, rows, start, value
from tests.support.hostile_json import UNREADABLE, append_text
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events
from tests.support.views.consuming import Seen, consuming, fill, owed, wait_consumed, wait_locked, wait_waking


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Return a function that finds the log lines with a given beginning."""
    caplog.set_level(logging.INFO, "millrace.consumers")
    return lambda words: [line for line in caplog.messages if line.startswith(words)]


def test_locks_of_handlers_that_work_are_extended(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    fill(orders, 1, 2)
    attempts: list[int] = []
    go_on = threading.Event()

    def handle(event: Delivery) -> None:
        attempts.append(event.attempt)
        assert go_on.wait(patience())

    other = PlatformStore(connect())
    with consuming(dsn, handled_by(handle, lock_timeout_s=2)) as running:
        wait_until(lambda: running.counters["v"].extended >= 4, "more than two seconds passed")
        assert other.lease_events("v", 10) == []
        go_on.set()
        wait_consumed(orders, "v")
    assert attempts == [1, 1]


def test_what_waits_for_a_thread_too_long_is_given_back(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    fill(orders, 4, 1)
    begun, go_on = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        begun.set()
        assert go_on.wait(patience())

    other = PlatformStore(connect())
    taken: list[int] = []

    def others_have_three() -> bool:
        taken.extend(event.offset for event in other.lease_events("v", 10))
        return len(taken) == 3

    with consuming(dsn, handled_by(handle, lock_timeout_s=2, concurrency=1)) as running:
        assert begun.wait(patience())
        wait_until(others_have_three, "the others are given back")
        assert owed(orders, "v") == 4
        assert other.ack_events("v", taken) == set(taken)
        go_on.set()
        wait_consumed(orders, "v")
    assert (running.counters["v"].handled, running.counters["v"].failed) == (1, 0)


def test_a_handler_that_hangs_fails_its_event(
    orders: PlatformStore, dsn: str, said: Callable[[str], list[str]]
) -> None:
    fill(orders, 8, 3)
    seen = Seen()
    forever = threading.Event()
    hung: list[int] = []

    def handle(event: Delivery) -> None:
        if event.decider_id == "s-4":
            hung.append(event.attempt)
            forever.wait()
        seen.add(event)

    with consuming(dsn, handled_by(handle, concurrency=2, timeout_s=2, max_attempts=3)) as running:
        wait_waking(orders, lambda: bool(orders.dead_letters("v")), "the stream is parked")
        wait_until(lambda: owed(orders, "v") == 3, "all others are consumed")
    # no second handler of the stream beside the first
    assert hung == [1]
    (letter,) = orders.dead_letters("v")
    assert (letter.decider_id, letter.attempts, letter.waiting) == ("s-4", 3, 3)
    assert "still runs in thread v handler" in letter.last_error
    (line,) = said("handler hangs")
    assert "decider_id=s-4" in line
    assert 'thread="v handler ' in line
    assert (running.counters["v"].hung, running.counters["v"].handled) == (1, 21)
    assert len(seen.by_stream) == 7
    forever.set()


def test_a_handler_that_returns_late_counts_for_nothing(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 1, 1)
    go_on = threading.Event()

    def handle(_: Delivery) -> None:
        assert go_on.wait(patience())

    with consuming(dsn, handled_by(handle, timeout_s=0.2)) as running:
        wait_until(lambda: running.counters["v"].failed == 1, "it failed")
        go_on.set()
        wait_waking(orders, lambda: owed(orders, "v") == 0, "the next delivery is handled")
    assert running.counters["v"].handled == 1
    assert running.counters["v"].hung >= 1


def test_an_async_handler_that_takes_too_long_is_cancelled(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 1, 1)
    ended: list[str] = []

    async def handle(_: Delivery) -> None:
        try:
            await asyncio.sleep(patience() * 10)
        finally:
            ended.append("cancelled")

    with consuming(dsn, handled_by(handle, timeout_s=0.2, max_attempts=1)):
        wait_until(lambda: bool(orders.dead_letters("v")), "it is parked")
        wait_until(lambda: ended == ["cancelled"], "it is cancelled")


def test_a_statement_that_takes_too_long_is_cancelled(orders: PlatformStore, dsn: str) -> None:
    orders.connection.execute("create table mails (n int)")
    fill(orders, 1, 1)

    def handle(_: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (1)")
        connection.execute("select pg_sleep(600)")

    with consuming(dsn, handled_by(handle, timeout_s=0.2, max_attempts=1)):
        wait_until(lambda: bool(orders.dead_letters("v")), "it is parked")
        asleep = (
            "select from pg_stat_activity where query ~ 'pg_sleep' and state = 'active' and pid <> pg_backend_pid()"
        )
        wait_until(lambda: not rows(orders.connection, asleep), "the statement ended")
    assert rows(orders.connection, "select from mails") == []


def test_a_process_full_of_handlers_that_do_not_return_ends_and_says_so(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 20, 1)
    forever = threading.Event()

    def run() -> None:
        hangs = handled_by(lambda event: forever.wait() and event, concurrency=2, timeout_s=0.2)
        with consuming(dsn, hangs) as running:
            wait_until(running.ended.done, "it ends")

    with pytest.raises(HandlersHang, match="3 handlers of view v do not return"):
        run()
    forever.set()
    assert rows(orders.connection, "select from event_store.stream_locks where in_flight is not null") == []


def _plain(function: Callable[[Delivery], object]) -> Callable[[Delivery], object]:
    """Decorate a function with a decorator that expects a plain one."""

    @wraps(function)
    def called(event: Delivery) -> object:
        return function(event)

    return called


async def _works(event: Delivery) -> None:
    """Do work that is never awaited."""


def _yields(event: Delivery) -> Iterator[Delivery]:
    yield event


async def _yields_later(event: Delivery) -> AsyncIterator[Delivery]:
    yield event


async def _gives_more(event: Delivery) -> object:
    return _yields(event)


NEVER_RAN: dict[str, tuple[object, str]] = {
    "coroutine": (_plain(_works), "coroutine"),
    "generator": (_plain(_yields), "generator"),
    "async generator": (_plain(_yields_later), "async_generator"),
    "with a connection": (lambda event, _: _works(event), "coroutine"),
    "future": (lambda _: Future(), "Future"),
    "of a coroutine": (_gives_more, "generator"),
}


def test_an_event_fails_whose_handler_returns_before_its_code_ran(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 1, 1)
    with consuming(dsn, *(handled_by(each, view=view, max_attempts=1) for view, (each, _) in NEVER_RAN.items())):
        wait_until(lambda: len(orders.dead_letters()) == len(NEVER_RAN), "they are parked")
    for letter in orders.dead_letters():
        said = f"NeverRan: The function returned a {NEVER_RAN[letter.view][1]}: its code has not run to its end."
        assert said in letter.last_error


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Bare(TryLater):
    """Did not call its parent."""

    def __init__(self) -> None:
        pass


def _own_cause() -> Exception:
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_nothing_that_a_handler_raises_ends_a_worker(orders: PlatformStore, dsn: str, is_async: bool) -> None:
    raised: dict[str, tuple[Callable[[], BaseException], str]] = {
        "no-text": (Unspeakable, "Unspeakable: Its text cannot be shown: __str__ raised RuntimeError."),
        "exit": (lambda: SystemExit(3), "SystemExit: 3"),
        "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
        "generator-exit": (GeneratorExit, "GeneratorExit"),
        "base": (lambda: BaseException("of no kind"), "BaseException: of no kind"),
        "own-cause": (_own_cause, "ValueError: its own cause"),
        "said-nothing": (lambda: Refused(""), "Refused"),
        "refused-no-text": (lambda: Refused(Unspeakable()), "RuntimeError: no text"),
        "bare": (Bare, "AttributeError"),
        "never": (lambda: TryLater("later", after_s=float("inf")), "after_s is inf"),
        "no-number": (lambda: TryLater("later", after_s=float("nan")), "after_s is nan"),
        "past": (lambda: TryLater("later", after_s=-1), "after_s is -1"),
        "no-time": (lambda: TryLater("later", after_s="5"), "TypeError"),  # type: ignore[arg-type]
        "no-reason": (lambda: TryLater(None), "TypeError"),  # type: ignore[arg-type]
    }
    append_events(orders, (new_event(stream) for stream in (*raised, "good-1", "good-2")))
    seen = Seen()

    def handle(event: Delivery) -> None:
        if event.decider_id in raised:
            raise raised[event.decider_id][0]()
        seen.add(event)

    async def handle_async(event: Delivery) -> None:
        handle(event)

    # one thread: if the worker ended, the other streams' events would stay
    handler = handled_by(handle_async if is_async else handle, concurrency=1, max_attempts=1)
    with consuming(dsn, handler) as running:
        wait_until(lambda: owed(orders, "v") == len(raised), "the good ones are handled")
        wait_until(lambda: running.counters["v"].failed == len(raised), "the others failed")
    assert set(seen.by_stream) == {"good-1", "good-2"}
    errors = {letter.decider_id: letter.last_error for letter in orders.dead_letters("v")}
    assert errors.keys() == raised.keys()
    assert {stream: said in errors[stream] for stream, (_, said) in raised.items()} == dict.fromkeys(raised, True)


def test_suspects_of_a_crash_are_begun_one_at_a_time(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    fill(orders, 6, 1)
    orders.register_view("v", "-infinity")
    assert len(PlatformStore(connect()).lease_events("v", 10, ahead=True)) == 6
    # as after its lock_timeout_s
    orders.connection.execute("update event_store.stream_locks set locked_until = event_store_private.clock()")
    begun: list[tuple[str, list[str], int]] = []
    in_work = "select decider_id from event_store.stream_locks where view = 'v' and in_flight is not null and ahead = 0"

    def handle(event: Delivery) -> None:
        with psycopg.connect(dsn) as connection:
            streams = rows(connection, in_work)
        begun.append((event.decider_id, [stream for (stream,) in streams], event.attempt))

    with consuming(dsn, handled_by(handle, concurrency=6, max_attempts=1)) as running:
        wait_until(lambda: running.counters["v"].handled == 6, "all are handled")
        fill(orders, 6, 1, "later")
        orders.sequence_events()
        wait_until(lambda: running.counters["v"].handled == 12, "all that are no suspects, too")
    earlier = {stream for stream, _, _ in begun[:6]}
    assert earlier == {f"s-{n}" for n in range(6)}
    for stream, in_hand, attempt in begun[:6]:
        # an event handled before may still wait for its acknowledgement
        assert stream in in_hand
        assert set(in_hand) <= {each for each, _, _ in begun[: begun.index((stream, in_hand, attempt)) + 1]}
        assert attempt == 1


def test_a_lost_race_is_no_failed_attempt_whatever_wraps_it(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 3, 1)
    attempts: list[int] = []

    def handle(event: Delivery) -> None:
        attempts.append(event.attempt)
        if len(attempts) <= 3:
            try:
                raise psycopg.errors.SerializationFailure("could not serialize access")
            except psycopg.Error as error:
                if event.decider_id == "s-0":
                    raise
                raise RuntimeError("a library's error") from error

    with consuming(dsn, handled_by(handle, max_attempts=1)) as running:
        wait_waking(orders, lambda: owed(orders, "v") == 0, "all are handled")
    assert attempts == [1] * 6
    assert (running.counters["v"].failed, running.counters["v"].given_back) == (0, 3)


def test_a_race_that_is_lost_each_time_is_no_failed_attempt(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 1, 1)
    tries: list[int] = []

    def handle(event: Delivery, _: psycopg.Connection) -> None:
        tries.append(event.attempt)
        if len(tries) <= TRIES:
            raise psycopg.errors.DeadlockDetected("deadlock detected")

    with consuming(dsn, handled_by(handle, max_attempts=1)) as running:
        wait_waking(orders, lambda: owed(orders, "v") == 0, "it is handled")
    assert (tries, running.counters["v"].given_back) == ([1] * (TRIES + 1), 1)


def test_events_that_no_parser_takes_wait_alone(orders: PlatformStore, dsn: str) -> None:
    for name, text in UNREADABLE.items():
        append_text(orders, name, text)
    fill(orders, 10, 2)
    seen = Seen()

    def handle(event: Delivery) -> None:
        assert event.data is not None
        seen.add(event)

    with consuming(dsn, handled_by(handle, max_attempts=1)):
        orders.sequence_events()
        wait_until(lambda: len(orders.dead_letters("v")) == len(UNREADABLE), "they are parked")
        wait_until(lambda: owed(orders, "v") == len(UNREADABLE), "all others are consumed")
    seen.assert_each_once_in_order(10, 2)
    letters = orders.dead_letters("v")
    assert {letter.decider_id for letter in letters} == set(UNREADABLE)
    assert all(each.last_error.startswith("UnreadableData: Python cannot read this JSON") for each in letters)


def test_sessions_that_end_lose_nothing(orders: PlatformStore, dsn: str, said: Callable[[str], list[str]]) -> None:
    orders.connection.execute("create table mails (event_id uuid)")
    fill(orders, 40, 5)

    def handle(event: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (%s)", (event.event_id,))

    killed = 0
    kill = """
        select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    """
    with consuming(dsn, handled_by(handle, lock_timeout_s=1, max_attempts=1000)):
        orders.sequence_events()
        for share in (30, 80, 130):
            wait_until(lambda share=share: value(orders.connection, "select count(*) from mails") > share, "goes on")  # type: ignore[misc]
            killed += value(orders.connection, kill)
        wait_waking(orders, lambda: owed(orders, "v") == 0, "all are consumed")
    assert killed > 6
    assert rows(orders.connection, "select count(*), count(distinct event_id) from mails") == [(200, 200)]
    assert said("server is away")
    assert said("server is back")


def test_a_stop_waits_for_handlers_and_gives_back_what_none_began(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 6, 1)
    begun, go_on = threading.Barrier(3), threading.Event()

    def handle(_: Delivery) -> None:
        begun.wait(patience())
        assert go_on.wait(patience())

    with consuming(dsn, handled_by(handle, concurrency=2, max_attempts=1)) as running:
        begun.wait(patience())
        wait_until(lambda: running.counters["v"].leased >= 5, "more are leased than handled")
        running.stop.set()
        wait_locked(orders, "v", 2)
        go_on.set()
        wait_until(running.ended.done, "it ends")
    wait_locked(orders, "v", 0)
    counters = running.counters["v"]
    assert (counters.handled, counters.failed, counters.leased - counters.given_back) == (2, 0, 2)
    assert rows(orders.connection, "select from event_store.stream_locks where attempts > 0") == []


def test_a_call_that_exceeds_a_limit_of_the_server_is_not_sent_again(dsn: str) -> None:
    """It would exceed the limit every time, like a row that is too long for an index."""
    line = LastingConnection(dsn, "v", Counters())
    too_long = "do $$ begin raise exception 'too long' using errcode = '54000'; end $$"
    failing = start(lambda: line(lambda store: store.connection.execute(too_long)))
    try:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            failing.result(patience())
    finally:
        line.give_up()
        line.close()
