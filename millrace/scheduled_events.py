"""The loop that appends scheduled events when they are due.

It has a session of its own beside the sequencer: a stream that is locked delays no position of the log. Any number of
loops may run.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from tenacity import before_sleep_log

from millrace.event_store.platform import PlatformStore
from millrace.patience import FAREWELL_S, LOOK_S, while_away
from millrace.postgres import connecting

logger = logging.getLogger(__name__)


@contextmanager
def firing(dsn: str) -> Iterator[None]:
    """Append scheduled events beside other work, in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=append_when_due, args=(dsn, stop), name="scheduled events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(FAREWELL_S)


def append_when_due(dsn: str, stop: threading.Event) -> None:
    """Append scheduled events until `stop` is set; outlast restarts of the server.

    Only the server's clock counts. Where it goes ahead by an hour between two looks, all wait for five minutes.
    """
    patiently = while_away(connecting.passes, stop, before_sleep_log(logger, logging.WARNING), quietly=True)
    patiently(_append, dsn, stop)


def _append(dsn: str, stop: threading.Event) -> None:
    expected: datetime | None = None
    with connecting.connect(dsn, answer_s=connecting.ANSWER_S, stop=stop) as connection:
        store = PlatformStore(connection)
        while not stop.is_set():
            # counts while the machine sleeps, too
            before = time.clock_gettime(time.CLOCK_BOOTTIME)
            done = store.fire_scheduled_events(expected)
            if not done.done:
                stop.wait(LOOK_S)
            expected = done.clock + timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - before)
