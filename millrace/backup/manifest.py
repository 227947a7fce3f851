"""The manifest of a backup: its files and tables with checksums, and the other contents of the folder.

    manifest.json                          {"checksum": "<SHA-256 of body>", "body": {…}}
    log/p0003/p0003-…-….parquet            the log, in files like those of the archive; later backups add some
    .reading                               locked by a restore; a backup removes no file meanwhile
    state/<id>/deciders.parquet            a table at the cut, every column as Postgres' text; one folder per backup

The manifest is written last; without it there is no backup.
"""

import fcntl
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from millrace.archive.files import path_of, require_checksum, whole_file
from millrace.errors import ArchiveDamaged, BackupDamaged, MillraceError
from millrace.spark.log_source import LogRange

FORMAT = 1
MANIFEST = "manifest.json"
LOG = "log"
STATE = "state"
READING = ".reading"
# a store continues above the numbers of a backup: a sequence at its end would never append again
GREATEST = 2**62


class NoBackup(MillraceError):
    """The folder holds no finished backup."""


class ForeignBackup(MillraceError):
    """The folder holds a backup of another event store, a backup of a later time of this one, or other files."""


@dataclass(frozen=True)
class BackedUpFile:
    """A file of the log."""

    partition: int
    from_position: int
    to_position: int
    bytes: int
    checksum: str

    @property
    def range(self) -> LogRange:
        """The positions that it holds."""
        return LogRange(self.partition, self.from_position, self.to_position)

    @property
    def path(self) -> str:
        """Its path below the backup's folder."""
        return f"{LOG}/{path_of(self.range)}"


@dataclass(frozen=True)
class BackedUpTable:
    """A table of the cut."""

    table: str
    columns: tuple[str, ...]
    path: str
    rows: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class BackedUpPartition:
    """A log partition of a backup: the positions [earliest_position, high_water_mark)."""

    partition: int
    earliest_position: int
    high_water_mark: int

    @property
    def events(self) -> int:
        """The number of its events."""
        return self.high_water_mark - self.earliest_position


@dataclass(frozen=True)
class Manifest:
    """The content of a backup.

    Attributes:
        format: The version of this format.
        schema_version: The last migration of the store.
        archive_id: The identity of the store.
        taken_at: The time of the cut, by Postgres' clock.
        last_offset: The last offset that the store assigned.
        lease_token: The last lease token that the store assigned.
        partitions: Every log partition, in order.
        files: The files of the log, in order.
        tables: The tables.
        left_out: The views of read models, which are rebuilt.
    """

    format: int
    schema_version: int
    archive_id: str
    taken_at: str
    last_offset: int
    lease_token: int
    partitions: tuple[BackedUpPartition, ...]
    files: tuple[BackedUpFile, ...]
    tables: tuple[BackedUpTable, ...]
    left_out: tuple[str, ...]

    @property
    def events(self) -> int:
        """The number of its events."""
        return sum(partition.events for partition in self.partitions)

    @property
    def entries(self) -> tuple[BackedUpFile | BackedUpTable, ...]:
        """Its files of both kinds."""
        return (*self.files, *self.tables)

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def cut_time(self) -> datetime:
        """The time of the cut."""
        return datetime.fromisoformat(self.taken_at)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, whole or not at all."""
    body = _text(asdict(manifest))
    with whole_file(folder / MANIFEST) as sink:
        sink.write(f'{{"checksum": "{_checksum(body)}", "body": {body}}}\n'.encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a finished backup.

    Raises:
        NoBackup: There is none.
        BackupDamaged: The manifest has changed, or is of a later version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoBackup(
            f"{folder} holds no finished backup.",
            detail=f"There is no {MANIFEST}: it is written when everything else is there.",
            hint=f"Take one: millrace backup {shlex.quote(str(folder))}",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BackupDamaged(f"{path} cannot be read.", detail=str(error), hint="Put it back from a copy.") from error
    try:
        document = json.loads(text)
        body = document["body"]
        if document["checksum"] != _checksum(_text(body)):
            raise ValueError("it has another checksum than was written")
        if body["format"] != FORMAT:
            raise BackupDamaged(
                f"{path} has format {body['format']}, and this version of Millrace reads {FORMAT}.",
                hint="Use the version of Millrace that wrote it, or a later one.",
            )
        return _manifest(body)
    except (ValueError, KeyError, TypeError) as error:
        raise BackupDamaged(f"{path} is damaged.", detail=str(error), hint="Put it back from a copy.") from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep the files that a manifest names during the block, even if later backups end meanwhile.

    A copy of a backup has nothing to lock, because no process takes backups into it.
    """
    try:
        lock = (folder / READING).open()
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@contextmanager
def nobody_reads(folder: Path) -> Iterator[bool]:
    """Yield whether no process reads the backup; if so, none begins to before the end of the block."""
    with (folder / READING).open("a") as lock:
        free = False
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free


def require_backup(folder: Path, manifest: Manifest) -> None:
    """Check every file of a backup by its checksum, and that the log's files make up the log.

    Raises:
        BackupDamaged: One is missing or changed; the text names it.
    """
    next_positions = {partition.partition: partition.earliest_position for partition in manifest.partitions}
    for file in manifest.files:
        if next_positions.get(file.partition) != file.from_position:
            raise BackupDamaged(
                f"{folder / MANIFEST} is damaged.", detail=f"{file.path} does not follow the file before it."
            )
        next_positions[file.partition] = file.to_position
    if next_positions != {partition.partition: partition.high_water_mark for partition in manifest.partitions}:
        raise BackupDamaged(f"{folder / MANIFEST} is damaged.", detail="Its files do not reach the high-water marks.")
    root = folder.resolve()
    for entry in manifest.entries:
        if not (root / entry.path).resolve().is_relative_to(root):
            raise BackupDamaged(
                f"{folder / MANIFEST} names a file outside of the backup.",
                detail=f"{entry.path} leads to {(root / entry.path).resolve()}.",
                hint="Nothing was restored. Restore another backup.",
            )
    try:
        for entry in manifest.entries:
            require_checksum(folder / entry.path, entry.bytes, entry.checksum)
    except ArchiveDamaged as error:
        raise BackupDamaged(
            error.message,
            hint="Nothing was restored. Put the file back from a copy of the backup, or restore another backup.",
        ) from error


def _manifest(body: dict[str, Any]) -> Manifest:
    """Read a manifest without trust in its author: a checksum is no signature.

    Raises:
        ValueError: A number is out of range, or a file lies where no backup puts it.
    """
    manifest = Manifest(
        **{
            **body,
            "partitions": tuple(BackedUpPartition(**each) for each in body["partitions"]),
            "files": tuple(BackedUpFile(**each) for each in body["files"]),
            "tables": tuple(BackedUpTable(**{**each, "columns": tuple(each["columns"])}) for each in body["tables"]),
            "left_out": tuple(body["left_out"]),
        }
    )
    numbers: list[object] = [manifest.last_offset, manifest.lease_token]
    for partition in manifest.partitions:
        numbers += [partition.partition, partition.earliest_position, partition.high_water_mark]
    for file in manifest.files:
        numbers += [file.partition, file.from_position, file.to_position]
    for entry in manifest.entries:
        numbers.append(entry.bytes)
    for number in numbers:
        if type(number) is not int or not 0 <= number <= GREATEST:
            raise ValueError(f"it states {number!r} for a number from 0 to {GREATEST}")
    for table in manifest.tables:
        if not re.fullmatch(rf"{STATE}/[0-9A-Za-z_-]+/{re.escape(table.table)}\.parquet", table.path):
            raise ValueError(f"the table {table.table} lies at {table.path!r}")
    return manifest


def _text(body: object) -> str:
    return json.dumps(body, sort_keys=True, ensure_ascii=False)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
