"""An end for work that does not end by itself: in Spark, and in the process that makes a plan for it.

Spark cancels the jobs, and ends the Python process of each task that goes on for two seconds after that.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from millrace.resources.errors import MillraceError
from millrace.resources.patience import AWAY_S

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


@dataclass
class _Told:
    """What the thread that watches has done."""

    to_stop: bool = False
    to_close: bool = False


@contextmanager
def at_most(spark: "SparkSession", seconds: float) -> Iterator[None]:
    """Cancel what this thread asks a session for in a `with` block, so many seconds after its beginning.

    Raises:
        TookTooLong: In place of the error that Spark gives then.
    """
    tag = f"millrace-{uuid4().hex}"
    ended, told = threading.Event(), _Told()
    watcher = threading.Thread(
        target=_watch, args=(spark, tag, seconds, ended, told), name="end of a build", daemon=True
    )
    _tag(spark, tag)
    watcher.start()
    try:
        yield
    except Exception as error:
        if told.to_stop:
            said = f"Spark had not ended after {seconds:g} s" + (", and does not answer" if told.to_close else "")
            raise TookTooLong(said, is_deaf=told.to_close) from error
        raise
    finally:
        ended.set()
        _untag(spark, tag)


def _watch(spark: "SparkSession", tag: str, seconds: float, ended: threading.Event, told: _Told) -> None:
    if ended.wait(seconds):
        return
    told.to_stop = True
    # by a thread of its own: a server that does not answer does not answer to this either
    threading.Thread(target=_interrupt, args=(spark, tag), name="a build is cancelled", daemon=True).start()
    # what was cancelled ends within seconds, unless nobody listens any more
    if ended.wait(AWAY_S):
        return
    told.to_close = True
    _close(spark)


def _interrupt(spark: "SparkSession", tag: str) -> None:
    # what comes of it, the thread that waits for Spark sees
    with suppress(Exception):
        if _is_remote():
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)


def _close(spark: "SparkSession") -> None:
    """Close the connection to a Connect server: calls that wait for an answer fail. Other sessions live in here."""
    if _is_remote():
        with suppress(Exception):
            spark.client.close()


def _tag(spark: "SparkSession", tag: str) -> None:
    if _is_remote():
        spark.addTag(tag)
    else:
        # of the context: a tag of the session does not reach the thread of Java in which Arrow is collected
        spark.sparkContext.addJobTag(tag)


def _untag(spark: "SparkSession", tag: str) -> None:
    if _is_remote():
        spark.removeTag(tag)
    else:
        spark.sparkContext.removeJobTag(tag)


def _is_remote() -> bool:
    from pyspark.sql.utils import is_remote

    return is_remote()
