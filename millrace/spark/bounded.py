"""An end for work that does not end by itself: in Spark, and in the process that makes a plan for it.

Spark cancels the jobs, and ends the Python process of each task that goes on for two seconds after that.
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
    """Spark had not ended in time, and was told to stop. The text is one line: people read it of a view, too.

    Attributes:
        is_deaf: Whether it did not even answer to that; then the session is closed.
    """

    def __init__(self, message: str, *, is_deaf: bool = False) -> None:
        self.is_deaf = is_deaf
        super().__init__(message)


class NotReturned(BaseException):
    """A function had not returned in time; no `except Exception` of its own keeps this from ending it."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End a `with` block that takes longer, by a signal.

    Python takes signals in its main thread: elsewhere the block goes on. So does what never comes back from a library,
    or catches everything again and again.

    Raises:
        NotReturned: The block had not ended.
    """

    def end(*_: object) -> None:
        raise NotReturned(f"the function had not returned after {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    # again and again: one that is caught ends nothing
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def at_most(spark: "SparkSession", seconds: float) -> Iterator[None]:
    """Cancel what this thread asks a session for in a `with` block, so many seconds after its beginning.

    Raises:
        TookTooLong: In place of the error that Spark gives then.
    """
    from pyspark.sql.utils import is_remote

    cancel: Callable[[str], object]
    if remote := is_remote():
        add, remove, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:
        # of the context: a tag of the session does not reach the thread of Java in which Arrow is collected
        context = spark.sparkContext
        add, remove, cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
    tag = f"millrace-{uuid4().hex}"
    ended, told_to_stop, told_to_close = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        # what comes of it, the thread that waits for Spark sees
        with suppress(Exception):
            cancel(tag)

    def watch() -> None:
        if ended.wait(seconds):
            return
        told_to_stop.set()
        # by a thread of its own: a server that does not answer does not answer to this either
        threading.Thread(target=interrupt, name="a build is cancelled", daemon=True).start()
        # what was cancelled ends within seconds, unless nobody listens any more
        if ended.wait(AWAY_S):
            return
        told_to_close.set()
        if remote:
            # calls that wait for an answer fail; other sessions live in the server
            with suppress(Exception):
                spark.client.close()

    add(tag)
    threading.Thread(target=watch, name="end of a build", daemon=True).start()
    try:
        yield
    except Exception as error:
        if told_to_stop.is_set():
            is_deaf = told_to_close.is_set()
            said = f"Spark had not ended after {seconds:g} s" + (", and does not answer" if is_deaf else "")
            raise TookTooLong(said, is_deaf=is_deaf) from error
        raise
    finally:
        ended.set()
        remove(tag)
