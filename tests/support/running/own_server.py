"""A test's own Postgres, which it may stop, crash or reconfigure."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.event_store.migrations import migrate
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres


@contextmanager
def own_server(*stores: str, programs: Path = PROGRAMS, home: Path | None = None) -> Iterator[EmbeddedPostgres]:
    """Start a server with these event stores, in a folder below `home` or among temporary files."""
    # not pytest's tmp_path: its path is too long for a unix socket
    with (
        tempfile.TemporaryDirectory(prefix="millrace-", dir=home) as directory,
        EmbeddedPostgres(Path(directory), programs) as server,
    ):
        for store in stores:
            server.create_database(store)
            migrate(server.dsn(store))
        yield server
