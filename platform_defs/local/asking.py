"""Asks running services whether they work: in threads, so that a service that hangs blocks nothing else."""

import threading
import time
from collections.abc import Callable

from millrace.patience import BUSY_S, WATCH_S

MISSES = 3


class CannotTell(Exception):
    """It is unknown whether a service works: another service that would have to be asked does not answer."""


class Asking:
    """Asks one service one question at a time.

    Args:
        works: Returns whether the service works. `CannotTell` does not count. Another exception, or no answer within
            `BUSY_S`, counts as a no.
    """

    def __init__(self, works: Callable[[], bool]) -> None:
        self._works = works
        self.begin()

    def begin(self) -> None:
        """Forget the answers so far: the service is a new process."""
        self.misses = 0
        self._question: _Question | None = None
        self._begun_at = self._next_at = 0.0

    def poll(self, every_s: float = WATCH_S) -> bool | None:
        """Ask if it is time, and return each answer once; None while there is no answer. Never waits."""
        now = time.monotonic()
        if self._question is None:
            if now >= self._next_at:
                self._question, self._begun_at = _Question(self._works), now
            return None
        if self._question.is_alive():
            if now - self._begun_at < BUSY_S:
                return None
            # the next call waits for the same question
            answer: bool | None = False
            self._begun_at = now
        else:
            answer = self._question.answer
            self._question, self._next_at = None, self._begun_at + every_s
        if answer is not None:
            self.misses = 0 if answer else self.misses + 1
        return answer

    @property
    def lost(self) -> bool:
        """Whether the service missed too often in a row to be waited for any longer."""
        return self.misses >= MISSES


class _Question(threading.Thread):
    """One question; `answer` is None where it is unknown."""

    def __init__(self, works: Callable[[], bool]) -> None:
        # a daemon thread: a process that ends waits for no answer
        super().__init__(name="asking", daemon=True)
        self._works = works
        self.answer: bool | None = False
        self.start()

    def run(self) -> None:
        try:
            self.answer = bool(self._works())
        except CannotTell:
            self.answer = None
        except Exception:  # noqa: BLE001  any error of a user's function counts as a no
            self.answer = False
