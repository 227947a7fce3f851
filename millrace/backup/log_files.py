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
    available: Sequence[ArchivedPartition],
    reread: Callable[[], Sequence[ArchivedPartition]],
    before: Manifest | None,
    archive: Path | None,
    max_events: int,
    progress: Progress,
) -> tuple[tuple[BackedUpFile, ...], tuple[BackedUpPartition, ...]]:
    """Add the events up to the cut that an earlier backup lacks; return all files and log partitions, in order.

    Args:
        folder: The backup.
        cursor: An ADBC cursor.
        available: The log partitions in archive and log, in the snapshot of the cut.
        reread: Begins another snapshot for the cursor, and rereads `available`: archived events may be removed by then.
        before: The earlier backup in this folder.
        archive: The folder of the archive.
        max_events: How many events a file holds at most.
        progress: Called after each file.

    Raises:
        ForeignBackup: Events are neither in the store nor in the archive.
        ArchiveDamaged: A needed file of the archive is not whole.
    """
    earlier_partitions = {each.partition: each for each in before.partitions} if before else {}
    partitions = []
    ranges: list[LogRange] = []
    for each in available:
        earlier = earlier_partitions.get(each.partition)
        first, end = earlier.earliest_position if earlier else each.earliest_position, each.high_water_mark
        # a first backup begins at the first of the files that lead up to the log, or at the log's beginning
        for archived in () if earlier else reversed(each.files):
            if archived.range.from_position < first <= archived.range.to_position:
                first = archived.range.from_position
        ranges += [
            LogRange(each.partition, begin, min(begin + max_events, end))
            for begin in range(earlier.high_water_mark if earlier else first, end, max_events)
        ]
        partitions.append(BackedUpPartition(each.partition, first, end))
    total, written = sum(each.size for each in ranges), 0
    files = list(before.files) if before else []
    for each_range in ranges:
        (current,) = (each for each in reread() if each.partition == each_range.partition)
        batches = _batches(cursor, each_range, current, archive)
        file = write_file(folder / LOG, each_range, batches)
        files.append(BackedUpFile(**vars(each_range), bytes=file.bytes, checksum=file.checksum))
        written += each_range.size
        progress(written, total)
    return tuple(sorted(files, key=lambda file: file.range)), tuple(partitions)


def _batches(
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    log_range: LogRange,
    available: ArchivedPartition,
    archive: Path | None,
) -> Iterator[pa.RecordBatch]:
    """Read a range: events that the log no longer has from the archive, the others from the log."""
    purged = LogRange(
        log_range.partition, log_range.from_position, min(log_range.to_position, available.earliest_position)
    )
    in_log = LogRange(
        log_range.partition, max(log_range.from_position, available.earliest_position), log_range.to_position
    )
    parts: list[Iterator[pa.RecordBatch]] = []
    if purged.size > 0:
        files = [
            file
            for file in available.files
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
        require_folder(archive, available.archive_id)
        for file in files:
            require_checksum(archive / file.path, file.bytes, file.checksum)
        parts += [read_file(archive / file.path, purged) for file in files]
    if in_log.size > 0:
        parts.append(read_range(cursor, in_log))
    return chain(*parts)
