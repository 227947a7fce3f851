"""Connections to Postgres that notice when nobody answers, and read texts and times as they are written.

Not here: which server it is (`postgres.dsn`); ADBC's sessions (`event_log_source.in_utf8`).

The kernel tells of a peer that is gone. It tells nothing of a proxy that went silent, or of a server process that
stands still. So who must go on states how long an answer may take.
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

# what a connection string does not state itself: a peer that is gone is noticed within half a minute
LASTING = {
    "connect_timeout": ASK_S,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# how long a call of a service may go without a byte from the server, in seconds
ANSWER_S = PATIENCE_S
# a server that takes no writes, as while another one takes over; over the same connection it may last
NO_WRITES = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.DiskFull)
# what passes without us: the server is away, or takes no writes
PASSING = (psycopg.OperationalError, *NO_WRITES)
# but what was asked exceeds a limit of the server (class 54), and does so each time
_LIMITS = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.TooManyColumns,
    psycopg.errors.TooManyArguments,
)

Result = TypeVar("Result")


def passes(error: BaseException) -> bool:
    """Return whether an error passes without us."""
    return isinstance(error, PASSING) and not isinstance(error, _LIMITS)


class NoAnswer(psycopg.OperationalError):
    """The server said nothing for as long as a call may take; the connection is closed."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose calls end where no answer comes.

    Attributes:
        dsn: What it was opened with.
        answer_s: How long the server may say nothing to a call, in seconds.
        long_s: How long it may where it says over another connection that it still works on the call.
        stop: Leaves a call `FAREWELL_S` once it is set.
    """

    dsn: str = ""
    answer_s: float = math.inf
    long_s: float = 0.0
    stop: threading.Event | None = None

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        """Wait for the server as psycopg does, but not for longer than it may take.

        Raises:
            NoAnswer: It says nothing.
        """
        return super().wait(self._within(gen), interval, timeout)

    def _within(self, gen: PQGen[Result]) -> Generator[Any, Any, Result]:
        said_at, farewell = time.monotonic(), math.inf
        until = said_at + self.answer_s
        works = True
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    said_at, until, works = now, now + self.answer_s, True
                elif self.stop is not None and self.stop.is_set():
                    farewell = min(farewell, now + FAREWELL_S)
                if not ready and now >= min(until, farewell):
                    if now >= min(said_at + self.long_s, farewell) or not works:
                        self.give_up()
                    # while it was asked, the server may have answered: that is looked for once more
                    works = self.works()
                    until = time.monotonic() + (self.answer_s if works else 0)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result

    def works(self) -> bool:
        """Ask over another connection whether the server still works on the call of this one, not on reaching us."""
        try:
            with connect(self.dsn, answer_s=ASK_S) as other:
                # behind a pooler, whose processes have other numbers, nobody can say
                found = other.execute(
                    "select state = 'active' and wait_event_type is distinct from 'Client' from pg_stat_activity"
                    " where pid = %s",
                    (self.info.backend_pid,),
                ).fetchone()
        except psycopg.Error:
            return False
        return found is None or bool(found[0])

    def give_up(self) -> NoReturn:
        """Close a connection whose server does not answer.

        Raises:
            NoAnswer: Always.
        """
        # a server that only is slow would go on, and wait for its locks, beside the next try
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=FAREWELL_S)
        self.close()
        raise NoAnswer("the server does not answer: the connection was closed")


def lasting(dsn: str) -> str:
    """Return a connection string that states how a peer that is gone is noticed; what it states itself stays.

    Raises:
        psycopg.ProgrammingError: It is unreadable.
    """
    stated = conninfo_to_dict(dsn)
    ours: dict[str, Any] = {
        name: value
        for name, value in LASTING.items()
        if name not in stated and not (name == "connect_timeout" and "PGCONNECT_TIMEOUT" in os.environ)
    }
    return make_conninfo(dsn, **ours)


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
        answer_s: How long it may say nothing to a call, in seconds; by default a peer that lives is waited for.
        long_s: How long it may where it says over another connection that it still works on the call.
        stop: Leaves a call `FAREWELL_S` once it is set.
        autocommit: As psycopg has it, and so the next two.
        prepare_threshold: After how many calls a statement is prepared; None for never.
        cursor_factory: The class of cursors.
        parameters: Parameters of the connection, which count more than those of the connection string.

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
        # not by the option `-c`, which pools refuse
        connection.execute("set datestyle = 'ISO'")
    connection.autocommit = autocommit
    return connection


@contextmanager
def unhurried(connection: psycopg.Connection, long_s: float = LONG_S) -> Iterator[None]:
    """Let calls that are known to be long take up to `long_s` seconds, while the server says that it works on them."""
    if not isinstance(connection, Connection):
        yield
        return
    connection.long_s = long_s
    try:
        yield
    finally:
        connection.long_s = 0.0


def require_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
    """Refuse a caller's session whose times the driver cannot read, before anything is done in it.

    Raises:
        Malformed: Its DateStyle is not ISO.
    """
    if not _reads_iso(connection):
        raise Malformed(
            "The connection's DateStyle must be ISO: the client cannot read times in another form.",
            detail=f"It is {connection.info.parameter_status('DateStyle')}. Nothing was done.",
            hint="""Run "set datestyle = 'ISO'" on the connection, or alter the login or the database.""",
        )


def _reads_iso(connection: "psycopg.Connection | psycopg.AsyncConnection") -> bool:
    # the server reports it without being asked; a pooler that does not gives nothing to go by
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")
