"""A backup: the log up to one consistent cut, in Parquet, and the tables beside it.

The cut is one snapshot of Postgres. The log below its marks never changes, so each of its files is read in its own
snapshot: an open snapshot keeps Postgres from removing dead row versions. A later backup into the same folder adds
newer events. The manifest is written last: after a kill at any moment, the backup before it is whole.

Not in a backup: read models with their views, which are rebuilt from the first event; the position of a change
capture in its source, because the source moves on; the roles and settings of the database.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from psycopg import sql

from millrace.archive.files import is_temporary
from millrace.archive.listing import ArchivedPartition, grouped
from millrace.archive.store import NO_TIME_LIMITS, ArchiveState
from millrace.archive.writer import MAX_EVENTS
from millrace.backup.log_files import Progress, write_log
from millrace.backup.manifest import (
    FORMAT,
    LOG,
    READING,
    STATE,
    ForeignBackup,
    Manifest,
    NoBackup,
    nobody_reads,
    read_manifest,
    write_manifest,
)
from millrace.backup.state_tables import write_state
from millrace.errors import MillraceError
from millrace.event_store.migrations import read_migrations, validate
from millrace.event_store.platform import PlatformStore
from millrace.patience import LOOK_S, PATIENCE_S
from millrace.postgres.connecting import connect, lasting
from millrace.processes import only_one
from millrace.producers import ProducerStore
from millrace.spark.log_source import in_utf8

LOCK = ".lock"


class Busy(MillraceError):
    """Another process writes this backup."""


def backup(
    dsn: str,
    folder: Path,
    *,
    archive: Path | None = None,
    max_events: int = MAX_EVENTS,
    progress: Progress = lambda _done, _total: None,
) -> Manifest:
    """Take a backup into a folder; in the folder of an earlier one, only add newer events to its log.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        folder: The backup's folder; it is created if it does not exist.
        archive: The folder of the archive, for events that the log has lost.
        max_events: How many events a file holds at most.
        progress: Called with how many events are written, and the total.

    Raises:
        ForeignBackup: The folder holds other files, or a backup that this store does not continue.
        ArchiveDamaged: A needed file of the archive is not whole.
        Busy: Another process writes this backup.
        MillraceError: A rotation of keys is half done.
    """
    from adbc_driver_postgresql import dbapi

    validate(dsn)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    busy = Busy(f"Another process takes a backup into {folder}.", hint="Wait until it ends.")
    with only_one(folder / LOCK, held=lambda _: busy):
        (folder / READING).touch()
        try:
            before = read_manifest(folder)
        except NoBackup:
            before = None
            _require_empty(folder)
        with dbapi.connect(in_utf8(lasting(dsn))) as connection, connection.cursor() as cursor:
            cursor.execute(NO_TIME_LIMITS)
            cursor.fetchall()
            connection.commit()
            _begin(cursor)
            with _producers_held(dsn):
                cursor.execute(
                    "select archive_id::text, last_offset, lease_token, clock_timestamp()::text"
                    " from event_store_platform.backup_cut()"
                )
                archive_id, last_offset, lease_token, taken_at = cursor.fetchone()
            cursor.execute("select count(*) from event_store.key_counts() where destroyed_at is null")
            if cursor.fetchone()[0] > 1:
                raise MillraceError(
                    "A rotation of keys is half done.",
                    detail="The file of an ended epoch is not destroyed.",
                    hint="`millrace privacy rotate` goes on with it.",
                )
            available = _read_available(cursor)
            if before is not None:
                _require_continuation(folder, before, cursor, archive_id, available)
            cursor.execute("select distinct view from read_models.declarations order by 1")
            left_out = [view for (view,) in cursor.fetchall()]
            tables = write_state(folder, cursor, left_out)

            def reread() -> list[ArchivedPartition]:
                connection.rollback()
                _begin(cursor)
                return _read_available(cursor)

            files, partitions = write_log(folder, cursor, available, reread, before, archive, max_events, progress)
        manifest = Manifest(
            FORMAT,
            read_migrations()[-1].version,
            archive_id,
            taken_at,
            last_offset,
            lease_token,
            partitions,
            files,
            tables,
            tuple(left_out),
        )
        write_manifest(folder, manifest)
        with nobody_reads(folder) as free:
            if free:  # otherwise the next backup does it
                _sweep(folder, manifest)
        return manifest


def _begin(cursor: Any) -> None:  # noqa: ANN401 - ADBC has no types
    """Begin a transaction of one snapshot, in which no function may write."""
    cursor.execute("set transaction isolation level repeatable read, read only")
    cursor.execute("set local timezone = 'UTC'")
    cursor.execute("set local datestyle = 'ISO'")


@contextmanager
def _producers_held(dsn: str) -> Iterator[None]:
    """Sequence all events, and block every producer until the cut is made.

    Otherwise the cut could hold an answer to a producer without the events of that answer.
    """
    with connect(dsn, autocommit=False) as holder, connect(dsn) as sequencer:
        PlatformStore(sequencer).sequence_events()
        deadline = time.monotonic() + PATIENCE_S
        while not _hold_producers(holder, sequencer):
            # let messages that queued behind this session go first
            holder.rollback()
            time.sleep(LOOK_S)
            if time.monotonic() > deadline:
                raise MillraceError(
                    "No backup was taken: an open transaction sequences events or handles a producer's message.",
                    hint="End it and try again. To find it: select pid, xact_start, state, query from pg_stat_activity"
                    " where datname = current_database() order by xact_start",
                )
        # a moment near the cut, also in the backup
        PlatformStore(sequencer).mark_log("backup")
        yield
        holder.rollback()


def _hold_producers(holder: psycopg.Connection, sequencer: psycopg.Connection) -> bool:
    """Block producers and sequence their events; return False if either takes too long."""
    holder.execute(sql.SQL("set lock_timeout = {}").format(f"{LOOK_S}s"))
    try:
        committed = ProducerStore(holder).hold_producers()
    except psycopg.errors.LockNotAvailable:
        return False
    deadline = time.monotonic() + LOOK_S
    store = ProducerStore(sequencer)
    while store.producer_statistics() and not store.is_sequenced(committed):
        if PlatformStore(sequencer).sequence_events() == 0 and time.monotonic() > deadline:
            return False
    return True


def _require_empty(folder: Path) -> None:
    """Refuse a folder that has other files than the leftovers of a killed backup."""
    foreign = sorted({path.name for path in folder.iterdir()} - {LOCK, READING, LOG, STATE})
    foreign = [name for name in foreign if not is_temporary(name)]
    if foreign:
        raise ForeignBackup(
            f"{folder} holds no backup, and is not empty.",
            detail=f"It holds {', '.join(foreign[:5])}.",
            hint="Choose an empty folder.",
        )


def _read_available(cursor: Any) -> list[ArchivedPartition]:  # noqa: ANN401 - ADBC has no types
    cursor.execute(
        "select archive_id::text, partition, earliest_position, archived_position, high_water_mark, from_position, to_position, path, bytes,"
        " checksum from event_store_platform.archive_state()"
    )
    return grouped([ArchiveState(*row) for row in cursor.fetchall()])


def _require_continuation(
    folder: Path,
    before: Manifest,
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    archive_id: str,
    available: Sequence[ArchivedPartition],
) -> None:
    """Refuse to add to a backup that this store does not continue.

    Raises:
        ForeignBackup: The backup is another store's, ends after this one, or the two diverged after a common beginning,
            as after a return to an earlier time.
    """
    if before.archive_id != archive_id:
        raise ForeignBackup(
            f"{folder} holds a backup of another event store.",
            detail=f"It is that of {before.archive_id}; this store is {archive_id}.",
            hint="Choose another folder. A restored store takes backups of its own.",
        )
    marks = {each.partition: each.high_water_mark for each in available}
    for partition in before.partitions:
        if partition.high_water_mark > marks[partition.partition]:
            raise ForeignBackup(
                f"{folder} holds a backup of a later time than this store is at.",
                detail=f"Log partition {partition.partition}: the backup reaches {partition.high_water_mark}, the store"
                f" {marks[partition.partition]}.",
                hint="Choose another folder.",
            )
    # in each log partition the backup's last event must be the log's event at that position, if it still has one
    for last in {file.partition: file for file in sorted(before.files, key=lambda file: file.to_position)}.values():
        cursor.execute(
            'select e.event_id::text from event_store.event_log l join event_store.events e using ("offset")'
            " where l.partition = $1 and l.position = $2",
            (last.partition, last.to_position - 1),
        )
        stored_ids = [event_id for (event_id,) in cursor.fetchall()]
        if not stored_ids:
            continue
        with pq.ParquetFile(folder / last.path) as file:
            (*_, event_id) = file.read_row_group(file.num_row_groups - 1, columns=["event_id"])["event_id"].to_pylist()
        if stored_ids != [event_id]:
            raise ForeignBackup(
                f"{folder} holds a backup of another course of this store.",
                detail=f"Position {last.to_position - 1} of log partition {last.partition} is event {event_id} there and"
                f" {stored_ids[0]} here.",
                hint="The store was set back to an earlier time and went on. Keep that backup and choose another folder.",
            )


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove the tables of earlier backups and the leftovers of killed ones."""
    state_folders = {str(Path(table.path).parent.name) for table in manifest.tables}
    for state in (folder / STATE).iterdir():
        if state.name not in state_folders:
            shutil.rmtree(state, ignore_errors=True)
    listed = {file.path for file in manifest.files}
    for path in (folder / LOG).glob("p*/*") if (folder / LOG).exists() else ():
        if str(path.relative_to(folder)) not in listed:
            path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if is_temporary(path.name):
            path.unlink(missing_ok=True)
