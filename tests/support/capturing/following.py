"""A capture that is followed in a thread while a test changes its source."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from millrace.capture.follow import follow
from tests.support.capturing.captured import Captured, did
from tests.support.factories import start
from tests.support.patience import patience, wait_until


@contextmanager
def followed(captured: Captured, *, lease_s: int = 30) -> Iterator[Future[None]]:
    """Follow in a thread, after all rows are read; stop it at the end, and assert that it ended well."""
    captured.drain()
    stop = threading.Event()
    done = start(lambda: follow(captured.dsn, captured.capture, stop, lease_s=lease_s))
    try:
        yield done
    finally:
        stop.set()
    done.result(patience())


def arrived(captured: Captured, *keys: str) -> None:
    wait_until(lambda: [key for _, key in did(captured)][-len(keys) :] == list(keys), f"{keys} are events")
