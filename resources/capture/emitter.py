"""Stored changes become events beside the storing of the next ones: a thread that is a few pieces behind at most.

Belongs here: who waits for whom, and what becomes of an error. Not here: what is emitted (`drain`).
"""

import threading
from collections.abc import Callable
from queue import Empty, Queue
from types import TracebackType
from typing import Self

# Pieces of changes that may be stored and no events yet: about one look into the slot
MOST_PIECES = 5


class Emitter:
    """Makes events of what is stored, in a thread; a context manager, which ends once all of it is.

    Args:
        emit: Makes all that is stored events, until there is nothing left, or until it is told to stop.
        rest: Called now and then while there is nothing to do.
        rest_s: How often, in seconds.
    """

    def __init__(self, emit: Callable[[], object], rest: Callable[[], object], rest_s: float) -> None:
        self._emit = emit
        self._rest = rest
        self._rest_s = rest_s
        # True for a piece, False for the end
        self._pieces: Queue[bool] = Queue(MOST_PIECES)
        self._done = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="emit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pieces.put(False)
        self._thread.join()
        if error is None:
            self._raise()

    def hand_over(self) -> None:
        """Say that more is stored. Waits while `MOST_PIECES` are not emitted yet.

        Raises what an emission has raised, as `wait` does.
        """
        with self._done:
            self._left += 1
        self._pieces.put(True)
        self._raise()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was handed over is emitted; return whether it is."""
        with self._done:
            done = self._done.wait_for(lambda: not self._left, timeout_s)
        self._raise()
        return done

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            try:
                more = self._pieces.get(timeout=self._rest_s)
            except Empty:
                self._unless_failed(self._rest)
                continue
            if not more:
                return
            self._unless_failed(self._emit)
            with self._done:
                self._left -= 1
                self._done.notify_all()

    def _unless_failed(self, work: Callable[[], object]) -> None:
        # after an error it only takes what comes, so that nobody waits for it in vain
        if self._error is None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the other thread raises it
                self._error = error
