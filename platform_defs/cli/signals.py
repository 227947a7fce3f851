"""Commands that run until they are stopped."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a second signal ends the process at once.

    The former signal handlers are restored at the end.
    """
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        # set it in another thread: the main thread may hold the event's lock right now
        threading.Thread(target=stop.set).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
