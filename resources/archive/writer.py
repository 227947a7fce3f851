"""The archive: the log in Parquet files below one folder, extended from Postgres, listed there when a file is checked.

Belongs here: whose archive a folder is, which ranges are written next, extending and sweeping. Not here: a file (`archive_files`),
reading archive and log together (`log_frame`), giving up what is archived (`retention`).

    archive.json                                                       whose archive this is, and which database extends it
    p0003/p0003-000000000000000-000000001000000.parquet                positions 0 to 1,000,000 of log partition 3
    p0003/.p0003-….parquet.<32 hexadecimal digits>.tmp                 being written, or left by a kill: swept by the next run

`event_store.archive_files` lists the files, in the transaction that marks their events as archived. What is not listed is
never read. Killed anywhere, the next run goes on: it writes the same range again, under the same name. One process at a time
writes the archive of a log partition; its database session holds the lock.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import psycopg

from millrace.resources.archive.files import (
    is_temporary,
    path_of,
    range_of,
    read_range,
    require_checksum,
    sync_folder,
    write_file,
)
from millrace.resources.archive.store import ArchiveState, ArchiveStore
from millrace.resources.errors import MillraceError
from millrace.resources.event_log_source import LogRange
from millrace.resources.event_store import EventStore

MARKER = "archive.json"
MAX_EVENTS = 1_000_000
MIN_EVENTS = 10_000
# for whoever planned to read a file before it was replaced
KEEP_REPLACED_S = 3600.0


class ForeignArchive(MillraceError):
    """The folder holds the archive of another event store, or something else."""


@dataclass(frozen=True)
class ArchivedFile:
    """A listed file of the archive."""

    range: LogRange
    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class ArchivedPartition:
    """What the archive and the log hold of a log partition, in one snapshot. Files are in order."""

    archive_id: UUID
    partition: int
    earliest_position: int
    archived_position: int
    high_water_mark: int
    files: tuple[ArchivedFile, ...]

    @property
    def end(self) -> int:
        """Up to where there are files; where none is, where the log begins."""
        return self.files[-1].range.to_position if self.files else self.earliest_position


@dataclass(frozen=True)
class ArchiveReport:
    """What one call wrote, and what the archive of the log partition holds now. `busy`: somebody else was at it, nothing was done."""

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
    """Extend the archive of a log partition up to what is sequenced now.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        root: The folder of the archive.
        partition: The log partition.
        max_events: How many events a file holds at most.
        min_events: A file with fewer is small: it is written only for a `tail`, and is replaced when more events come.
        tail: Whether the last few events are archived, too, in a small file.
        keep_replaced_s: How long a replaced file stays for those who are reading it.

    Raises:
        ForeignArchive: The folder is another store's.
        ArchiveDamaged: A file could not be written as it should be.
    """
    from adbc_driver_postgresql import dbapi

    began = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        EventStore(connection).sequence_events()
        store = ArchiveStore(connection)
        before = archived(connection, partition)
        claim_folder(root, before.archive_id, _database(connection))
        if not store.lock_archive(partition):
            return _report(before, 0, began, busy=True)
        before = archived(connection, partition)  # nobody else extends it now
        sweep(root, before, keep_replaced_s)
        written = 0
        for wanted in plan(before, max_events=max_events, min_events=min_events, tail=tail):
            with dbapi.connect(dsn) as reader, reader.cursor() as cursor:
                file = write_file(root, wanted, read_range(cursor, wanted), ready=lambda: store.lock_archive(partition))
            _date_replaced(root, before, wanted)
            store.list_archive_file(
                partition, wanted.from_position, wanted.to_position, path_of(wanted), file.bytes, file.checksum
            )
            written += wanted.size
        return _report(archived(connection, partition), written, began)


def archived(connection: psycopg.Connection, partition: int) -> ArchivedPartition:
    """Return what the archive and the log hold of a log partition, in one snapshot."""
    (only,) = grouped(ArchiveStore(connection).archive_state(partition))
    return only


def grouped(rows: Sequence[ArchiveState]) -> list[ArchivedPartition]:
    """Put the rows of each log partition together."""
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


def plan(held: ArchivedPartition, *, max_events: int, min_events: int, tail: bool) -> list[LogRange]:
    """The ranges to write next, in order; a small last file is replaced by one that holds its events and new ones.

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
        and last.from_position >= held.earliest_position  # what was purged cannot be written again
    ):
        start = last.from_position
    ranges = [LogRange(held.partition, first, min(first + max_events, end)) for first in range(start, end, max_events)]
    if ranges and not tail and ranges[-1].size < min_events:
        ranges.pop()
    return ranges


def claim_folder(root: Path, archive_id: UUID, database: str) -> None:
    """Make a folder the archive of this store, which only this database extends; several callers may do it at once.

    A copy of a database is the same store by its id, and would replace and sweep what the other one wrote.

    Raises:
        ForeignArchive: It is another store's or another database's, or holds something else.
    """
    root.mkdir(parents=True, exist_ok=True)
    marker = root / MARKER
    if not marker.exists():
        foreign = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
        if foreign and not marker.exists():
            raise ForeignArchive(
                f"{root} holds no archive, and is not empty.",
                detail=f"It holds {', '.join(foreign[:5])}.",
                hint="Choose an empty folder.",
            )
        with suppress(FileExistsError):  # somebody else was first
            _write_marker(root, archive_id, database, new=True)
    found = require_folder(root, archive_id)
    if found is None:
        _write_marker(root, archive_id, database, new=False)
    elif found != database:
        raise ForeignArchive(
            f"{root} is extended by another database than this copy of it.",
            detail=f"It is {found} (cluster/database) that extends it; this one is {database}.",
            hint="Set MILLRACE_ARCHIVE_DIR to a copy of the folder, unless that database is gone for good, or was this one"
            f' before pg_upgrade. Then remove "database" from {MARKER} there: this one goes on.',
        )


def _write_marker(root: Path, archive_id: UUID, database: str, *, new: bool) -> None:
    temporary = root / f".{MARKER}.{uuid4().hex}.tmp"
    try:
        with temporary.open("x") as sink:
            json.dump({"archive": str(archive_id), "database": database}, sink)
            sink.flush()
            os.fsync(sink.fileno())
        if new:
            (root / MARKER).hardlink_to(temporary)
        else:
            temporary.replace(root / MARKER)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(root)


def _database(connection: psycopg.Connection) -> str:
    """What this database is and no copy of it: the cluster's number and the database's in it."""
    ((name,),) = connection.execute(
        "select format('%s/%s', (select system_identifier from pg_control_system()), oid)"
        " from pg_database where datname = current_database()"
    ).fetchall()
    return str(name)


def require_folder(root: Path, archive_id: UUID) -> str | None:
    """Refuse a folder that is not the archive of this store; return which database extends it, if that is said.

    Raises:
        ForeignArchive: It is not.
    """
    try:
        marker = json.loads((root / MARKER).read_text())
        found, database = marker["archive"], marker.get("database")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForeignArchive(
            f"{root} is no archive.",
            detail=f"{MARKER}: {error}",
            hint="Set MILLRACE_ARCHIVE_DIR to where the archive is.",
        ) from error
    if found != str(archive_id):
        raise ForeignArchive(
            f"{root} is the archive of another event store.",
            detail=f"It is that of {found}; this store's is {archive_id}.",
            hint="Choose another folder. A restored store has an archive of its own.",
        )
    return None if database is None else str(database)


def sweep(root: Path, held: ArchivedPartition, keep_replaced_s: float = KEEP_REPLACED_S) -> None:
    """Remove what killed runs left and what was replaced long enough ago. Only with the lock of the log partition."""
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


def require_files(root: Path, held: ArchivedPartition, to_position: int) -> int:
    """Check by their checksums that the files hold the log up to a position, from where the log begins; return how many they are.

    Raises:
        ArchiveDamaged: A file is missing or not what was written.
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


def _date_replaced(root: Path, held: ArchivedPartition, wanted: LogRange) -> None:
    """Let the time until they are removed count from now for the files that a new one is about to replace.

    Before it is listed: nobody else would, were this killed in between.
    """
    for file in held.files:
        if wanted.from_position <= file.range.from_position and file.range.to_position <= wanted.to_position:
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
