"""Many clients behind a pool append concurrently: none waits for another client's stream, and none deadlocks."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.crowd import SHARED, Crowd, Waits, append_as
from tests.support.factories import Connect, register_orders, rows
from tests.support.views.pooler import PROGRAM, pooled

CROWD = Crowd(clients=50, appends=20, streams=1000, shared=3, shared_part=0.3)
SESSIONS = 12


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
def test_50_clients_wait_for_a_stream_only_if_they_share_it(dsn: str, store: PlatformStore, connect: Connect) -> None:
    register_orders(store)
    waits = Waits()
    # not pytest's tmp_path, whose long path does not fit a unix socket, and which another account cannot reach
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(dsn, Path(folder), SESSIONS) as address,
        ThreadPoolExecutor(1) as pool,
    ):
        crowd = pool.submit(append_as, CROWD, address, 0, CROWD.clients)
        waits.watch(connect(), crowd.done)
        done = crowd.result()  # a deadlock would have raised
    assert done.events == CROWD.clients * CROWD.appends
    assert done.conflicts > 0
    # a growing file is locked briefly
    assert {(lock, query) for lock, query in waits.others if lock != "extend"} == set()
    assert rows(store.connection, "select count(*) from event_store.events") == [(done.events,)]
    broken = """
        select e.decider_id from (
          select *, lag(event_id) over (partition by decider_id, decider order by "offset") as before
          from event_store.events
        ) e
        where e.previous_id is distinct from e.before
    """
    assert rows(store.connection, broken) == []
    shared = f"select count(distinct decider_id) from event_store.events where starts_with(decider_id, '{SHARED}-')"
    assert rows(store.connection, shared) == [(CROWD.shared,)]
