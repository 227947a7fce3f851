"""A connection that is made anew after the server was away."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
from tenacity import RetryCallState

from millrace.event_store.platform import PlatformStore
from millrace.handlers.log_lines import Counters, error_text, log_line
from millrace.patience import while_away
from millrace.personal.sealer import Sealer
from millrace.postgres import connecting

Result = TypeVar("Result")


class LastingConnection:
    """Calls the store for one thread; retries a call that the server's absence ended.

    Args:
        dsn: The event store.
        view: The view in log lines.
        counters: Counts new connections.
        sealer: Opens personal values.
    """

    def __init__(self, dsn: str, view: str, counters: Counters, sealer: Sealer | None = None) -> None:
        self._dsn, self._view, self._counters, self._sealer = dsn, view, counters, sealer
        self._connection: psycopg.Connection | None = None
        self._away = False
        self._hung_up = threading.Event()

    def __call__(self, call: Callable[[PlatformStore], Result]) -> Result:
        """Call the store; retry while it is away.

        Raises:
            psycopg.OperationalError: It is away, and `give_up` was called.
            psycopg.errors.ReadOnlySqlTransaction: It takes no writes, and `give_up` was called.
            psycopg.errors.ProgramLimitExceeded: The call exceeds a limit of the server.
        """
        patiently = while_away(connecting.passes, self._hung_up, self._log_away)
        result: Result = patiently(self._once, call)
        return result

    def give_up(self) -> None:
        """Retry no call from now on, and abandon one that gets no answer."""
        self._hung_up.set()

    def close(self) -> None:
        """End the connection; the next call makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, call: Callable[[PlatformStore], Result]) -> Result:
        try:
            if self._connection is None:
                self._connection = connecting.connect(self._dsn, answer_s=connecting.ANSWER_S, stop=self._hung_up)
                self._connection.execute("select")
                if self._away:
                    self._away = False
                    self._counters.reconnected += 1
                    log_line(logging.INFO, "server is back", view=self._view)
            return call(PlatformStore(self._connection, sealer=self._sealer))
        except connecting.PASSING as error:
            # an error of class 40 only means a loss to a concurrent transaction
            if not (error.sqlstate or "").startswith("40"):
                self.close()
            raise

    def _log_away(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if not self._away and self._connection is None:
            log_line(logging.WARNING, "server is away", view=self._view, error=error_text(error) if error else "")
        self._away = self._connection is None
