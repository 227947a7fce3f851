"""A capture needs sessions of its own on its source: behind a pool in transaction mode it is refused."""

import tempfile
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from millrace.capture.health import capture_health
from millrace.postgres.sessions import SessionsShared
from tests.support.capturing.captured import Captured
from tests.support.factories import value
from tests.support.views.pooler import PROGRAM, pooled

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")


@pytest.mark.parametrize(
    ("sessions", "settings"), [(1, ""), (5, ""), (5, "server_round_robin = 1")], ids=["one", "five", "five in turn"]
)
def test_a_source_behind_a_pool_of_transactions_is_refused(captured: Captured, sessions: int, settings: str) -> None:
    captured.drain()
    shown = ("lock_timeout", "statement_timeout", "row_security", "synchronous_commit", "timezone", "datestyle")
    theirs = {name: value(captured.source.connection, f"show {name}") for name in shown}
    slots = "select count(*) from pg_replication_slots"
    before = captured.rows(slots)
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(captured.source.dsn, Path(folder), sessions, settings=settings) as address,
    ):
        through = replace(captured, capture=replace(captured.capture, source=lambda: address))
        with pytest.raises(SessionsShared, match=r"(?s)source is reached.*the capture's source name the server itself"):
            through.drain()
        with pytest.raises(SessionsShared):
            capture_health(captured.dsn, through.capture)
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as other:
            for name, setting in theirs.items():
                assert {value(other, f"show {name}") for _ in range(2 * sessions)} == {setting}, name
    assert captured.rows(slots) == before
