"""A drain needs its own sessions: behind a pool in transaction mode it refuses, and leaks no session settings."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from millrace.drain.as_of import build_as_of
from millrace.postgres.sessions import SessionsShared
from tests.support.building.drains import Counted, drain
from tests.support.building.lab import Lab
from tests.support.building.shared_drains import share
from tests.support.factories import value
from tests.support.views.pooler import PROGRAM, pooled

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")


def test_behind_a_pool_in_transaction_mode_nothing_is_built(lab: Lab) -> None:
    mark = lab.mark_log("now")
    # not pytest's tmp_path: its path is too long for a unix socket, and another account cannot reach it
    with tempfile.TemporaryDirectory(prefix="pool-") as folder, pooled(lab.dsn, Path(folder), 1) as address:
        doors: list[Callable[[], object]] = [
            lambda: drain(address, lab.spark, Counted),
            lambda: share(address, lab.spark, [Counted]),
            lambda: build_as_of(address, Counted, lab.session, mark),
        ]
        for door in doors:
            with pytest.raises(SessionsShared, match=r"(?s)any session.*drains need.*MILLRACE_DSN.*in session mode"):
                door()
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as other:
            limit = "show idle_in_transaction_session_timeout"
            assert value(other, limit) == lab.value(limit)


def test_behind_a_pool_in_session_mode_a_drain_builds(lab: Lab) -> None:
    lab.fill(40)
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(lab.dsn, Path(folder), 10, mode="session") as address,
    ):
        drain(address, lab.spark, Counted)
    lab.is_clean(Counted)
