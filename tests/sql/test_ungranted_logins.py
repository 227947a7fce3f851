"""A login without any right to the store holds nothing up: no advisory key, no name of a session."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import date

import psycopg
import pytest

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.capture.store import CaptureStore
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate
from millrace.resources.reports import replace_day
from tests.support.capturing.captures import Source
from tests.support.factories import Connect, append_to, rows, start, value
from tests.support.logins import logins
from tests.support.patience import patience

KEYS = (
    "event_store.history",
    "event_store.migrations",
    "reports.daily",
    *(f"event_store.archive.{n}" for n in range(16)),
)


@pytest.fixture
def stranger(orders: EventStore) -> Iterator[psycopg.Connection]:
    """Yield a login with no role that holds every key which it can compute."""
    with logins(orders.connection) as login:
        connection = login("event_store_reader")
        orders.connection.execute(f"revoke event_store_reader from {connection.info.user}".encode())
        for key in KEYS:
            connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (key,))
        yield connection


def soon(work: Callable[[], object]) -> object:
    """Do it within a while: waiting for the stranger would be for ever."""
    done: Future[object] = start(work)
    return done.result(patience())


def test_history_is_placed_in_and_shortened(orders: EventStore, stranger: psycopg.Connection) -> None:
    assert stranger
    append_to(orders, "o-1")
    orders.sequence_events()
    soon(lambda: orders.register_view("v", "-infinity"))
    soon(lambda: orders.seek_view("v", "RESET_TO_LATEST"))
    archive = ArchiveStore(orders.connection)
    ((partition,),) = rows(orders.connection, "select partition from event_store.event_log")
    assert archive.lock_archive(partition, "me")
    archive.mark_archived(partition, 1)
    assert archive.raise_low_water_mark(partition, 1) == 1


def test_a_database_is_migrated(stranger: psycopg.Connection, dsn: str) -> None:
    assert stranger
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update event_store.migrations set name = 'another version' where version = 0")
    soon(lambda: migrate(dsn))


def test_a_report_is_written(orders: EventStore, stranger: psycopg.Connection) -> None:
    assert stranger
    day = date(2026, 1, 5)
    columns = {"day": ("date", "The day."), "n": ("int", "A number.")}
    assert soon(lambda: replace_day(orders.connection, "reports.daily", columns, day, [{"n": 1}])) == 1


def test_two_that_make_a_report_make_it_once(connect: Connect) -> None:
    columns = {"day": ("date", "The day."), "n": ("int", "A number.")}
    first = connect(autocommit=False)
    replace_day(first, "reports.daily", columns, date(2026, 1, 5), [{"n": 1}])
    second = connect()
    late = start(lambda: replace_day(second, "reports.daily", columns, date(2026, 1, 6), [{"n": 2}]))
    first.commit()
    assert late.result() == 2


def test_a_session_that_calls_itself_a_captures_is_not_touched(
    orders: EventStore, stranger: psycopg.Connection
) -> None:
    stranger.execute("set application_name = 'millrace capture c'")
    source = Source(CaptureStore(orders.connection))
    source.begin()
    former = psycopg.connect(orders.connection.info.dsn, autocommit=True, application_name="millrace capture c")
    CaptureStore(former).join_capture("c", source.lease.lease_token)
    assert source.store.end_capture_sessions("c", source.lease.lease_token) == 1
    with pytest.raises(psycopg.OperationalError):
        former.execute("select 1")
    assert value(stranger, "select 1") == 1
    assert source.store.end_capture_sessions("c", source.lease.lease_token) == 0
