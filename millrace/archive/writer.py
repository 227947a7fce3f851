"""The archive: the log in Parquet files below one folder, extended from Postgres, listed there when a file is checked.

    archive.json                                                       the owner of the archive (`folder`)
    p0003/p0003-000000000000000-000000001000000.parquet                positions 0 to 1,000,000 of log partition 3
    p0003/.p0003-….parquet.<32 hexadecimal digits>.tmp                 unfinished; the next run sweeps it after a kill

A file is listed in the transaction that marks its events as archived; an unlisted file is never read. After a kill the
next run writes the same range again, under the same name. One process at a time writes the archive of a log partition;
its lock ends with its database session.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from millrace.archive.files import is_temporary, path_of, range_fields, range_of, read_range, write_file
from millrace.archive.folder import claim_folder, database_name
from millrace.archive.listing import ArchivedPartition, archived
from millrace.archive.store import NO_TIME_LIMITS, ArchiveStore
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import connect, lasting
from millrace.spark.log_source import LogRange, in_utf8

MAX_EVENTS = 1_000_000
MIN_EVENTS = 10_000
# a reader may have planned to read a file before it was replaced
KEEP_REPLACED_S = 3600.0


@dataclass(frozen=True)
class ArchiveReport:
    """The work of one call, and the archive of the log partition after it; `busy` if another process held the lock."""

    partition: int
    written: int
    seconds: float
    files: int
    events: int
    bytes: int
    archived_position: int
    high_water_mark: int
    busy: bool = False


def archive_partition(
    dsn: str,
    root: Path,
    partition: int,
    *,
    max_events: int = MAX_EVENTS,
    min_events: int = MIN_EVENTS,
    tail: bool = False,
    keep_replaced_s: float = KEEP_REPLACED_S,
) -> ArchiveReport:
    """Extend the archive of a log partition up to the last event that is sequenced now.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        root: The folder of the archive.
        partition: The log partition.
        max_events: How many events a file holds at most.
        min_events: A file with fewer is small: it is written only for a `tail`, and is replaced when more events come.
        tail: Whether the last few events are archived, too, in a small file.
        keep_replaced_s: How long a replaced file stays for its present readers, in seconds.

    Raises:
        ForeignArchive: The folder is another store's.
        ArchiveDamaged: A written file does not read back as its range.
    """
    from adbc_driver_postgresql import dbapi

    began = time.monotonic()
    with connect(dsn) as connection:
        events, store = PlatformStore(connection), ArchiveStore(connection)
        events.sequence_events()
        before = archived(connection, partition)
        claim_folder(root, before.archive_id, database_name(events.database_identity()))
        writer = f"writer {uuid4()}"
        if not store.lock_archive(partition, writer):
            return _report(before, 0, began, busy=True)
        before = archived(connection, partition)  # this writer alone extends it now
        sweep(root, before, keep_replaced_s)
        written = 0
        ranges = plan(before, max_events=max_events, min_events=min_events, tail=tail)
        if not ranges:
            return _report(before, 0, began)
        with dbapi.connect(in_utf8(lasting(dsn))) as reader, reader.cursor() as cursor:
            cursor.execute(NO_TIME_LIMITS)
            for log_range in ranges:
                fields = range_fields(cursor, log_range)
                file = write_file(
                    root,
                    log_range,
                    read_range(cursor, log_range, fields),
                    fields=fields,
                    numbers=store.number_archive_fields(fields.columns),
                    ready=lambda: store.lock_archive(partition, writer),
                )
                # a snapshot is held for one file only
                reader.commit()
                _date_replaced(root, before, log_range)
                store.list_archive_file(
                    partition,
                    log_range.from_position,
                    log_range.to_position,
                    path_of(log_range),
                    file.bytes,
                    file.checksum,
                )
                written += log_range.size
        return _report(archived(connection, partition), written, began)


def plan(held: ArchivedPartition, *, max_events: int, min_events: int, tail: bool) -> list[LogRange]:
    """Return the ranges to write next, in order; the first may replace a small last file and add newer events to it.

    Raises:
        ValueError: `min_events` is not from 1 to `max_events`.
    """
    if not 1 <= min_events <= max_events:
        raise ValueError(f"min_events must be from 1 to max_events: {min_events} and {max_events}")
    start, end = max(held.end, held.earliest_position), held.high_water_mark
    last = held.files[-1].range if held.files else None
    if (
        last is not None
        and last.to_position == start < end
        and last.size < min_events
        and last.from_position >= held.earliest_position  # purged events cannot be written again
    ):
        start = last.from_position
    ranges = [LogRange(held.partition, first, min(first + max_events, end)) for first in range(start, end, max_events)]
    if ranges and not tail and ranges[-1].size < min_events:
        ranges.pop()
    return ranges


def sweep(root: Path, held: ArchivedPartition, keep_replaced_s: float = KEEP_REPLACED_S) -> None:
    """Remove leftovers of killed runs and files replaced long enough ago. The caller holds the partition's lock."""
    folder = root / Path(path_of(LogRange(held.partition, 0, 1))).parent
    if not folder.is_dir():
        return
    listed = {Path(file.path).name for file in held.files}
    for path in folder.iterdir():
        found = range_of(path.name)
        replaced = (
            found is not None
            and path.name not in listed
            and any(
                file.range.from_position <= found.from_position and found.to_position <= file.range.to_position
                for file in held.files
            )
            and time.time() - path.stat().st_mtime >= keep_replaced_s
        )
        if replaced or is_temporary(path.name):
            path.unlink(missing_ok=True)


def _date_replaced(root: Path, held: ArchivedPartition, log_range: LogRange) -> None:
    """Restart the clock until removal for the files that a new file is about to replace.

    Call it before the new file is listed: after a kill in between no other process would restart the clock.
    """
    for file in held.files:
        if log_range.from_position <= file.range.from_position and file.range.to_position <= log_range.to_position:
            with suppress(FileNotFoundError):
                os.utime(root / file.path)


def _report(held: ArchivedPartition, written: int, began: float, *, busy: bool = False) -> ArchiveReport:
    return ArchiveReport(
        partition=held.partition,
        written=written,
        seconds=time.monotonic() - began,
        files=len(held.files),
        events=sum(file.range.size for file in held.files),
        bytes=sum(file.bytes for file in held.files),
        archived_position=held.archived_position,
        high_water_mark=held.high_water_mark,
        busy=busy,
    )
