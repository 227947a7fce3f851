"""A capture needs direct sessions: behind a pool in transaction mode it says so, and does nothing."""

import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from millrace.capture.follow import follow
from millrace.capture.store import CaptureStore
from millrace.postgres.sessions import SessionsShared
from tests.support.capturing.captured import Captured, did
from tests.support.factories import at_once, rows, start, value
from tests.support.patience import patience, wait_until
from tests.support.views.pooler import PROGRAM, pooled

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")


@pytest.mark.parametrize(
    ("sessions", "settings"), [(1, ""), (5, ""), (5, "server_round_robin = 1")], ids=["one", "five", "five in turn"]
)
def test_following_through_a_pool_of_transactions_is_refused(captured: Captured, sessions: int, settings: str) -> None:
    lent = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    others = rows(captured.store, lent)
    # not pytest's tmp_path, whose long path does not fit a unix socket, and which another account cannot reach
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(captured.dsn, Path(folder), sessions, settings=settings) as address,
    ):

        def hold() -> None:
            with psycopg.connect(address, prepare_threshold=None) as connection:
                connection.execute("select 1")
                there.wait()

        # all sessions are open before the capture starts
        there = threading.Barrier(sessions, timeout=patience())
        for held in at_once([hold] * sessions):
            held.result()
        found = rows(captured.store, lent)
        assert len(set(found) - set(others)) == sessions
        with pytest.raises(SessionsShared, match=r"(?s)any session.*MILLRACE_DSN name the server itself.*session mode"):
            follow(address, captured.capture, threading.Event())
        assert rows(captured.store, lent) == found
        # nothing was begun, and no other session got its settings
        assert CaptureStore(captured.store).capture_info() == []
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as other:
            assert {value(other, "show lock_timeout") for _ in range(2 * sessions)} == {"0"}


def test_a_follower_behind_a_pool_in_session_mode_captures(captured: Captured) -> None:
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(captured.dsn, Path(folder), 10, mode="session") as address,
    ):
        through = replace(captured, dsn=address)
        captured.source.run("insert into items values (1, 'a')")
        through.drain()
        done = start(lambda: follow(address, captured.capture, stop))
        try:
            captured.source.run("insert into items values (2, 'b')")
            wait_until(lambda: did(captured) == [("inserted", "[2]")], "it follows")
        finally:
            stop.set()
        done.result(patience())
