"""Compares the rows of read models with a rebuild from the same events, for one log partition of each."""

import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from millrace.drain.build_errors import cause
from millrace.drain.diff import diff_with_serving
from millrace.drain.report import PartitionsFailed
from millrace.errors import MillraceError, Unreachable
from millrace.operations.verification.checks import Report, Watcher
from millrace.postgres.connecting import PASSING
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.differences import comparable_partitions, examples
from millrace.read_models.stored.merge import unmerged_rows
from millrace.read_models.stored.past import remove_now
from millrace.read_models.stored.rollup_tables import differing_rollups
from millrace.read_models.stored.versions import current_version, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# how long the tables of a killed run remain
KEEP = timedelta(hours=1)
_APART = (
    "it does not have the events below its checkpoint and no others. It is new, or streams wait for a retry or were given"
    " up."
)
# the login is a reader, or the model changed in the meantime
_PASSED_OVER = (
    MillraceError,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
)


def check_models(
    dsn: str,
    connection: psycopg.Connection,
    models: Iterable[ReadModel],
    spark: "Callable[[], SparkSession]",
    report: Report,
    watcher: Watcher,
    *,
    archive: Path | None = None,
    partition: int | None = None,
) -> None:
    """Compare the rows of one log partition of each serving read model with a rebuild at the same position.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        connection: A session of that role, outside of a transaction.
        models: The declared read models.
        spark: Returns the Spark session.
        report: Receives faults and counts. Log partitions that it already lists as damaged are not built.
        watcher: Is told of progress, and stops the run.
        archive: The folder of the archive; None: events are read from Postgres alone.
        partition: The log partition; None for one drawn at random for each model.

    Raises:
        Unreachable: Spark does not answer.
        psycopg.OperationalError: Postgres does not answer.
    """
    for model in models:
        if watcher.stop.is_set():
            return
        try:
            why = _check(dsn, connection, model, spark, report, watcher, archive, partition)
        except Unreachable:
            raise
        except _PASSED_OVER as error:
            why = str(error)
        if why is not None:
            report.passed_over.append(f"Read model {model.name} was not compared: {why}")


def _check(
    dsn: str,
    connection: psycopg.Connection,
    model: ReadModel,
    spark: "Callable[[], SparkSession]",
    report: Report,
    watcher: Watcher,
    archive: Path | None,
    chosen: int | None,
) -> str | None:
    """Compare a model; return why it was not compared, None if it was."""
    serving = current_version(connection, model)
    if serving is None or not any(v.serves for v in versions(connection, model.name) if v.version == serving.version):
        return (
            f"no version of its declaration serves: millrace run drain {model.name} --once, or millrace view approve."
        )
    watcher.checking(f"groups of rows of read model {model.name}")
    for name, differing in differing_rollups(connection, serving).items():
        report.add(
            "groups_differ",
            f"Groups are not those of the rows: rollup {name} of read model {model.name}, log partition"
            f" {', '.join(map(str, differing)) or 'any'}. Rebuild it in Dagster: that computes the groups anew.",
        )
    if serving.crosses_streams and (unmerged := unmerged_rows(connection, serving)):
        report.add(
            "rows_differ",
            f"{unmerged} rows are not what the parts of log partitions add up to: read model {model.name}. Build it anew:"
            f" millrace view reset {model.name}",
        )
    comparable = comparable_partitions(connection, serving.view, model.view)
    if chosen not in {None, *comparable} or not comparable:
        return f"of {'no log partition' if chosen is None else f'log partition {chosen}'} {_APART}"
    candidates = {*(comparable if chosen is None else [chosen])} - {*report.damaged}
    if not candidates:
        return f"of {'each' if chosen is None else 'its'} log partition a file of the archive is damaged."
    partition = random.choice([*candidates])  # noqa: S311 - no secret
    where = f"log partition {partition} of read model {model.name}"
    watcher.checking(f"{where} is built")
    try:
        diff = diff_with_serving(dsn, model, spark, partition=partition, keep=KEEP, archive=archive)
    except Exception as error:
        # all other errors come from a function of the model, or a trigger
        if isinstance(error, (*PASSING, *_PASSED_OVER)) and not isinstance(error, PartitionsFailed):
            raise
        report.models += 1
        fails = str(error) if isinstance(error, PartitionsFailed) else cause(error)
        report.add("rebuild_fails", f"A rebuild fails: {where}. {fails}")
        return None
    comparison = diff.outcome
    assert comparison is not None
    where += f", up to position {diff.marks[partition]}"
    if diff.waiting_streams:
        remove_now(connection, diff.name)
        return f"streams of {where} came to wait for a retry."
    report.models += 1
    report.rows += comparison.rows_before
    if comparison.failed_streams:
        report.add(
            "streams_fail",
            f"A rebuild fails at events of {comparison.failed_streams} streams that a drain took: {where}. Correct the"
            " declaration: of the same events it has to make the same rows.",
        )
    elif comparison.differs:
        keys = ", ".join(one.key for one in examples(connection, diff)[:5])
        report.add(
            "rows_differ",
            f"{comparison.changed} rows are not those of a rebuild, which lacks {comparison.gone} and has {comparison.new} others:"
            f" {where}, such as {keys}. Rebuild the log partition in Dagster; if it differs again, the declaration makes"
            " other rows of the same events.",
        )
    remove_now(connection, diff.name)
    watcher.checked(f"{comparison.rows_before:,} rows of log partition {partition} of read model {model.name}")
    return None
