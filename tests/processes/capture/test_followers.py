"""A follower that continues after restarts of both its servers."""

import psycopg

from millrace.capture.declaration import Capture, CapturedTable
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support.capturing.captured import ITEMS, Captured, did
from tests.support.capturing.following import arrived, followed
from tests.support.capturing.sources import Source
from tests.support.running.own_server import own_server


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
