"""The connection of a consumer, which outlasts a restart of the server.

Belongs here: connecting, whether the password is still the right one, and the errors of a transaction that is only
tried again. Not here: when to connect anew (`consumer`, `rounds`).
"""

import psycopg
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

RECONNECT_S = 60
# the fate of a transaction among others: the batch is claimed again at once
CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


def connect_patiently(dsn: str) -> psycopg.Connection:
    """Connect, and outlast a restart of the server.

    Raises:
        psycopg.OperationalError: The server does not answer for `RECONNECT_S` seconds, or refuses the password.
    """
    patiently = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, psycopg.OperationalError) and not _refuses(error)),
        wait=wait_exponential(multiplier=0.1, max=5),
        stop=stop_after_delay(RECONNECT_S),
        reraise=True,
    )
    return patiently(psycopg.connect, dsn, autocommit=True)


def is_shut_out(dsn: str) -> bool:
    """Say whether a server answers, asks for a password, and lets nobody in with that of a connection string."""
    try:
        psycopg.connect(dsn, autocommit=True, connect_timeout=10).close()
    except psycopg.OperationalError as error:
        return _refuses(error)
    return False


def _refuses(error: psycopg.OperationalError) -> bool:
    # libpq gives no SQLSTATE of a connection that failed. A server that is away, or has no room, says nothing of the
    # password, and the latter only after it took it.
    if error.pgconn is None or not (error.pgconn.used_password or error.pgconn.needs_password):
        return False
    return not any(words in str(error) for words in ("too many", "remaining connection slots", "is starting up"))
