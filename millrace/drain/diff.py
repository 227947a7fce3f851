"""Compares a declaration with the serving version, in a copy up to the same events; a copy that fails is removed."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from millrace.drain.as_of import GONE, KEEP, build_beside
from millrace.drain.connection import let_work_last
from millrace.errors import LeaseLost, PartitionLeased, UnknownView, ViewInUse
from millrace.event_store import LogMark
from millrace.patience import LOOK_S
from millrace.postgres.connecting import connect
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.differences import Diff, compare, diffs, take
from millrace.read_models.stored.past import remove_begun, remove_expired, renamed
from millrace.read_models.stored.versions import with_upcasts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def diff_with_serving(
    dsn: str,
    model: ReadModel,
    spark: "Callable[[], SparkSession]",
    *,
    mark: LogMark | None = None,
    partition: int | None = None,
    keep: timedelta = KEEP,
    archive: Path | None = None,
) -> Diff:
    """Compare the rows of a declaration with those that serve, both with the same events.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        model: The read model as it is declared.
        spark: Gives the session.
        mark: A moment as of which the serving version was built; None: where it stands now.
        partition: The log partition that is built and compared; None for all.
        keep: How long from now the rows that differ are kept.
        archive: The folder of the archive; None: events are read from Postgres alone.

    Raises:
        NothingToCompare: No version serves, or not as of the moment.

    Raises the errors of `ViewDrain.rebuild`, and those of `versions.ensure_version`.
    """
    with connect(dsn) as connection:
        let_work_last(connection, dsn)
        remove_expired(connection)
        model = with_upcasts(connection, model)
        diff = take(connection, model, mark, partition)
        while diff.compared_at is None:
            try:
                side, commit = build_beside(
                    dsn, connection, model, renamed(model, diff.name), spark, archive, diff.marks, diff.partition
                )
                compare(connection, diff, side, [*model.lookups], len(commit.failures), keep)
            except (PartitionLeased, LeaseLost, UnknownView, ViewInUse, psycopg.errors.WrongObjectType):
                time.sleep(LOOK_S)  # another process builds it, or has just compared it
            except (Exception, KeyboardInterrupt) as error:
                # a process that was stopped for longer than leases last finds its tables removed by another process
                if not isinstance(error, GONE) or _stored(connection, diff) == [diff]:
                    remove_begun(connection, diff.name)
                    raise
            stored = _stored(connection, diff)
            diff = stored[0] if stored else take(connection, model, mark, partition)
        return diff


def _stored(connection: psycopg.Connection, diff: Diff) -> list[Diff]:
    return [one for one in diffs(connection, diff.model) if one.number == diff.number]
