"""Connections to Postgres that notice a silent server, and read texts and times exactly.

Not here: choosing the server (`postgres.dsn`); ADBC's sessions (`event_log_source.in_utf8`).

The kernel reports a peer that is gone. It does not report a proxy that went silent, or a server process that hangs. So
callers that must not hang pass a timeout.
"""

import math
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from millrace.errors import Malformed
from millrace.patience import ASK_S, FAREWELL_S, LONG_S, PATIENCE_S

# defaults for parameters that a connection string leaves out: a lost peer is noticed within half a minute
LASTING = {
    "connect_timeout": ASK_S,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# the longest wait of a service's call without a byte from the server, in seconds
ANSWER_S = PATIENCE_S
# the server takes no writes, as during a failover; on the same connection that may last
NO_WRITES = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.DiskFull)
# transient errors: the server is away, or takes no writes
PASSING = (psycopg.OperationalError, *NO_WRITES)
# not transient: the statement exceeds a limit of the server (class 54), and will do so again
_LIMITS = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.TooManyColumns,
    psycopg.errors.TooManyArguments,
)

Result = TypeVar("Result")


def passes(error: BaseException) -> bool:
    """Return whether an error is transient."""
    return isinstance(error, PASSING) and not isinstance(error, _LIMITS)


class NoAnswer(psycopg.OperationalError):
    """The server was silent for longer than a call may take; the connection is closed."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection with a timeout for calls without an answer.

    Attributes:
        dsn: The connection string that it was opened with.
        answer_s: How long the server may be silent during a call, in seconds.
        long_s: How long it may be silent if another connection confirms that it still works on the call, in seconds.
        stop: Once set, a call ends within `FAREWELL_S`.
    """

    dsn: str = ""
    answer_s: float = math.inf
    long_s: float = 0.0
    stop: threading.Event | None = None

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        """Wait for the server as psycopg does, but no longer than the timeout.

        Raises:
            NoAnswer: The server is silent.
        """
        return super().wait(self._within(gen), interval, timeout)

    def _within(self, gen: PQGen[Result]) -> Generator[Any, Any, Result]:
        answered_at, farewell = time.monotonic(), math.inf
        until = answered_at + self.answer_s
        works = True
        try:
            wait_for = next(gen)
            while True:
                ready = yield wait_for
                now = time.monotonic()
                if ready:
                    answered_at, until, works = now, now + self.answer_s, True
                elif self.stop is not None and self.stop.is_set():
                    farewell = min(farewell, now + FAREWELL_S)
                if not ready and now >= min(until, farewell):
                    if now >= min(answered_at + self.long_s, farewell) or not works:
                        self.give_up()
                    # the answer may have come during the check: look for it once more
                    works = self.works()
                    until = time.monotonic() + (self.answer_s if works else 0)
                wait_for = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result

    def works(self) -> bool:
        """Ask over another connection whether the server still works on this call, and does not wait for the client."""
        try:
            with connect(self.dsn, answer_s=ASK_S) as other:
                # behind a pooler the process ids differ: no row, and no way to know
                found = other.execute(
                    "select state = 'active' and wait_event_type is distinct from 'Client' from pg_stat_activity"
                    " where pid = %s",
                    (self.info.backend_pid,),
                ).fetchone()
        except psycopg.Error:
            return False
        return found is None or bool(found[0])

    def give_up(self) -> NoReturn:
        """Close the connection because its server does not answer.

        Raises:
            NoAnswer: Always.
        """
        # a server that is only slow would keep running the call, and waiting for its locks, during the retry
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=FAREWELL_S)
        self.close()
        raise NoAnswer("the server does not answer: the connection was closed")


def lasting(dsn: str) -> str:
    """Return a connection string with the defaults that detect a lost peer; stated parameters stay.

    Raises:
        psycopg.ProgrammingError: The string is unreadable.
    """
    stated = conninfo_to_dict(dsn)
    defaults: dict[str, Any] = {
        name: value
        for name, value in LASTING.items()
        if name not in stated and not (name == "connect_timeout" and "PGCONNECT_TIMEOUT" in os.environ)
    }
    return make_conninfo(dsn, **defaults)


def connect(
    dsn: str,
    *,
    answer_s: float = math.inf,
    long_s: float = 0.0,
    stop: threading.Event | None = None,
    autocommit: bool = True,
    prepare_threshold: int | None = 5,
    cursor_factory: type[psycopg.Cursor[TupleRow]] | None = None,
    **parameters: str | int,
) -> Connection:
    """Open a connection, in autocommit mode by default, with texts in UTF-8 and times in ISO's form.

    Args:
        dsn: The server.
        answer_s: How long the server may be silent during a call, in seconds; by default without limit.
        long_s: How long it may be silent if another connection confirms that it still works on the call, in seconds.
        stop: Once set, a call ends within `FAREWELL_S`.
        autocommit: As in psycopg, like the next two.
        prepare_threshold: The number of calls after which a statement is prepared; None for never.
        cursor_factory: The class of cursors.
        parameters: Parameters of the connection, which override those of the connection string.

    Raises:
        psycopg.OperationalError: The server does not answer.
        psycopg.ProgrammingError: The connection string is unreadable.
    """
    dsn = make_conninfo(dsn, **{"client_encoding": "utf8", **parameters})
    connection = Connection.connect(
        lasting(dsn),
        autocommit=True,
        prepare_threshold=prepare_threshold,
        cursor_factory=cursor_factory,
    )
    connection.dsn, connection.answer_s, connection.long_s, connection.stop = dsn, answer_s, long_s, stop
    if not _reads_iso(connection):
        # not by the option `-c`, which poolers refuse
        connection.execute("set datestyle = 'ISO'")
    connection.autocommit = autocommit
    return connection


@contextmanager
def unhurried(connection: psycopg.Connection, long_s: float = LONG_S) -> Iterator[None]:
    """Let long calls take up to `long_s` seconds, as long as the server confirms that it works on them."""
    if not isinstance(connection, Connection):
        yield
        return
    connection.long_s = long_s
    try:
        yield
    finally:
        connection.long_s = 0.0


def require_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
    """Refuse a caller's session with times that the driver cannot read, before the first statement.

    Raises:
        Malformed: The session's DateStyle is not ISO.
    """
    if not _reads_iso(connection):
        raise Malformed(
            "The connection's DateStyle must be ISO: the client cannot read times in another form.",
            detail=f"It is {connection.info.parameter_status('DateStyle')}. Nothing was done.",
            hint="""Run "set datestyle = 'ISO'" on the connection, or alter the login or the database.""",
        )


def _reads_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> bool:
    # the server reports DateStyle by itself; if a pooler does not, assume ISO
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")
