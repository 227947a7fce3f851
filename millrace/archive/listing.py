"""The listed files of each log partition, beside the positions that the log still holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg

from millrace.archive.files import require_checksum
from millrace.archive.folder import require_folder
from millrace.archive.store import ArchiveState, ArchiveStore
from millrace.spark.log_source import LogRange


@dataclass(frozen=True)
class ArchivedFile:
    """A listed file of the archive."""

    range: LogRange
    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class ArchivedPartition:
    """A log partition in the archive and in the log, in one snapshot; its files are in order."""

    archive_id: UUID
    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    files: tuple[ArchivedFile, ...]

    @property
    def end(self) -> int:
        """The position after the last file; without files, the first position of the log."""
        return self.files[-1].range.to_position if self.files else self.earliest_position


def archived(connection: psycopg.Connection, partition: int) -> ArchivedPartition:
    """Read the listing of one log partition, in one snapshot."""
    (only,) = grouped(ArchiveStore(connection).archive_state(partition))
    return only


def grouped(rows: Sequence[ArchiveState]) -> list[ArchivedPartition]:
    """Group rows by log partition."""
    files: dict[int, list[ArchivedFile]] = {row.partition: [] for row in rows}
    for row in rows:
        if row.path is not None and row.from_position is not None and row.to_position is not None:
            held = LogRange(row.partition, row.from_position, row.to_position)
            files[row.partition].append(ArchivedFile(held, row.path, row.bytes or 0, row.checksum or ""))
    marks = {row.partition: row for row in rows}
    return [
        ArchivedPartition(
            row.archive_id,
            partition,
            row.earliest_position,
            row.archived_position,
            row.high_water_mark,
            tuple(files[partition]),
        )
        for partition, row in marks.items()
    ]


def require_files(root: Path, held: ArchivedPartition, to_position: int) -> int:
    """Check the checksums of the files with the log's positions below `to_position`; return how many files these are.

    Raises:
        ArchiveDamaged: A file is missing or changed.
        ForeignArchive: The folder is not this store's archive.
    """
    require_folder(root, held.archive_id)
    needed = [
        file
        for file in held.files
        if file.range.to_position > held.earliest_position and file.range.from_position < to_position
    ]
    for file in needed:
        require_checksum(root / file.path, file.bytes, file.checksum)
    return len(needed)
