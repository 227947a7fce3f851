"""The connection of a consumer, which outlasts a restart of the server."""

import time
from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus

from millrace.archive.store import NO_TIME_LIMITS
from millrace.patience import ASK_S, FAREWELL_S, LONG_S, PATIENCE_S, while_held
from millrace.postgres import connecting
from millrace.postgres.sessions import require_own_session

# lost to a concurrent transaction: the batch is claimed again at once
CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


def let_work_last(connection: psycopg.Connection, dsn: str) -> None:
    """Lift the time limits of the login, or of the database, from a session, and limit its idle time in a transaction.

    Raises:
        SessionsShared: The store is reached through a pooler in transaction mode: others would get these settings.
    """
    require_own_session(connection, dsn)
    connection.execute(NO_TIME_LIMITS)
    # a process that is paused within a transaction holds locks that others wait for
    connection.execute(f"set idle_in_transaction_session_timeout = '{PATIENCE_S}s'".encode())


def connect_patiently(dsn: str) -> psycopg.Connection:
    """Connect, let work last, and outlast a restart of the server.

    Raises:
        psycopg.OperationalError: The server does not answer for `PATIENCE_S` seconds, or refuses the password for
            `ASK_S`.
        SessionsShared: It is reached through a pooler in transaction mode.
    """
    until = time.monotonic() + ASK_S

    def passes(error: BaseException) -> bool:
        if not isinstance(error, psycopg.OperationalError):
            return False
        # libpq gives no SQLSTATE for a connection that failed. A server without room refuses after it took the
        # password: that looks the same as a wrong password, and passes.
        refused = error.pgconn is not None and (error.pgconn.used_password or error.pgconn.needs_password)
        return not refused or time.monotonic() < until

    return while_held(passes, PATIENCE_S)(_connect, dsn)


def _connect(dsn: str) -> psycopg.Connection:
    connection = connecting.connect(dsn, answer_s=connecting.ANSWER_S, long_s=LONG_S)
    try:
        let_work_last(connection, dsn)
    except BaseException:
        connection.close()
        raise
    return connection


def end_interrupted(connection: psycopg.Connection) -> None:
    """Cancel a statement that an interrupt left running, and close its connection; leave any other as it is.

    Psycopg does so for Ctrl-C alone. Dagster interrupts a run by an exception of its own: the server would keep waiting
    for a table, and keep the locks of the transaction.
    """
    if connection.info.transaction_status == TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=FAREWELL_S)
        connection.close()
