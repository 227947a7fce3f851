"""Classifies errors of a build: whether Spark is gone, what is at fault, and the one line to report.

Not here: the reactions to them (`staged`, `round`).

The class of an error, its SQLSTATE and Spark's condition decide, never a word of its text: an event may hold that word.
The class of a Python error in a task is read where no value reaches: after the indented lines of the first traceback.
"""

import builtins
import re
import sys
from enum import Enum

import psycopg

from millrace.archive.spark_reader import FileUnreadable
from millrace.errors import MillraceError, Unreachable
from millrace.postgres.connecting import PASSING
from millrace.spark.bounded import TookTooLong
from millrace.spark.log_source import DataLoss, InvalidOption, Unreadable
from millrace.spark.log_source.reading import HistoryShortened
from millrace.spark.session import is_closed, without_codes

_LONGEST_CAUSE = 2000
# errors of a merge that the rows cause, not the server
_DATA_ERRORS = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
# classes of SQLSTATE by which Spark blames a value, also one that a user's function refuses
_STATES_OF_EVENTS = frozenset({"21", "22", "38", "39", "P0"})
# and those of a plan, of a connection, of resources, and of files
_STATES_OF_SERVERS = frozenset({"08", "0A", "42", "53", "57", "58", "82", "KD"})
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*([\w.]+)")


class Blame(Enum):
    """The side at fault for an error.

    EVENTS: Some stream: its data cannot be taken.
    SERVER: No stream: a server, a plan, a lost machine, an incomplete log.
    UNCLEAR: Either: a process that crashed, a disk or a memory that is full. A stream is to blame if others can be
        built meanwhile.
    """

    EVENTS = "events"
    SERVER = "server"
    UNCLEAR = "unclear"


def build_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the classes of errors that a build and its merge may raise, and others."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (*others, PySparkException, Py4JError, psycopg.Error)


def failures() -> tuple[type[Exception], ...]:
    """Return the classes of errors of ours, and of a build and its merge."""
    return build_errors(MillraceError)


def is_gone(error: Exception) -> bool:
    """Return whether Spark, or our session in its server, is gone, so that no batch can be built."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if isinstance(error, Unreachable):
        return True
    if isinstance(error, TookTooLong):
        return error.is_deaf
    if not isinstance(error, SparkConnectGrpcException):
        return False
    code = error.getGrpcStatusCode()
    return (code is not None and code.name == "UNAVAILABLE") or is_closed(error)


def spark_is_gone(error: Exception) -> Unreachable:
    """Return the error to raise for one that `is_gone` recognizes."""
    return Unreachable(
        "The Spark Connect server went away in the middle of a build.",
        detail=cause(error),
        hint="Nothing is lost: the next try reads the events again when the server is back.",
    )


def blame_of(error: Exception) -> Blame:
    """Return the side at fault for an error of `build_errors`."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException

    if isinstance(error, psycopg.Error):
        return Blame.EVENTS if isinstance(error, _DATA_ERRORS) else Blame.SERVER
    if not isinstance(error, PySparkException):
        return Blame.UNCLEAR if isinstance(error, TookTooLong) and not error.is_deaf else Blame.SERVER
    if isinstance(error, AnalysisException | ParseException) or is_gone(error):
        return Blame.SERVER
    if isinstance(error, PythonException):
        return _blame_in_python(error)
    state = (error.getSqlState() or "")[:2]
    if state in _STATES_OF_EVENTS:
        return Blame.EVENTS
    return Blame.SERVER if state in _STATES_OF_SERVERS else Blame.UNCLEAR


def _blame_in_python(error: Exception) -> Blame:
    """Return the side at fault for an error that Python raised in a task, by its class."""
    import adbc_driver_manager as adbc

    found = _RAISED.search(str(error))
    module, _, name = found[1].rpartition(".") if found else ("", "", "")
    raised = getattr(sys.modules.get(module) if module else builtins, name, None)
    if not isinstance(raised, type):  # a user's class that this process does not know
        return Blame.EVENTS
    servers = (Unreadable, DataLoss, InvalidOption, FileUnreadable, HistoryShortened)
    if issubclass(raised, (*servers, *PASSING)):
        return Blame.SERVER
    # ADBC says only that writing failed, both if the server is gone and if a time is older than Postgres' times
    return Blame.UNCLEAR if issubclass(raised, (OSError, MemoryError, adbc.OperationalError)) else Blame.EVENTS


def cause(error: Exception) -> str:
    """Return the one line of Spark's text that states the cause: of a Python stack the error's line, none of Java's.

    The line can be stored: long values that it quotes are cut, and characters that Postgres does not take are replaced.
    """
    text = str(error).split("JVM stacktrace:")[0]
    # gRPC states the cause in one of several lines
    if text.startswith("<_"):
        text = text.partition('details = "')[2].partition('"\n')[0] or text
    # the last of chained errors; its text may have more lines, such as a remedy
    if stacks := [*_RAISED.finditer(text)]:
        return _storable(text[stacks[-1].start(1) :].splitlines()[0])
    lines = _lines(text)
    return _storable(without_codes(lines[0]) if lines else type(error).__name__)


def in_one_line(text: str) -> str:
    """Return the line of `cause` for the text of an error that a task reported without a stack."""
    return _storable(next(iter(_lines(text)), ""))


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]


def _storable(line: str) -> str:
    storable = line.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return storable if len(storable) <= _LONGEST_CAUSE else storable[: _LONGEST_CAUSE - 1] + "…"
