"""What the error of a build means: whether Spark is gone, whether the events are the reason, and what to tell about it.

Belongs here: reading errors of Spark and of Postgres. Not here: what a consumer does then (`consumer`).
"""

import psycopg

_LONGEST_CAUSE = 2000
# of the merge: what lies in the rows and not in the server
_DATA_ERRORS = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
# Spark passes these on as errors of a task: the source cannot read, the tasks cannot read states or write rows, the log is not whole, a
# machine is lost
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
    """What a build and its merge may raise."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, psycopg.Error)


def is_gone(error: Exception) -> bool:
    """Whether Spark's server, or our session in it, does not exist any more, so that no other batch can be built either."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if not isinstance(error, SparkConnectGrpcException):
        return False
    code = error.getGrpcStatusCode()
    return (code is not None and code.name == "UNAVAILABLE") or (error.getCondition() or "").startswith(
        "INVALID_HANDLE.SESSION"
    )


def is_of_events(error: Exception) -> bool:
    """Whether single events may be the reason, so that other events could be built; false where it is surely not them."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, psycopg.Error):
        return isinstance(error, _DATA_ERRORS)
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException | ParseException):
        return False
    return not is_gone(error) and not any(sign in str(error) for sign in _SERVERS)


def cause(error: Exception) -> str:
    """The one line of Spark's many that says what is wrong: no stack of Java, and of a Python stack the last line.

    It can be stored: values that it quotes may be long, and hold what Postgres does not take.
    """
    text = str(error).split("JVM stacktrace:")[0]
    said = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    line = said[-1 if "Traceback" in text else 0] if said else type(error).__name__
    storable = line.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return storable if len(storable) <= _LONGEST_CAUSE else storable[: _LONGEST_CAUSE - 1] + "…"
