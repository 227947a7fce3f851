"""One connection to the event store that all sensors of a process share, replaced when it is lost.

A new connection for each tick costs Postgres 20 to 30 ms of CPU, most of the cost of idle sensors.
"""

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.resources.postgres import PostgresResource

_LOCK = threading.Lock()
# by DSN: a process has one; tests have several
_CONNECTIONS: dict[str, psycopg.Connection] = {}


@contextmanager
def shared_store(postgres: PostgresResource) -> Iterator[PlatformStore]:
    """Lend the connection, to one caller at a time, in autocommit: only for calls that never wait for other sessions.

    Raises:
        Unreachable: The server does not answer.
    """
    with _LOCK:
        dsn = postgres.current_dsn()
        for other in [other for other in _CONNECTIONS if other != dsn]:
            _CONNECTIONS.pop(other).close()
        connection = _CONNECTIONS.get(dsn)
        if connection is not None:
            try:
                connection.execute("")
            except psycopg.Error:
                # the server was restarted, or the session was ended
                connection.close()
                connection = None
        if connection is None:
            connection = _CONNECTIONS[dsn] = postgres.opened()
        try:
            yield PlatformStore(connection)
        except BaseException:
            # its state is unknown
            connection.close()
            raise


@atexit.register
def _close() -> None:
    for connection in _CONNECTIONS.values():
        connection.close()
