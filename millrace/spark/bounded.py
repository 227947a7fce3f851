"""Timeouts for work in Spark, and in the process that makes a plan for Spark.

Spark cancels the jobs, and ends the Python process of each task that still runs two seconds later.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from millrace.errors import MillraceError
from millrace.patience import AWAY_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TookTooLong(MillraceError):
    """Spark exceeded the timeout, and the jobs were cancelled. The text is one line: people see it as a view's error.

    Attributes:
        is_deaf: Whether Spark did not react to the cancellation either; then the session is closed.
    """

    def __init__(self, message: str, *, is_deaf: bool = False) -> None:
        self.is_deaf = is_deaf
        super().__init__(message)


class NotReturned(BaseException):
    """A function exceeded the timeout; an `except Exception` in the function cannot catch this."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End a `with` block that takes longer, by a signal.

    Python handles signals in its main thread: in another thread the block continues. A block also continues if it does
    not return from a library, or catches every exception again and again.

    Raises:
        NotReturned: The block exceeded the timeout.
    """

    def end(*_: object) -> None:
        raise NotReturned(f"the function had not returned after {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    # repeated every second: the block may catch an exception
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def at_most(spark: "SparkSession", seconds: float) -> Iterator[None]:
    """Cancel the jobs that this thread runs in a `with` block, `seconds` after its beginning.

    Raises:
        TookTooLong: Replaces the error that Spark raises then.
    """
    from pyspark.sql.utils import is_remote

    cancel: Callable[[str], object]
    if remote := is_remote():
        add, remove, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:
        # a tag of the context: a tag of the session does not reach the Java thread that collects Arrow
        context = spark.sparkContext
        add, remove, cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
    tag = f"millrace-{uuid4().hex}"
    ended, cancelled, session_closed = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        # the thread that waits for Spark sees the result
        with suppress(Exception):
            cancel(tag)

    def watch() -> None:
        if ended.wait(seconds):
            return
        cancelled.set()
        # in its own thread: a server that does not answer may not answer this call either
        threading.Thread(target=interrupt, name="a build is cancelled", daemon=True).start()
        # cancelled jobs end within seconds, unless the server is dead
        if ended.wait(AWAY_S):
            return
        session_closed.set()
        if remote:
            # waiting calls fail; other sessions in the server stay alive
            with suppress(Exception):
                spark.client.close()

    add(tag)
    threading.Thread(target=watch, name="end of a build", daemon=True).start()
    try:
        yield
    except Exception as error:
        if cancelled.is_set():
            is_deaf = session_closed.is_set()
            message = f"Spark had not ended after {seconds:g} s" + (", and does not answer" if is_deaf else "")
            raise TookTooLong(message, is_deaf=is_deaf) from error
        raise
    finally:
        ended.set()
        remove(tag)
