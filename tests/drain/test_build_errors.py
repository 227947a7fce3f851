"""The blame for an error of Spark or Postgres, and its text in one line that can be stored."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.archive.spark_reader import FileUnreadable
from millrace.drain.build_errors import Blame, blame_of, build_errors, cause
from millrace.spark.log_source import DataLoss, Unreadable
from millrace.spark.log_source.reading import HistoryShortened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# texts of our own and Spark's errors; an event may contain them
WORDS = (
    "event_log: ", "No space left on device", "ExecutorLostFailure", "OutOfMemoryError",
    "Python worker exited unexpectedly", "HistoryShortened", "adbc_driver_manager.OperationalError: no",
    "\nTraceback (most recent call last):\n  File x\npsycopg.OperationalError: the connection is lost",
    "INVALID_HANDLE.SESSION_CLOSED", "UNAVAILABLE", "SQLSTATE: 53100",
)  # fmt: skip
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def raising(kind: type[Exception], *arguments: object) -> Task:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise kind(*arguments)

    return run


def crashing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    yield from batches
    os._exit(3)


def error_of(build: Callable[[], object]) -> Exception:
    with pytest.raises(build_errors()) as failed:
        build()
    return failed.value


def in_a_task(spark: "SparkSession", task: Task) -> Exception:
    return error_of(spark.range(1).mapInArrow(task, "id bigint").collect)


def test_an_error_that_quotes_a_value_is_the_events_fault(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f

    words = "; ".join(WORDS)
    values = spark.createDataFrame([(words,)], "value string")
    assert blame_of(in_a_task(spark, raising(ValueError, f"it is {words}"))) is Blame.EVENTS
    assert blame_of(error_of(values.select(f.col("value").cast("int")).collect)) is Blame.EVENTS
    assert blame_of(error_of(values.select(f.raise_error("value")).collect)) is Blame.EVENTS


class OfTheUser(Exception):
    """An exception that only the user's process can import."""


def test_a_file_that_spark_cannot_read_is_no_events_fault(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    rows = spark.read.schema("a bigint").parquet(f"file:{path}")
    path.write_bytes(path.read_bytes()[:-9] + b"no Parquet")
    assert blame_of(error_of(rows.collect)) is Blame.SERVER
    path.unlink()
    assert blame_of(error_of(rows.collect)) is Blame.SERVER


def test_an_error_of_python_in_a_task_is_told_by_its_class(spark: "SparkSession") -> None:
    raised: list[tuple[type[Exception], tuple[object, ...], Blame]] = [
        (Unreadable, ("host=x", "the connection is lost"), Blame.SERVER), (DataLoss, ("this", "that"), Blame.SERVER),
        (FileUnreadable, ("gone",), Blame.SERVER), (HistoryShortened, ("begins at 5",), Blame.SERVER),
        (psycopg.errors.AdminShutdown, ("terminating",), Blame.SERVER),
        (psycopg.errors.NumericValueOutOfRange, ("too large",), Blame.EVENTS), (OSError, (28, "full"), Blame.UNCLEAR),
        (MemoryError, (), Blame.UNCLEAR), (OfTheUser, ("no",), Blame.EVENTS),
    ]  # fmt: skip
    found = [(kind, blame_of(in_a_task(spark, raising(kind, *arguments)))) for kind, arguments, _ in raised]
    assert found == [(kind, fault) for kind, _, fault in raised]


def test_the_source_a_plan_a_lost_worker_and_a_failing_sum_are_told_apart(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f

    nowhere = "host=127.0.0.1 port=1"
    log = spark.read.format("event_log").option("dsn", nowhere)
    # with both ends stated, only the tasks connect to Postgres
    ends = {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 1}'}
    stated = spark.read.format("event_log").option("dsn", nowhere).options(**ends)
    one = f.col("id") + 1
    faults = {
        "planning": blame_of(error_of(log.load().collect)),
        "reading": blame_of(error_of(stated.load().collect)),
        "no such column": blame_of(error_of(spark.range(1).select("amount").collect)),
        "a crash": blame_of(in_a_task(spark, crashing)),
        "a sum": blame_of(error_of(spark.range(1).select(f.lit(2**63 - 1) + one).collect)),
    }
    assert faults == {
        "planning": Blame.SERVER, "reading": Blame.SERVER, "no such column": Blame.SERVER, "a crash": Blame.UNCLEAR,
        "a sum": Blame.EVENTS,
    }  # fmt: skip


def test_an_error_of_a_merge_is_told_by_its_sqlstate() -> None:
    faults: dict[Exception, Blame] = {
        psycopg.errors.NumericValueOutOfRange(): Blame.EVENTS, psycopg.errors.CheckViolation(): Blame.EVENTS,
        psycopg.errors.ProgramLimitExceeded(): Blame.EVENTS, psycopg.errors.DiskFull("value event_log: "): Blame.SERVER,
        psycopg.OperationalError("the connection is lost"): Blame.SERVER, psycopg.errors.UndefinedTable(): Blame.SERVER,
        ValueError("no error of a build"): Blame.SERVER,
    }  # fmt: skip
    assert {error: blame_of(error) for error in faults} == faults


def test_in_a_local_session_a_class_is_found_too() -> None:
    from pyspark.errors import PythonException

    class Captured(PythonException):
        """Stands for Spark's class for an exception of the JVM; there is none here."""

        def __str__(self) -> str:
            return (
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                '  File "x.py", line 1, in run\n    raise\n    ^^^^^\npsycopg.errors.AdminShutdown: terminating'
            )

    assert blame_of(Captured("")) is Blame.SERVER


def test_of_a_stack_of_python_one_line_is_told_and_of_java_none() -> None:
    text = "Traceback (most recent call last):\n  File x\nValueError: no amount\n\nJVM stacktrace:\norg.apache.spark.X\n\tat a.b"
    assert cause(RuntimeError(text)) == "ValueError: no amount"
    # the same for an error that states a remedy
    text = text.replace("no amount", "no amount\nWrite one.\n")
    assert cause(RuntimeError(text)) == "ValueError: no amount"


GRPC = (
    ' of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "no "one": (111)"\n\tdebug = "x"\n>'
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"<_MultiThreadedRendezvous{GRPC}", 'no "one": (111)'),
        (f"<_InactiveRpcError{GRPC}", 'no "one": (111)'),
        ("[PATH_NOT_FOUND] No path /x. SQLSTATE: 42K03", "No path /x."),
        ("[NO_COLUMN.WITH_SUGGESTION] No `a`. SQLSTATE: 42703; line 1 pos 7;\n'Project", "No `a`. line 1 pos 7;"),
        ("\n[PARSE_SYNTAX_ERROR] Near 'x'. SQLSTATE: 42601 (line 1, pos 0)\n", "Near 'x'. (line 1, pos 0)"),
        ("[USER_RAISED_EXCEPTION] [a] SQLSTATE: 53100; b SQLSTATE: P0001", "[a] SQLSTATE: 53100; b"),
    ],
)
def test_the_sentence_is_told_without_what_is_around_it(text: str, told: str) -> None:
    assert cause(RuntimeError(text)) == told


def test_what_postgres_does_not_take_is_replaced_and_a_long_value_is_cut() -> None:
    assert cause(ValueError("a\0b\ud800")) == "a\N{REPLACEMENT CHARACTER}b?"
    assert len(cause(ValueError("x" * 1_000_000))) == 2000


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    assert cause(ValueError()) == "ValueError"
