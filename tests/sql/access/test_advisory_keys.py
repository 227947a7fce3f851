"""A login without any privilege takes every advisory key and any session name: it blocks nothing."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import date
from typing import LiteralString

import psycopg
import pytest

from millrace.capture.store import CaptureStore
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.reports import replace_day
from tests.support.capturing.captures import Source
from tests.support.factories import Connect, append, rows, start, unprepared, value
from tests.support.logins import logins
from tests.support.patience import patience, wait_until

# any reader of the functions could compute these keys
KEYS: tuple[LiteralString, ...] = (
    *(
        f"select pg_advisory_lock(hashtextextended('{key}', 0))"
        for key in (
            "event_store.views v", "event_store.views b", "read_models.m", "event_store.history", "event_store.migrations",
            "reports.daily", "event_store.archive.0", "event_store.archive.1",
        )
    ),
    "select pg_advisory_lock(hashtext('event_store_platform.attach_consumer'), hashtext('v'))",
    "select pg_advisory_lock_shared(hashtext('event_store_platform.attach_consumer'), hashtext('b'))",
)  # fmt: skip


COLUMNS = {"day": ("date", "The day."), "n": ("int", "A number.")}


@pytest.fixture
def stranger(orders: PlatformStore) -> Iterator[psycopg.Connection]:
    """Yield a login without roles that holds every key that it can compute."""
    with logins(orders.connection) as login:
        connection = login("event_store_reader")
        orders.connection.execute(f"revoke event_store_reader from {connection.info.user}".encode())
        for key in KEYS:
            connection.execute(key)
        yield connection


def soon(work: Callable[[], object]) -> object:
    """Do the work within a limit: waiting for the stranger would take for ever."""
    done: Future[object] = start(work)
    return done.result(patience())


def test_reports_are_made_and_databases_migrated(orders: PlatformStore, stranger: psycopg.Connection) -> None:
    """Not here: the store's functions (below)."""
    assert not stranger.closed
    day = date(2026, 1, 5)
    assert soon(lambda: replace_day(orders.connection, "reports.daily", COLUMNS, day, [{"n": 1}])) == 1
    orders.connection.execute("update event_store.migrations set name = 'another version' where version = 0")
    soon(lambda: migrate(orders.connection.info.dsn))


def test_a_full_queue_of_words_fails_no_append(orders: PlatformStore, stranger: psycopg.Connection, dsn: str) -> None:
    if stranger.info.server_version < 170000:
        pytest.skip("Before Postgres 17 the queue is 8 GB, which no test fills.")
    unprepared(orders.connection)
    with psycopg.connect(dsn, user=stranger.info.user) as deaf:
        deaf.execute("listen anything")
        deaf.commit()
        deaf.execute("select 1")  # in a transaction it receives no notification
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            stranger.execute("select pg_notify('anything', n || repeat('x', 7000)) from generate_series(1, 1000) n")
        orders.attend_log(10, sleeps=True)
        append(orders)
        assert orders.sequence_events() == 1
        assert sum(orders.announce_positions([])) == 1
    # asking also empties the queue: other tests use the server
    wait_until(lambda: value(orders.connection, "select pg_notification_queue_usage()") == 0, "the queue is empty")


def test_no_function_takes_an_advisory_key(orders: PlatformStore) -> None:
    taking: LiteralString = """
        select oid::regprocedure::text from pg_proc
        where pronamespace::regnamespace::text ~ '^event_store' and prosrc ~ 'pg_\\w*advisory'
    """
    assert rows(orders.connection, taking) == []


def test_two_that_make_a_report_make_it_once(connect: Connect) -> None:
    first = connect(autocommit=False)
    replace_day(first, "reports.daily", COLUMNS, date(2026, 1, 5), [{"n": 1}])
    second = connect()
    late = start(lambda: replace_day(second, "reports.daily", COLUMNS, date(2026, 1, 6), [{"n": 2}]))
    first.commit()
    assert late.result(patience()) == 2


def test_a_session_that_says_it_is_a_captures_is_left(orders: PlatformStore, stranger: psycopg.Connection) -> None:
    stranger.execute("set application_name = 'millrace capture c'")
    source = Source(CaptureStore(orders.connection))
    source.begin()
    former = psycopg.connect(orders.connection.info.dsn, autocommit=True, application_name="millrace capture c")
    CaptureStore(former).join_capture("c", source.lease.lease_token)
    # a session with the pid and the name of the capture's former session is not ended either
    before = "update event_store.capture_sessions set session_began_at = session_began_at - interval '1 s'"
    orders.connection.execute(before)
    assert source.store.end_capture_sessions("c", source.lease.lease_token) == 0
    CaptureStore(former).join_capture("c", source.lease.lease_token)
    assert source.store.end_capture_sessions("c", source.lease.lease_token) == 1
    with pytest.raises(psycopg.OperationalError):
        former.execute("select 1")
    assert value(stranger, "select 1") == 1
    assert source.store.end_capture_sessions("c", source.lease.lease_token) == 0
