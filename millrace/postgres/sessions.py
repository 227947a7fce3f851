"""Whether a connection to the store, or to a source, has a session of its own, as captures and drains need."""

import psycopg

from millrace.errors import MillraceError
from millrace.postgres.connecting import ANSWER_S, connect

# A pool hands out the session that was used last, or the next one in turn; another client may take it in between.
_ROUNDS = 5


class SessionsShared(MillraceError):
    """A server is reached through a pooler that gives each transaction any session."""


def require_own_session(
    connection: psycopg.Connection, dsn: str, server: str = "event store", named_by: str = "MILLRACE_DSN"
) -> None:
    """Refuse a connection, in autocommit mode, if its transactions go to sessions that are shared.

    Sessions hold settings, and a capture's next owner ends hanging sessions: both would hit other connections.

    Raises:
        SessionsShared: The sessions are shared.
    """
    # a server tells a new connection its process id; a pooler cannot
    if _process(connection) == connection.info.backend_pid:
        return
    # no prepared statements: a pooler may lose them, too
    with connect(dsn, answer_s=ANSWER_S, prepare_threshold=None) as other:
        backends = {(_process(connection), _process(other)) for _ in range(_ROUNDS)}
    if len(backends) > 1 or any(backend == other_backend for backend, other_backend in backends):
        raise SessionsShared(
            f"The {server} is reached through a pooler that gives each transaction any session.",
            detail="captures and drains need sessions of their own",
            hint=f"Let {named_by} name the server itself, or a pool in session mode.",
        )


def _process(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])
