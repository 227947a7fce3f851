"""Turns stored changes into events while the next ones are stored: a thread that is at most a few pieces behind."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

# Pieces of changes that may wait while one becomes events: about one look into the slot
MOST_PIECES = 5


class Emitter:
    """Turns stored changes into events in a thread; a context manager, which ends once all of them are events.

    Args:
        emit: Turns all stored changes into events, until none is left or until it is told to stop.
        on_idle: Called now and then while there is nothing to do.
        idle_s: How often, in seconds.
    """

    def __init__(self, emit: Callable[[], object], on_idle: Callable[[], object], idle_s: float) -> None:
        self._emit = emit
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._executor = ThreadPoolExecutor(1, "emit")
        # guards the next three, and notifies of changes to them
        self._changed = threading.Condition()
        self._pieces_left = 0
        self._ending = self._over = False

    def __enter__(self) -> Self:
        self._running: Future[None] = self._executor.submit(self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._executor.shutdown()
        if error is None:
            self._running.result()

    def hand_over(self) -> None:
        """Announce that more is stored. Block while `MOST_PIECES` pieces wait.

        Raises what an emission has raised, as `wait` does.
        """
        self._until(lambda: self._pieces_left <= MOST_PIECES)
        with self._changed:
            self._pieces_left += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed over is emitted; return whether it is emitted."""
        return self._until(lambda: not self._pieces_left, timeout_s)

    def _until(self, fits: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._over or fits(), timeout_s)
            over = self._over
        if over:
            self._running.result()
        return in_time

    def _run(self) -> None:
        try:
            while self._due():
                self._emit()
                with self._changed:
                    self._pieces_left -= 1
                    self._changed.notify_all()
        finally:
            # also after an error: no thread waits in vain
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _due(self) -> bool:
        """Wait for a piece; return whether there is one. False means the end."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._pieces_left or self._ending, self._idle_s):
                    return self._pieces_left > 0
            self._on_idle()
