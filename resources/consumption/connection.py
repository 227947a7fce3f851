"""The connection of a consumer, which outlasts a restart of the server.

Belongs here: connecting, and the errors of a transaction that is only tried again. Not here: when to connect anew
(`consumer`, `rounds`).
"""

import psycopg
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

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
        psycopg.OperationalError: The server does not answer for `RECONNECT_S` seconds.
    """
    patiently = Retrying(
        retry=retry_if_exception_type(psycopg.OperationalError),
        wait=wait_exponential(multiplier=0.1, max=5),
        stop=stop_after_delay(RECONNECT_S),
        reraise=True,
    )
    return patiently(psycopg.connect, dsn, autocommit=True)
