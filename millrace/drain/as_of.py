"""Builds a read model as it was at a recorded moment of the log."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from millrace.drain.commit import Commit
from millrace.drain.connection import let_work_last
from millrace.drain.limits import LEASE_S, Limits
from millrace.drain.rebuild import Rebuild
from millrace.drain.report import PartitionsFailed
from millrace.drain.staged import StagedBuilds
from millrace.errors import LeaseLost, Malformed, MillraceError, PartitionLeased, UnknownView
from millrace.event_store import LogMark
from millrace.event_store.platform import PlatformStore
from millrace.patience import LOOK_S
from millrace.postgres.connecting import connect
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.past import (
    AsOf,
    all_as_of,
    at_mark,
    count_rows,
    first_marked_at,
    log_mark,
    record_built,
    record_wanted,
    remove_begun,
    remove_expired,
    remove_view,
)
from millrace.read_models.stored.versions import ensure_version, with_upcasts
from millrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP = timedelta(days=7)
# errors of a build after its tables were removed
GONE = (PartitionsFailed, psycopg.errors.UndefinedTable)


class NoMark(MillraceError):
    """No moment of the log is recorded at or before a time."""


def mark_at(store: PlatformStore, at: datetime | str) -> LogMark:
    """Return the last recorded moment of the log at or before a time.

    Raises:
        NoMark: There is none.
        Malformed: A text has none of the forms of `millrace.times`.
    """
    mark = store.marks_at(at)
    if mark is None:
        first = first_marked_at(store.connection)
        raise NoMark(
            f"No moment of the log is recorded at or before {at}.",
            detail=f"The first one is of {first.isoformat()}." if first else "None is recorded.",
            hint="The sequencer records one a minute while the log grows. Name that time, or a later one.",
        )
    return mark


def chosen_mark(store: PlatformStore, at: datetime | str | None, number: int | None) -> LogMark | None:
    """Return the moment of a time, or of a number; None where neither is stated.

    Raises:
        NoMark: There is none.
        Malformed: Both are stated, or a text has none of the forms of `millrace.times`.
    """
    if number is None:
        return None if at is None else mark_at(store, at)
    if at is not None:
        raise Malformed("A time and a moment are stated.", hint="Name one of them.")
    mark = log_mark(store.connection, number)
    if mark is None:
        raise NoMark(
            f"There is no moment {number} of the log.",
            hint="The table event_store.log_marks has all that there are. Or name a time.",
        )
    return mark


def build_as_of(
    dsn: str,
    model: ReadModel,
    spark: "Callable[[], SparkSession]",
    mark: LogMark,
    *,
    keep: timedelta = KEEP,
    archive: Path | None = None,
) -> AsOf:
    """Build a read model as of a moment of the log, unless it exists, and return it.

    Its rows are those of a store with only the events below the moment's marks, read with the present upcasts.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        model: The read model as it is declared.
        spark: Gives the session.
        mark: The moment.
        keep: How long from now it is kept at least.
        archive: The folder of the archive; None: events are read from Postgres alone.

    Raises the errors of `ViewDrain.rebuild`, and those of `versions.ensure_version`.
    """
    with connect(dsn) as connection:
        let_work_last(connection, dsn)
        remove_expired(connection)
        model = with_upcasts(connection, model)
        while True:
            record = record_wanted(connection, model, mark, keep)
            if record.built_at is not None:
                remove_view(connection, record.name)
                return record
            try:
                past_model, commit = build_beside(
                    dsn, connection, model, at_mark(model, mark), spark, archive, mark.marks
                )
                rows = count_rows(connection, past_model)
            except (PartitionLeased, LeaseLost, UnknownView, psycopg.errors.DuplicateTable):
                time.sleep(LOOK_S)  # another process builds it, or has just built it
            except (Exception, KeyboardInterrupt) as error:
                # a process that was stopped for longer than leases last finds its tables removed by another process
                if not isinstance(error, GONE) or record in all_as_of(connection, model.name):
                    remove_begun(connection, record.name)
                    raise
            else:
                record_built(connection, record, past_model, rows, len(commit.failures))


def build_beside(
    dsn: str,
    connection: psycopg.Connection,
    declared: ReadModel,
    side: ReadModel,
    spark: "Callable[[], SparkSession]",
    archive: Path | None,
    marks: Sequence[int],
    partition: int | None = None,
) -> tuple[ReadModel, Commit]:
    """Make the tables of a side of a read model, and build one log partition, or all, up to given marks."""
    built = ensure_version(connection, side, archive)
    builds = StagedBuilds(dsn, spark, f"beside {uuid4()}", LEASE_S, Limits.of(Settings()))
    rebuild = Rebuild(PlatformStore(connection), builds, built, declared, archive, tuple(marks))
    partitions = range(len(marks)) if partition is None else [partition]
    return built, rebuild.run(partitions, 0, threading.Event())
