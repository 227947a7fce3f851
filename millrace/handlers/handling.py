"""Calls a handler for one event, in a thread of its own: a plain function, an async one, or one with a connection.

The acknowledgement joins the transaction of a handler with a connection, and both commit together: exactly once. If the
acknowledgement no longer counts, both are rolled back.

An error may quote a personal value that was opened for the handler, then or earlier: no text of it is kept.
"""

import asyncio
import inspect
import logging
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from millrace.errors import NotInFlight, TryLater
from millrace.event_store import Delivery, Views, causing
from millrace.handlers.declaration import LONGEST_WAIT_S, Refused, Subscription, Told
from millrace.handlers.log_lines import cleaned, error_text, log_line
from millrace.patience import FAREWELL_S, PAUSE_S
from millrace.personal.sealer import Sealer
from millrace.postgres import connecting
from millrace.user_code import finished

# how often a transaction is retried at once if it only lost to a concurrent one
TRIES = 5


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned; `acknowledged` if its own transaction has acknowledged the event."""

    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or took too long."""

    error: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The event was not handled, and did not fail; it waits for `after_s` seconds."""

    why: str | None = None
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """Another process had the event's lock, so the handler's transaction was rolled back."""


Outcome = Done | Failed | GiveBack | Lost
DONE = Done()


class Caller:
    """Calls one subscription's handler; for one thread at a time, except `interrupt`."""

    def __init__(
        self,
        dsn: str,
        subscription: Subscription,
        loop: asyncio.AbstractEventLoop | None,
        leaving: threading.Event,
        sealer: Sealer | None = None,
    ) -> None:
        self._dsn, self._subscription, self._loop, self._leaving = dsn, subscription, loop, leaving
        self._sealer = sealer
        self._connection: psycopg.Connection | None = None
        self._future: Future[Any] | None = None

    def call(self, event: Delivery) -> Outcome:
        """Handle an event, which is the cause of what the handler appends; any error of the handler is an outcome."""
        try:
            if event.suspect:
                # it may have killed a process: the store records that its handler begins
                view, lock_s = self._subscription.view, self._subscription.lock_timeout_s
                try:
                    with connecting.connect(self._dsn, answer_s=connecting.ANSWER_S, stop=self._leaving) as connection:
                        Views(connection).extend_lock(view, event.decider_id, event.offset, lock_s, event.lease_token)
                except NotInFlight:
                    return Lost()
                except connecting.PASSING as error:
                    return GiveBack(error_text(error), PAUSE_S)
            return self._call_handler(event)
        except BaseException as error:  # noqa: BLE001 - it is a thread of ours: also SystemExit is the event's failure
            return Failed(self._kept(error, f"{error_text(error)}{self._where(error)}"))

    def _call_handler(self, event: Delivery) -> Outcome:
        try:
            with causing(event):
                if self._subscription.takes_connection:
                    return self._with_connection(event)
                if self._loop is not None:
                    self._future = asyncio.run_coroutine_threadsafe(self._subscription.handler(event), self._loop)  # type: ignore[arg-type] # it is async
                    finished(self._future.result())
                else:
                    finished(self._subscription.handler(event))
        except TryLater as later:
            if not 0 <= later.after_s <= LONGEST_WAIT_S:
                text = f"TryLater: after_s is {later.after_s!r}; it is from 0 to {LONGEST_WAIT_S}."
                raise ValueError(text) from later
            return GiveBack(self._kept(later, cleaned(later.why)), later.after_s)
        except Refused as refused:
            return Failed(cleaned(str(refused)) or "Refused")
        except CancelledError:
            return Failed("The handler was cancelled.")
        except Exception as error:
            if not _lost_to_concurrent(error):
                raise
            return GiveBack(self._kept(error, error_text(error)), PAUSE_S)
        return DONE

    def interrupt(self) -> None:
        """Ask a call that takes too long to end: cancel what it awaits, or the statement that it waits for."""
        if self._future is not None:
            self._future.cancel()
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=FAREWELL_S)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _with_connection(self, event: Delivery) -> Outcome:
        for attempt in range(1, TRIES + 1):
            if self._connection is None or self._connection.closed:
                try:
                    # without prepared statements: behind a connection pool the next session would not know them
                    self._connection = connecting.connect(
                        self._dsn,
                        # a handler over its time limit has been interrupted by then
                        answer_s=self._subscription.timeout_s + FAREWELL_S,
                        stop=self._leaving,
                        prepare_threshold=None,
                    )
                except psycopg.OperationalError as error:
                    return GiveBack(error_text(error), PAUSE_S)
            connection = self._connection
            try:
                with connection.transaction() as transaction:
                    finished(self._subscription.handler(event, connection))
                    held = Views(connection).ack_events(self._subscription.view, [event.offset], [event.lease_token])
                    if not held:
                        raise psycopg.Rollback(transaction)
                return Done(acknowledged=True) if held else Lost()
            except Exception as error:
                passes = isinstance(error, psycopg.OperationalError) and connection.closed
                if passes or isinstance(error, connecting.NO_WRITES):
                    # the commit may have succeeded: then the store refuses to take the event back
                    self.close()
                    return GiveBack(self._kept(error, error_text(error)), PAUSE_S)
                if not _lost_to_concurrent(error) or attempt == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    def _kept(self, error: BaseException, text: str) -> str:
        """Return the text of an error; its class, SQLSTATE and line, where the handler was given opened values."""
        if isinstance(error, Told) or self._sealer is None or not self._sealer.has_opened:
            return text
        codes = [each.sqlstate for each in (error, error.__cause__) if isinstance(each, psycopg.Error)]
        return cleaned(" ".join([type(error).__name__, *filter(None, codes)]) + self._where(error))

    def _where(self, error: BaseException) -> str:
        """Return the last line of the handler's own file that the error went through."""
        try:
            source_file = inspect.getsourcefile(inspect.unwrap(self._subscription.handler))
        except (TypeError, ValueError):
            return ""
        trace, line = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == source_file:
                line = trace.tb_lineno
            trace = trace.tb_next
        return f" ({self._subscription.name}, line {line})" if line else f" ({self._subscription.name})"


def _lost_to_concurrent(error: BaseException) -> bool:
    """Return whether an error means a loss to a concurrent transaction, also if a library wrapped it."""
    cause: BaseException | None = error
    for _ in range(10):  # a cause may be its own
        if cause is None:
            break
        if str(getattr(cause, "sqlstate", None)).startswith("40"):
            return True
        cause = cause.__cause__
    return False


class LoopThread:
    """An event loop in a thread, for handlers that are `async`."""

    def __init__(self, name: str, sealer: Sealer | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self._sealer = sealer
        self.loop.set_exception_handler(self._log_fault)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            # a task that raises SystemExit or KeyboardInterrupt ends the loop for all others, as does one that stops it
            with suppress(BaseException):
                self.loop.run_forever()

    def _log_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error that no outcome has, such as that of a task which a handler began."""
        if self._sealer is not None and self._sealer.has_opened:
            log_line(logging.ERROR, context["message"], error=type(context.get("exception")).__name__)
        else:
            loop.default_exception_handler(context)

    def close(self) -> None:
        """Cancel what still runs, and end the loop."""

        async def cancel_tasks() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=PAUSE_S) if others else None

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(cancel_tasks(), self.loop).result(FAREWELL_S)
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2)
        if not self._thread.is_alive():
            self.loop.close()
