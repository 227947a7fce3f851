"""Wake-ups for new positions in the log: received once in a process, for all its consumers."""

import threading
from collections.abc import Callable

from millrace.event_store.wake_ups import Wakeups
from millrace.patience import ASK_S


class WakeUpHub:
    """Calls each listener when the sequencer says that the log grew.

    Attributes:
        arriving: Whether wake-ups arrive at all: behind a pooler, or while the server is away, none does.
    """

    def __init__(self, dsn: str) -> None:
        self.arriving = False
        self._dsn = dsn
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` for each wake-up from now on, in the thread that receives them."""
        self._listeners.append(listener)

    def listen(self, stop: threading.Event) -> None:
        """Listen until `stop` is set."""
        with Wakeups(self._dsn) as positions:
            self.arriving = positions.listening
            while not stop.is_set():
                position = positions.wait(ASK_S, stop)
                self.arriving = positions.listening
                if position is not None:
                    for listener in self._listeners:
                        listener()
