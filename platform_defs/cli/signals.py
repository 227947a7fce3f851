"""Commands that run until somebody stops them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set; a second one ends the process at once.

    Their former handlers are back in the end.
    """
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        # another thread sets it: the main one may hold the event's lock at this very moment
        threading.Thread(target=stop.set).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
