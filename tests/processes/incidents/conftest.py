"""Separate servers for an incident, each with an empty store and few connections."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from millrace.event_store.migrations import migrate
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres

DEBIAN = Path("/usr/lib/postgresql/15/bin")
STORE = "store"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(PROGRAMS, id="embedded"),
        pytest.param(DEBIAN, id="debian", marks=pytest.mark.skipif(not DEBIAN.exists(), reason=f"no {DEBIAN}")),
    ],
)
def programs(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[EmbeddedPostgres, str], EmbeddedPostgres]]:
    """Yield a function that makes a store on a server with these settings; stop the servers at the end."""
    with ExitStack() as stack:

        def start(server: EmbeddedPostgres, settings: str) -> EmbeddedPostgres:
            server.start()
            stack.callback(server.stop)
            with (server.data / "postgresql.conf").open("a") as conf:
                conf.write(f"\n{settings}\n")
            server.stop()
            server.start()
            server.create_database(STORE)
            migrate(server.dsn(STORE))
            with psycopg.connect(server.dsn(STORE), autocommit=True) as admin:
                admin.execute("create role shop login in role event_store_writer")
                admin.execute("create role millrace login in role event_store_owner")
            return server

        yield start
