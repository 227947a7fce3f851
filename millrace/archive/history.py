"""The whole log as one Spark DataFrame: the files of the archive and Postgres above them, each event once.

Columns, types, filters and `extract` are those of the source `event_log`. The folder must have the same path on the
driver and on every worker.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from millrace.archive.fields import Fields, folded
from millrace.archive.folder import require_folder
from millrace.archive.listing import ArchivedFile, ArchivedPartition, archived, grouped
from millrace.archive.spark_reader import FilePart, RowSelection, archive_rows, shared
from millrace.archive.store import ArchiveStore
from millrace.archive.whole_files import proven_fields, spark_reads, whole_rows
from millrace.errors import ArchiveDamaged, ForeignArchive, LogIncomplete
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import connect, lasting
from millrace.spark.log_source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogHistory:
    """A part of the log: the files of an archive, and the events above them in Postgres.

    Attributes:
        root: The folder of the archive.
        partitions: The log partitions as archive and log held them in one snapshot.
        cuts: Log partition → [first, last): the positions to read.
        given_up: Offsets of events that are left out.
    """

    root: Path
    partitions: tuple[ArchivedPartition, ...]
    cuts: Mapping[int, tuple[int, int]]
    given_up: frozenset[int] = frozenset()

    @property
    def files(self) -> list[ArchivedFile]:
        """The files that hold some of the positions to read."""
        return [
            file
            for each in self.partitions
            for file in each.files
            if file.range.from_position < self.cuts[each.partition][1]
            if file.range.to_position > self.cuts[each.partition][0]
        ]

    @property
    def tails(self) -> dict[int, tuple[int, int]]:
        """Log partition → [first, last): the positions to read from Postgres."""
        cuts = ((each, *self.cuts[each.partition]) for each in self.partitions)
        return {each.partition: (min(max(each.end, first), last), last) for each, first, last in cuts}

    def readable(self) -> "LogHistory":
        """Return this history if archive and log hold it, else the same from Postgres alone if that has all of it.

        Raises:
            LogIncomplete: Events are neither in a listed file nor in the log.
            ForeignArchive: The folder is not this store's archive.
            ArchiveDamaged: A file is missing.
        """
        try:
            self.require_whole()
        except (LogIncomplete, ForeignArchive, ArchiveDamaged) as error:
            if any(self.cuts[each.partition][0] < each.earliest_position for each in self.partitions):
                raise
            logger.warning("the archive is passed over, Postgres has everything: %s", error)
            return replace(self, partitions=tuple(replace(each, files=()) for each in self.partitions))
        return self

    def require_whole(self) -> None:
        """Refuse a history with events that neither archive nor log holds; the errors are those of `readable`."""
        for each in self.partitions:
            require_whole(each)
        files = self.files
        if files:
            require_folder(self.root, self.partitions[0].archive_id)
        for file in files:
            if not (self.root / file.path).is_file():
                raise ArchiveDamaged(
                    f"{self.root / file.path} is not there.", hint="Put the file back from a copy of this folder."
                )

    def is_whole(self, file: ArchivedFile) -> bool:
        """Return whether all positions of a file are to be read."""
        first, last = self.cuts[file.range.partition]
        return first <= file.range.from_position and file.range.to_position <= last


def read_history(
    spark: "SparkSession",
    dsn: str,
    root: Path,
    *,
    partitions: Sequence[int] | None = None,
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    columns: Sequence[str] = tuple(COLUMNS),
    extract: Mapping[str, Sequence[str]] | None = None,
    min_partitions: int = 1,
) -> "DataFrame":
    """Read the log from its first event up to its present high-water marks, each event once, in no order.

    Args:
        spark: The session; it knows the source `event_log`.
        dsn: The event store; the role must be `event_store_reader`.
        root: The folder of the archive; it need not exist while no file is listed.
        partitions: The log partitions, None for all.
        deciders: The deciders, None for all.
        events: The events, None for all.
        columns: Some of `COLUMNS`, in this order.
        extract: New columns: fields of `data` by path, as text.
        min_partitions: How many tasks read the tail at least.

    Raises:
        LogIncomplete: Events below the earliest position of the log are in no listed file.
        ForeignArchive: The folder is not this store's archive.
        ArchiveDamaged: A file is missing.
    """
    with connect(dsn) as connection:
        history = log_history(connection, root, partitions)
    history.require_whole()
    return history_frame(
        spark,
        dsn,
        history,
        deciders=deciders,
        events=events,
        columns=columns,
        extract=extract,
        min_partitions=min_partitions,
    )


def log_history(connection: psycopg.Connection, root: Path, partitions: Sequence[int] | None = None) -> LogHistory:
    """Return all present events of some log partitions, None for all, in archive and log."""
    held = [archived(connection, partitions[0])] if partitions is not None and len(partitions) == 1 else None
    if held is None:
        found = grouped(ArchiveStore(connection).archive_state())
        held = [each for each in found if partitions is None or each.partition in partitions]
    return LogHistory(root, tuple(held), {each.partition: (0, each.high_water_mark) for each in held})


def day_history(connection: psycopg.Connection, root: Path, since: datetime, until: datetime) -> LogHistory:
    """Return a superset of the events appended in [since, until); filter it by `created_at`.

    Per log partition: from the first event at or after `since` up to the first one at or after `until`.
    """
    store, history = PlatformStore(connection), log_history(connection, root)
    cuts = {
        each.partition: (
            # events that were removed from Postgres may be of any time
            0 if each.earliest_position else store.offset_for_timestamp(each.partition, since),
            min(store.offset_for_timestamp(each.partition, until), each.high_water_mark),
        )
        for each in history.partitions
    }
    return replace(history, cuts={partition: (min(first, last), last) for partition, (first, last) in cuts.items()})


def history_frame(
    spark: "SparkSession",
    dsn: str,
    history: LogHistory,
    *,
    deciders: Sequence[str] | None = None,
    events: Sequence[str] | None = None,
    columns: Sequence[str] = tuple(COLUMNS),
    extract: Mapping[str, Sequence[str]] | None = None,
    min_partitions: int = 1,
    between: tuple[datetime, datetime] | None = None,
    upcasts: str = "[]",
) -> "DataFrame":
    """Read a history as `read_history` does; with `between`, events appended at other times may be left out.

    With `upcasts`, those of the source's option, data of older event versions is returned as the newest version's.

    A job first proves that the files are the listed ones (`whole_files`). Spark's own reader takes files that are read
    whole and have columns of all wanted fields; Python tasks take the others, and all files if `between` is given
    (`spark_reader`).

    The history stays readable for a while: a lease keeps the log from being purged above the lease's beginning, and a
    replaced file stays for an hour. If a part is gone nevertheless, the query fails; it never returns fewer rows.
    """
    filters = {"deciders": deciders, "events": events}
    tails = history.tails
    selection = RowSelection(
        **{name: None if chosen is None else tuple(chosen) for name, chosen in filters.items()},
        columns=tuple(columns),
        extract=tuple((name, tuple(path)) for name, path in (extract or {}).items()),
        between=between,
        upcasts=upcasts,
    )
    proven = proven_fields(spark, history.root, history.files)
    by_spark = _for_spark(history, selection, proven)
    spark_files = set(by_spark)
    others = {file: fields for file, fields in proven.items() if file not in spark_files}
    frames = [whole_rows(spark, [history.root / file.path for file in by_spark], selection)] if by_spark else []
    tasks = shared(history.root, others, history.cuts)
    if tasks:
        frames.append(archive_rows(spark, tasks, selection))
    if not frames or any(first < last for first, last in tails.values()):
        options = {
            "dsn": lasting(dsn),
            "columns": json.dumps(list(columns)),
            "extract": json.dumps({name: list(path) for name, path in (extract or {}).items()}),
            "startingOffsets": json.dumps({str(partition): first for partition, (first, _) in tails.items()}),
            "endingOffsets": json.dumps({str(partition): last for partition, (_, last) in tails.items()}),
            "minPartitions": str(min_partitions),
            "upcasts": upcasts,
        } | {name: json.dumps(list(chosen)) for name, chosen in filters.items() if chosen is not None}
        tail = spark.read.format("event_log").options(**options).load()
        frames.append(tail)
    return reduce(type(frames[0]).unionByName, frames)


def file_tasks(spark: "SparkSession", history: LogHistory) -> list[list[FilePart]]:
    """Prove that the files of a history are the listed ones; divide their parts among tasks."""
    return shared(history.root, proven_fields(spark, history.root, history.files), history.cuts)


def _for_spark(
    history: LogHistory, selection: RowSelection, proven: Mapping[ArchivedFile, Fields]
) -> list[ArchivedFile]:
    """Return the proven files that Spark's own reader takes."""
    names = {path[0] for _, path in selection.extract}
    # for a day only a few row groups are read; upcasts need `data`
    if (
        selection.between is not None
        or selection.upcasts != "[]"
        or not spark_reads(history.root)
        or len({*map(folded, names)}) < len(names)
    ):
        return []
    return [
        file
        for file, fields in proven.items()
        # a path of two keys needs `data`, which no column holds
        if history.is_whole(file) and all(fields.hold(path) for _, path in selection.extract)
    ]


def require_whole(held: ArchivedPartition) -> None:
    """Refuse a log partition that has events neither in a file nor in the log.

    Raises:
        LogIncomplete: The text names the missing positions.
    """
    following = 0
    for from_position, to_position in (
        *((file.range.from_position, file.range.to_position) for file in held.files),
        (max(held.end, held.earliest_position), held.high_water_mark),
    ):
        if from_position > following:
            raise LogIncomplete(
                "Archive and log together do not hold every event.",
                detail=f"log partition {held.partition}: positions {following} to {from_position} are in no listed file,"
                f" and the log begins at {held.earliest_position}",
                hint="They were purged before there was an archive, or its list was changed: only a backup from before has them, and"
                " nothing can be built from the first event on without them.",
            )
        following = to_position
