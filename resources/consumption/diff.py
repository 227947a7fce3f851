"""Compares a declaration with what serves: builds it up to where that stands.

Belongs here: the way to a comparison. Not here: the copy of what serves, and comparing (`read_models.differences`), the
build (`rebuild`).

Killed anywhere, the next call goes on with the same copy, for an hour. Of several calls for one copy one builds, and
the others wait.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg

from millrace.resources.archive.store import NO_TIME_LIMITS
from millrace.resources.connecting import connect
from millrace.resources.consumption.as_of import KEEP, LOOK_EVERY_S
from millrace.resources.consumption.builder import Builder
from millrace.resources.consumption.consumer import LEASE_S
from millrace.resources.consumption.limits import DEFAULTS
from millrace.resources.consumption.rebuild import Rebuild
from millrace.resources.errors import PartitionLeased, UnknownView, ViewInUse
from millrace.resources.event_store import EventStore, LogMark
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.differences import Diff, compare, diffs, take
from millrace.resources.read_models.past import named, remove_expired
from millrace.resources.read_models.versions import ensure_version, with_upcasts

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
        mark: A moment as of which what serves was built; None: where it stands now.
        partition: The log partition that is built and compared; None for all.
        keep: For how long from now the rows that differ are kept.
        archive: The folder of the archive; None: events are read from Postgres alone.

    Raises:
        NothingToCompare: No version serves, or not as of the moment.

    Raises the errors of `Consumer.rebuild`, and those of `versions.ensure_version`.
    """
    owner, never = f"diff {uuid4()}", threading.Event()
    with connect(dsn) as connection:
        connection.execute(NO_TIME_LIMITS)
        store = EventStore(connection)
        remove_expired(connection)
        model = with_upcasts(connection, model)
        diff = take(connection, model, mark, partition)
        while diff.compared_at is None:
            try:
                side = ensure_version(connection, named(model, diff.name), archive)
                builder = Builder(dsn, side, spark, LEASE_S, DEFAULTS)
                rebuild = Rebuild(store, builder, model, owner, archive, tuple(diff.marks))
                partitions = range(len(diff.marks)) if diff.partition is None else [diff.partition]
                commit = rebuild.run(partitions, 0, never)
                compare(connection, diff, side, [*model.lookups], len(commit.failures), keep)
            except (PartitionLeased, UnknownView, ViewInUse, psycopg.errors.WrongObjectType):
                never.wait(LOOK_EVERY_S)  # another process builds it, or has just compared it
            known = [one for one in diffs(connection, model.name) if one.number == diff.number]
            diff = known[0] if known else take(connection, model, mark, partition)
        return diff
