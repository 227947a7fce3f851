"""Reads errors of a build: whether Spark is gone, whether events may be the reason, and the one line to tell of it.

Belongs here: errors of Spark and of Postgres. Not here: the reactions to them (`builder`, `consumer`).
"""

import psycopg

_LONGEST_CAUSE = 2000
# errors of a merge whose reason is in the rows and not in the server
_DATA_ERRORS = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
# Spark reports these as errors of a task, but no event is the reason: the source or the archive's reader cannot read
# (`event_log: `), a task cannot reach Postgres, the log is not whole, a machine is lost
_SERVERS = (
    "event_log: ",
    "adbc_driver_manager.OperationalError",
    "psycopg.OperationalError",
    "HistoryShortened",
    "ExecutorLostFailure",
    "OutOfMemoryError",
    "Python worker exited unexpectedly",
    "No space left on device",
)


def build_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that a build and its merge may raise."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, psycopg.Error)


def is_gone(error: Exception) -> bool:
    """Return whether Spark's server or our session in it does not exist any more, so that no batch can be built."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if not isinstance(error, SparkConnectGrpcException):
        return False
    code = error.getGrpcStatusCode()
    return (code is not None and code.name == "UNAVAILABLE") or (error.getCondition() or "").startswith(
        "INVALID_HANDLE.SESSION"
    )


def is_of_events(error: Exception) -> bool:
    """Return whether events may be the cause by their data; false for errors of a server, a plan or a lost machine."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, psycopg.Error):
        return isinstance(error, _DATA_ERRORS)
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException | ParseException):
        return False
    return not is_gone(error) and not any(sign in str(error) for sign in _SERVERS)


def cause(error: Exception) -> str:
    """Return the one line of Spark's many that states the cause: of a Python stack the last one, none of Java's.

    The line can be stored: long values that it quotes are cut, and characters that Postgres does not take are replaced.
    """
    text = str(error).split("JVM stacktrace:")[0]
    said = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    line = said[-1 if "Traceback" in text else 0] if said else type(error).__name__
    storable = line.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return storable if len(storable) <= _LONGEST_CAUSE else storable[: _LONGEST_CAUSE - 1] + "…"
