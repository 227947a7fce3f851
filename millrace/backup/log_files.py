"""The log of a backup, in files like those of the archive; each later backup adds some."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.archive.files import read_file, read_range, require_checksum, write_file
from millrace.archive.folder import require_folder
from millrace.archive.listing import ArchivedPartition
from millrace.backup.manifest import LOG, BackedUpFile, BackedUpPartition, ForeignBackup, Manifest
from millrace.spark.log_source import LogRange

# called with how many events are done, and the total
Progress = Callable[[int, int], None]


def write_log(
    folder: Path,
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    held: Sequence[ArchivedPartition],
    afresh: Callable[[], Sequence[ArchivedPartition]],
    before: Manifest | None,
    archive: Path | None,
    max_events: int,
    progress: Progress,
) -> tuple[tuple[BackedUpFile, ...], tuple[BackedUpPartition, ...]]:
    """Add the events up to the cut that an earlier backup lacks; return all files and log partitions, in order.

    Args:
        folder: The backup.
        cursor: An ADBC cursor.
        held: The log partitions in archive and log, in the snapshot of the cut.
        afresh: Begins another snapshot for the cursor, and rereads `held`: archived events may be removed meanwhile.
        before: The earlier backup in this folder.
        archive: The folder of the archive.
        max_events: How many events a file holds at most.
        progress: Called after each file.

    Raises:
        ForeignBackup: Events are neither in the store nor in the archive.
        ArchiveDamaged: A needed file of the archive is not whole.
    """
    there = {each.partition: each for each in before.partitions} if before else {}
    partitions = []
    wanted: list[LogRange] = []
    for each in held:
        known = there.get(each.partition)
        first, end = known.earliest_position if known else each.earliest_position, each.high_water_mark
        # a first backup begins at the first of the files that lead up to the log, or at the log's beginning
        for archived in () if known else reversed(each.files):
            if archived.range.from_position < first <= archived.range.to_position:
                first = archived.range.from_position
        wanted += [
            LogRange(each.partition, begin, min(begin + max_events, end))
            for begin in range(known.high_water_mark if known else first, end, max_events)
        ]
        partitions.append(BackedUpPartition(each.partition, first, end))
    total, done = sum(each.size for each in wanted), 0
    files = list(before.files) if before else []
    for each_range in wanted:
        (now,) = (each for each in afresh() if each.partition == each_range.partition)
        batches = _batches(cursor, each_range, now, archive)
        file = write_file(folder / LOG, each_range, batches)
        files.append(BackedUpFile(**vars(each_range), bytes=file.bytes, checksum=file.checksum))
        done += each_range.size
        progress(done, total)
    return tuple(sorted(files, key=lambda file: file.range)), tuple(partitions)


def _batches(
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    wanted: LogRange,
    held: ArchivedPartition,
    archive: Path | None,
) -> Iterator[pa.RecordBatch]:
    """Read a range: events that the log no longer has from the archive, the others from the log."""
    purged = LogRange(wanted.partition, wanted.from_position, min(wanted.to_position, held.earliest_position))
    kept = LogRange(wanted.partition, max(wanted.from_position, held.earliest_position), wanted.to_position)
    parts: list[Iterator[pa.RecordBatch]] = []
    if purged.size > 0:
        files = [
            file
            for file in held.files
            if file.range.to_position > purged.from_position and file.range.from_position < purged.to_position
        ]
        if archive is None or not files:
            raise ForeignBackup(
                f"Positions {purged.from_position} to {purged.to_position} of log partition {purged.partition} are not in the store any more.",
                detail=f"{len(files)} files of the archive hold some of them.",
                hint="Say where the archive is: --archive, or MILLRACE_ARCHIVE_DIR."
                if files
                else "Choose another folder.",
            )
        require_folder(archive, held.archive_id)
        for file in files:
            require_checksum(archive / file.path, file.bytes, file.checksum)
        parts += [read_file(archive / file.path, purged) for file in files]
    if kept.size > 0:
        parts.append(read_range(cursor, kept))
    return chain(*parts)
