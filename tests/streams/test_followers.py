"""Many readers, and readers that lose their connection, their server or their store: each table equals the model's."""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import psycopg
import pytest

from millrace.sequencer import run_sequencer
from millrace.streams import sse
from millrace.streams.followers import Followers
from tests.streams.support import Rows, Table, client_at, parsed
from tests.support.factories import Connect, terminate
from tests.support.patience import patience, wait_until

FOLLOWERS, CHANGES = 200, 20
KILLS, STEPS = 2, 12


@contextmanager
def sequencing(dsn: str) -> Iterator[None]:
    """Give positions to events during the block, and tell readers."""
    stop = Event()
    thread = Thread(target=run_sequencer, args=(dsn, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def process(dsn: str) -> Iterator[httpx.Client]:
    """Yield a client of a `millrace run streams`, which is killed in the end."""
    command: list[str | Path] = [Path(sys.executable).with_name("millrace"), "run", "streams", "--dsn", dsn]
    environment = {**os.environ, "MILLRACE_STREAMS_PORT": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            found = re.search(r":(\d+)/", running.stdout.readline())
            assert found is not None
            with client_at(found[1], dsn) as client:
                yield client
        finally:
            running.send_signal(signal.SIGKILL)


def test_readers_that_stand_together_share_each_read(
    rows: Rows, client: httpx.Client, followers: Followers, dsn: str
) -> None:
    ready = list[int]()

    def follow(_: int) -> dict[str, str]:
        table = Table(client)
        begun = False

        def enough() -> bool:
            nonlocal begun
            if not begun:
                begun = True
                ready.append(1)
            return "last" in table.rows

        table.follow(enough)
        return table.rows

    with ThreadPoolExecutor(FOLLOWERS) as threads, sequencing(dsn):
        found = [threads.submit(follow, number) for number in range(FOLLOWERS)]
        wait_until(lambda: len(ready) == FOLLOWERS, "all follow")
        before = followers.reads
        for number in range(CHANGES):
            rows.merge(f"day {number % 5}")
        rows.merge("last")
        tables = [each.result(patience()) for each in found]
        reads = followers.reads - before
    assert all(table == rows.present() for table in tables)
    # apart, each reader would read for each change
    assert reads < FOLLOWERS * CHANGES / 20


def test_a_reader_goes_on_where_its_connection_ended(rows: Rows, client: httpx.Client) -> None:
    table = Table(client)
    for day in ("mon", "tue", "sun"):
        rows.merge(day)
        rows.sequence()
        table.follow(lambda: table.rows == rows.present())
    # the last event that it heard counts, not the offset of its address
    assert (table.resets, table.rows) == (0, rows.present())


def killed_commit(rows: Rows, observer: psycopg.Connection, day: str) -> None:
    """Let a drain die in its transaction."""
    with rows.connection.transaction():
        rows.merge(day)
        terminate(observer, rows.connection.info.backend_pid)
        rows.connection.execute("select")


class Changes:
    """Random changes of the rows, by a drain that dies now and then."""

    def __init__(self, seed: int, connect: Connect) -> None:
        self.steps = random.Random(seed)
        self.connect, self.observer, self.rows = connect, connect(), Rows(connect())

    def make(self) -> None:
        """Make one."""
        days = [f"day {self.steps.randrange(6)}" for _ in range(self.steps.randrange(1, 4))]
        kind = self.steps.randrange(8)
        if kind == 0:
            self.rows.replace()
            return
        if kind == 1:
            with pytest.raises(psycopg.OperationalError):
                killed_commit(self.rows, self.observer, days[0])
            self.rows = Rows(self.connect(), self.rows.number)
        self.rows.merge(*days)


@pytest.mark.parametrize("seed", range(2))
def test_a_table_equals_the_model_through_kills(seed: int, dsn: str, connect: Connect) -> None:
    changes = Changes(seed, connect)
    left = KILLS * STEPS

    def made() -> bool:
        nonlocal left
        if left:
            changes.make()
            left -= 1
        return left % STEPS == 0 or changes.steps.randrange(9) == 0

    with sequencing(dsn), process(dsn) as first:
        table = Table(first)
        table.follow(made)
    with sequencing(dsn):
        while left:
            # the process dies while changes are on their way
            with process(dsn) as table.client:
                table.follow(made)
        with process(dsn) as table.client:
            table.follow(lambda: table.rows == changes.rows.present())
    assert table.rows == changes.rows.present()


def test_server_sent_events_are_as_browsers_read_them(rows: Rows, client: httpx.Client) -> None:
    assert rows.number == 1
    with client.stream("GET", "/models/by_day?offset=now&live=sse") as answer:
        headers = answer.headers
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"
        kind, offset, data = next(parsed(lines))
    assert (kind, f'"streamNextOffset":"{offset}"' in data, '"upToDate":true' in data) == ("control", True, True)
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["x-accel-buffering"], headers.get("content-encoding")) == ("no", None)


def test_a_quiet_connection_is_kept_alive_and_ends(
    rows: Rows, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows.number == 1
    monkeypatch.setattr(sse, "WATCH_S", 0.01)
    with client.stream("GET", "/models/by_day?offset=now&live=sse") as answer:
        assert ":" in answer.iter_lines()
    monkeypatch.setattr(sse, "PATIENCE_S", 0)
    with client.stream("GET", "/models/by_day?offset=now&live=sse") as answer:
        assert [kind for kind, _, _ in parsed(answer.iter_lines())] == ["control"]


def test_readers_outlast_sessions_that_end(rows: Rows, client: httpx.Client, connect: Connect) -> None:
    offset = client.get("/models/by_day").headers["stream-next-offset"]
    observer = connect()
    for (pid,) in observer.execute(
        "select pid from pg_stat_activity where datname = current_database() and pid not in (pg_backend_pid(), %s)",
        (rows.connection.info.backend_pid,),
    ).fetchall():
        terminate(observer, pid)
    rows.merge("mon")
    rows.sequence()
    url = f"/models/by_day?offset={offset}"
    # while it hears of no revocation it answers none
    wait_until(lambda: client.get(url).status_code == 200, "it answers again")
    assert [each["key"] for each in client.get(url).json()] == ["mon"]
