"""Waiting for new events: until a notification comes from Postgres, or for a while where none can come.

A notification is only a hint: it may come for nothing, and a lost one costs a wait. A listener looks after each wait.
"""

import logging
import select
import threading
import time
from types import TracebackType
from uuid import uuid4

import psycopg
from psycopg import sql

from millrace.patience import ASK_S, AWAY_S, PAUSE_S, POLL_S, REST_S
from millrace.postgres.connecting import connect

# notifications of new positions; the payload lists the log partitions that grew
POSITIONS = "event_store_positions"
# notifications of appends, for a sleeping sequencer
APPENDED = "event_store_appended"

logger = logging.getLogger(__name__)


class Wakeups:
    """Waits for new positions in the log, on a connection of its own; falls back to polling.

    It listens only if a trial notification from another connection arrives. None arrives behind a pooler that gives
    each transaction any session, or while the server is away. Then each wait is short, and it connects again with a
    backoff of up to half a minute, behind a pooler after five minutes. Not for several threads at once.

    Attributes:
        listening: Whether notifications come: then a wait may have any length.
    """

    def __init__(self, dsn: str, channel: str = POSITIONS, *, poll_s: float = POLL_S) -> None:
        self.listening = False
        self._dsn = dsn
        self._channel = channel
        self._poll_s = poll_s
        self._connection: psycopg.Connection | None = None
        self._away_s = poll_s
        self._try_at = self._believed_until = 0.0

    def __enter__(self) -> "Wakeups":
        """Begin to listen, if notifications come."""
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the connection."""
        self.close()

    def wait(self, timeout_s: float, stop: threading.Event | None = None) -> frozenset[int] | None:
        """Wait for a notification; return the log partitions that it names, which may be none. None: no notification.

        Where notifications do not come, it returns None, possibly before `timeout_s`. A notification since the last
        wait ends this one at once. Never raises for the connection.

        Args:
            timeout_s: How long to wait, in seconds.
            stop: Ends it.
        """
        stop = stop or threading.Event()
        deadline = time.monotonic() + timeout_s
        if not self.listening and time.monotonic() >= self._try_at:
            self.listen()
            if self.listening:
                return None  # let the caller look for events that came while the connection was lost
        while self.listening and not stop.is_set():
            assert self._connection is not None
            try:
                payloads = [notification.payload for notification in self._connection.notifies(timeout=0)]
                if payloads or time.monotonic() >= self._believed_until:
                    if not payloads:
                        self._connection.execute("select")
                    # a proxy may go silent later
                    self._believed_until = time.monotonic() + AWAY_S
            except psycopg.Error as error:
                self.close()
                self._give_up(f"the connection was lost: {error}")
                break
            if payloads:
                # any session may notify, with any payload; Python refuses to parse a number of thousands of digits
                parts = [part for payload in payloads for part in payload.split(",")]
                return frozenset(int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= 10)
            if (remaining := deadline - time.monotonic()) <= 0:
                return None
            # psycopg's own wait wakes up ten times a second, which costs more than all else in an idle service
            readable = select.poll()
            readable.register(self._connection.fileno(), select.POLLIN)
            readable.poll(min(remaining, POLL_S) * 1000)
        stop.wait(max(min(self._poll_s, deadline - time.monotonic()), 0))
        return None

    def listen(self) -> None:
        """Connect and listen, if notifications reach the connection; else set when to try again."""
        self.close()
        try:
            connection = self._connect()
            try:
                # a notification from another connection must arrive while this one is idle
                trial = sql.Identifier(f"event_store_{uuid4().hex}")
                connection.execute(sql.SQL("listen {}").format(trial))
                with self._connect() as other:
                    other.execute(sql.SQL("notify {}").format(trial))
                reached = any(True for _ in connection.notifies(timeout=PAUSE_S, stop_after=1))
                connection.execute(sql.SQL("unlisten {}").format(trial))
                if reached:
                    connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            # a standby refuses LISTEN with an error that is not an OperationalError
            self._give_up(f"the server does not let it listen: {error}")
            return
        if reached:
            self._connection, self.listening, self._away_s = connection, True, self._poll_s
            self._believed_until = time.monotonic() + AWAY_S
        else:
            connection.close()
            self._give_up("no word of another session reaches this one, as behind a pooler")
            # a pooler stays a pooler, but the server may just have been too busy for the trial
            self._try_at = time.monotonic() + REST_S

    def close(self) -> None:
        """End the connection; a later wait makes another one."""
        self.listening = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection:
        return connect(self._dsn, answer_s=ASK_S)

    def _give_up(self, why: str) -> None:
        self._try_at = time.monotonic() + self._away_s
        self._away_s = min(2 * self._away_s, AWAY_S)
        logger.info("Polls for %s: %s", self._channel, why)
