"""Followers as processes of their own that are killed, and both servers under one that goes on."""

import sys
from signal import SIGKILL
from subprocess import Popen

import psycopg

from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import ITEMS, Captured, captured, did, new_source
from tests.support.capturing.following import arrived, followed
from tests.support.capturing.sources import Source
from tests.support.factories import rows, value
from tests.support.patience import wait_until
from tests.support.running.own_server import own_server

__all__ = ["captured", "new_source"]

# a process of its own, so that it can be killed as the machine would
FOLLOW = """
import sys, threading
from millrace.resources.capture.declaration import Capture, CapturedTable
from millrace.resources.capture.follow import follow
source, store = sys.argv[1:]
follow(store, Capture("shop", lambda: source, (CapturedTable("items"),)), threading.Event())
"""
EVENTS = "select count(*) from event_store.events where event = 'inserted'"


def emitted(captured: Captured, before: int) -> None:
    """Wait until there are more events of inserts than before."""
    wait_until(lambda: value(captured.store, EVENTS) > before, "some are events")


def test_killed_again_and_again_each_change_is_one_event(captured: Captured) -> None:
    captured.drain()
    for turn in range(3):
        captured.source.run(
            f"do $$ begin for n in 0..149 loop insert into items select {turn} * 15000 + n * 100 + m, 'a' from"
            " generate_series(1, 100) m; commit; end loop; end $$"
        )
        before: int = value(captured.store, EVENTS)
        with Popen([sys.executable, "-c", FOLLOW, captured.source.dsn, captured.dsn]) as process:
            try:
                emitted(captured, before)
            finally:
                process.kill()
        assert process.returncode == -SIGKILL
        # its lease has ended for whoever looks: it said nothing for so long
        captured.store.execute(
            "update event_store.captures set leased_until = event_store_private.clock() - interval '1 s'"
        )
    captured.drain()
    assert rows(captured.store, "select count(*), count(distinct decider_id) from event_store.events") == [
        (45_000, 45_000)
    ]
    assert captured.replayed() == captured.table()


def test_both_servers_may_restart(postgres: EmbeddedPostgres) -> None:
    with own_server("store", programs=postgres.programs) as server:
        server.create_database("source")
        capture = Capture("shop", lambda: server.dsn("source"), (CapturedTable("items"),))
        source = Source(server.dsn("source"), "source")
        source.run(ITEMS)
        with psycopg.connect(server.dsn("store"), autocommit=True) as store:
            before = Captured(source, capture, server.dsn("store"), store)
            with followed(before, lease_s=2) as done:
                source.run("insert into items values (1, 'a')")
                arrived(before, "[1]")
                source.connection.close()
                server.stop()
                server.start()
                source = Source(server.dsn("source"), "source")
                source.run("insert into items values (2, 'a')")
                with psycopg.connect(server.dsn("store"), autocommit=True) as again:
                    after = Captured(source, capture, server.dsn("store"), again)
                    arrived(after, "[2]")
                    assert len(did(after)) == 2
                    assert not done.done()
        source.connection.close()
