"""Whether read models have the rows that a rebuild makes of the same events, for one log partition of each.

Belongs here: which log partition, and what a difference means. Not here: the copy of the rows and the comparison
(`read_models.verified_rows`), the rebuild (`consumption.as_of`), which ends at the copy's position.

The rebuild is a past version of the model, by the name of a moment that no log has: it never serves, and goes at the
end. Killed, it goes when its hour is over, as every past version does.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from millrace.resources.consumption.as_of import build_as_of
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import LogMark
from millrace.resources.event_store.json_text import written
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.merge import next_batch
from millrace.resources.read_models.past import at_mark, remove_now
from millrace.resources.read_models.verified_rows import KeptRows, comparable_partitions, compared, kept_rows
from millrace.resources.read_models.versions import current_version, versions
from millrace.resources.verification.looks import Report, Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP = timedelta(hours=1)
# above the number of each moment that there will be: one comes a minute
ABOVE_MOMENTS = 10**10
# the login is a reader, or the model changed meanwhile
_PASSED_OVER = (
    MillraceError,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
)


def look_at_models(
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
    """Compare the rows of one log partition of each read model that serves with a rebuild at the same position.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        connection: A session of that role, outside of a transaction.
        models: The read models as they are declared.
        spark: Gives the session.
        report: Where faults and counts go.
        watcher: Who is told, and stops it.
        archive: The folder of the archive; None: events are read from Postgres alone.
        partition: The log partition; None for one drawn at random for each model.

    Raises what Spark and Postgres raise where they are not there.
    """
    for model in models:
        if watcher.stop.is_set():
            return
        try:
            _look_at(dsn, connection, model, spark, report, watcher, archive, partition)
        except _PASSED_OVER as error:
            report.passed_over.append(f"Read model {model.name} was not compared: {error}")


def _look_at(
    dsn: str,
    connection: psycopg.Connection,
    model: ReadModel,
    spark: "Callable[[], SparkSession]",
    report: Report,
    watcher: Watcher,
    archive: Path | None,
    chosen: int | None,
) -> None:
    serving = current_version(connection, model)
    if serving is None or not any(v.serves for v in versions(connection, model.name) if v.version == serving.version):
        report.passed_over.append(f"Read model {model.name} was not compared: no version of its declaration serves.")
        return
    apart = "of no log partition has it the events below its checkpoint and no others"
    candidates = comparable_partitions(connection, serving)
    if chosen is not None:
        apart = f"of log partition {chosen} it does not have the events below its checkpoint and no others"
        candidates = [each for each in candidates if each == chosen]
    if candidates:
        partition = random.choice(candidates)  # noqa: S311 - no secret
        with kept_rows(connection, serving, partition) as kept:
            if kept is not None:
                watcher.at(f"{model.name}: log partition {partition} is built up to position {kept.position:,}")
                _compare(dsn, connection, model, spark, report, archive, partition, kept)
                watcher.done(f"{kept.rows:,} rows of log partition {partition} of read model {model.name}")
                return
    report.passed_over.append(
        f"Read model {model.name} was not compared: {apart}. It is new, or streams wait for a retry or were given up."
    )


def _compare(
    dsn: str,
    connection: psycopg.Connection,
    model: ReadModel,
    spark: "Callable[[], SparkSession]",
    report: Report,
    archive: Path | None,
    partition: int,
    kept: KeptRows,
) -> None:
    marks = [kept.position if each == partition else 0 for each in range(partition + 1)]
    mark = LogMark(ABOVE_MOMENTS + next_batch(connection), datetime.now(UTC), marks, "verify")
    past = at_mark(model, mark)
    where = f"log partition {partition} of read model {model.name}, up to position {kept.position}"
    try:
        built = build_as_of(dsn, model, spark, mark, keep=KEEP, archive=archive, partitions=[partition])
        report.models += 1
        report.rows += kept.rows
        if built.failed_streams:
            report.add(
                "streams_fail",
                f"A rebuild fails at events of {built.failed_streams} streams that a drain took: {where}. Correct the"
                " declaration: of the same events it has to make the same rows.",
            )
            return
        found = compared(connection, past, partition)
        if found.only_kept or found.only_rebuilt:
            keys = ", ".join(written(key) for key in found.keys)
            report.add(
                "rows_differ",
                f"{found.only_kept} rows are not those of a rebuild, which has {found.only_rebuilt} others: {where},"
                f" such as {keys}. Rebuild the log partition in Dagster; if it differs again, the declaration makes other"
                " rows of the same events.",
            )
    except PartitionsFailed as error:
        report.models += 1
        report.add("rebuild_fails", f"A rebuild fails: {where}. {error}")
    finally:
        # what is in use stays until its hour is over
        with suppress(MillraceError):
            remove_now(connection, past.name)
