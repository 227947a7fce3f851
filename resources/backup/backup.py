"""A backup: the log up to one consistent cut, in Parquet, and beside it what the log itself does not say.

Belongs here: taking one. Not here: its manifest (`backup_manifest`), loading it (`restore`).

The cut is one snapshot of Postgres: the high-water marks, the heads of streams as the log has them, views, checkpoints, locks
and dead letters, deciders, producers with their results and state, and the audit log. What is appended later is not in it. The
log's files of the backup before stay as they are: a later backup adds what came since. The manifest is written last; killed
anywhere, the backup before is whole.

Not in it: read models, which are derived and are built anew from the first event, with the views that feed them; where a change
capture stands in its source, which goes on meanwhile; and the roles and settings of the database.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.resources.archive.files import (
    BATCH_BYTES,
    file_checksum,
    is_temporary,
    read_file,
    read_range,
    require_checksum,
    sync_folder,
    write_file,
)
from millrace.resources.archive.folder import require_folder
from millrace.resources.archive.listing import ArchivedPartition, grouped
from millrace.resources.archive.store import ArchiveState
from millrace.resources.archive.writer import MAX_EVENTS
from millrace.resources.backup.manifest import (
    FORMAT,
    LOG,
    READING,
    STATE,
    BackedUpFile,
    BackedUpPartition,
    BackedUpTable,
    Manifest,
    NoBackup,
    nobody_reads,
    read_manifest,
    write_manifest,
)
from millrace.resources.errors import MillraceError
from millrace.resources.event_log_source import LogRange
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import LOCK_TIMEOUT_MS, PATIENCE_S, known_migrations, validate
from millrace.resources.producers import ProducerStore

# table -> where its rows are read, and its columns; each becomes text, as Postgres writes it
STATE_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "deciders": ("event_store.deciders", ("decider", "event", "event_version", "description")),
    "streams": (
        "event_store.sequenced_streams()",
        ("decider", "decider_id", "last_event_id", "last_offset", "version", "final"),
    ),
    "views": (
        "event_store.views",
        (
            "view", "start_at", "lock_timeout_s", "pooling_delay_s", "edge_function_url", "created_at", "updated_at", "mode",
            "deciders", "events", "enabled", "max_attempts",
        ),
    ),
    "checkpoints": (
        "event_store.checkpoints",
        (
            "view", "partition", "position", "lease_owner", "lease_token", "leased_until", "leased_from", "leased_to", "rebuilds",
        ),
    ),
    "stream_locks": (
        "event_store.stream_locks",
        (
            "view", "decider", "decider_id", "partition", "last_offset", "locked_until", "in_flight", "attempts", "last_error",
            "parked_at", "created_at", "updated_at", "lease_token", "lease_pid", "taken_over", "caught_up", "nothing_after",
        ),
    ),
    "audit_log": (
        "event_store.audit_log",
        ("audit_id", "done_at", "done_by", "operation", "view", "reason", "detail"),
    ),
    # not where a capture stands: its source has gone on, so a restored store reads the tables anew
    "source_generations": (
        "event_store.source_generations",
        ("source_generation", "capture", "system_identifier", "database", "slot", "start_lsn", "began_at"),
    ),
    "quarantined_changes": (
        "event_store.quarantined_changes",
        (
            "quarantine_id", "capture", "source_generation", "commit_lsn", "commit_idx", "xid", "committed_at", "decider",
            "decider_id", "action", "event_id", "command_id", "data", "fault", "raw", "relation", "after_offset", "quarantined_at",
        ),
    ),
    "capture_gaps": (
        "event_store.capture_gaps",
        ("gap_id", "capture", "source_generation", "from_lsn", "to_lsn", "reason", "detected_at", "resolved_by_generation"),
    ),
    "producers": (
        "event_store.producers",
        (
            "producer_id", "partition", "epoch", "next_sequence", "received", "duplicates", "refused", "opened", "committed", "aborted",
            "abandoned", "expired", "superseded", "registered_at", "updated_at",
        ),
    ),
    "producer_results": (
        "event_store.producer_results",
        ("producer_id", "partition", "sequence", "outcome", "result", "offsets", "reason", "transaction_id", "ended_at"),
    ),
    "producer_state": ("event_store.producer_state", ("producer_id", "partition", "key", "value")),
}  # fmt: skip
# the rows of a read model's view say what its tables hold, and those are not in the backup
_OF_VIEWS = {"views", "checkpoints", "stream_locks"}
# a session of this cluster is none of another one
_EXPRESSIONS = {"lease_pid": "case when lease_pid is not null then 0 end"}

Progress = Callable[[int, int], None]


class ForeignBackup(MillraceError):
    """The folder holds a backup of another event store, or of a later time of this one, or something else."""


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
    """Take a backup into a folder; into that of an earlier one, only what came since is added to the log.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        folder: Where to; it is made if need be.
        archive: The folder of the archive, for events that the log does not hold any more.
        max_events: How many events a file holds at most.
        progress: Called with how many events are written, and of how many.

    Raises:
        ForeignBackup: The folder holds something else.
        ArchiveDamaged: A file of the archive that is needed is not whole.
        Busy: Another process writes this backup.
    """
    from adbc_driver_postgresql import dbapi

    validate(dsn)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder):
        try:
            before = read_manifest(folder)
        except NoBackup:
            before = None
            _require_empty(folder)
        with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
            # read only, but for what functions must be let do
            cursor.execute("set transaction isolation level repeatable read, read only")
            cursor.execute("set local timezone = 'UTC'")
            with _producers_held(dsn):
                cursor.execute(
                    "select archive_id::text, last_offset, lease_token, clock_timestamp()::text from event_store.backup_cut()"
                )
                archive_id, last_offset, lease_token, taken_at = cursor.fetchone()
            held = _held(cursor)
            if before is not None:
                _require_continuation(folder, before, archive_id, held)
                _require_same_history(folder, before, cursor)
            left_out = _column(cursor, "select distinct view from read_models.declarations order by 1")
            tables = _write_state(folder, cursor, left_out)
            files, partitions = _write_log(folder, cursor, held, before, archive, max_events, progress)
        manifest = Manifest(
            FORMAT,
            known_migrations()[-1].version,
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
            if free:  # or else the next backup does it
                _sweep(folder, manifest)
        return manifest


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel frees that of a killed process."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"Another process takes a backup into {folder}.", hint="Wait until it ends.") from error
        (folder / READING).touch()
        yield


@contextmanager
def _producers_held(dsn: str) -> Iterator[None]:
    """Sequence all events, and let no producer go on until the cut is made: else it might have been answered what is not in the log."""
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as sequencer:
        EventStore(sequencer).sequence_events()
        deadline = time.monotonic() + PATIENCE_S
        while not _hold_producers(holder, sequencer):
            # those who queued behind us go first
            holder.rollback()
            time.sleep(LOCK_TIMEOUT_MS / 1000)
            if time.monotonic() > deadline:
                raise MillraceError(
                    "No backup was taken: somebody's open transaction sequences events or does a producer's message.",
                    hint="End it and try again. To find it: select pid, xact_start, state, query from pg_stat_activity"
                    " where datname = current_database() order by xact_start",
                )
        yield
        holder.rollback()


def _hold_producers(holder: psycopg.Connection, sequencer: psycopg.Connection) -> bool:
    """Hold producers, if there are any sequence all that they did, and return whether that did not take long."""
    holder.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}".encode())
    try:
        committed = ProducerStore(holder).hold_producers()
    except psycopg.errors.LockNotAvailable:
        return False
    deadline = time.monotonic() + LOCK_TIMEOUT_MS / 1000
    store = ProducerStore(sequencer)
    while store.producer_statistics() and not store.is_sequenced(committed):
        if EventStore(sequencer).sequence_events() == 0 and time.monotonic() > deadline:
            return False
    return True


def _require_empty(folder: Path) -> None:
    """Refuse a folder with somebody's files; those of a backup that was killed are ours."""
    foreign = sorted({path.name for path in folder.iterdir()} - {".lock", READING, LOG, STATE})
    foreign = [name for name in foreign if not is_temporary(name)]
    if foreign:
        raise ForeignBackup(
            f"{folder} holds no backup, and is not empty.",
            detail=f"It holds {', '.join(foreign[:5])}.",
            hint="Choose an empty folder.",
        )


def _held(cursor: Any) -> list[ArchivedPartition]:  # noqa: ANN401 - ADBC has no types
    cursor.execute(
        "select archive_id::text, partition, earliest_position, archived_position, high_water_mark, from_position, to_position, path, bytes,"
        " checksum from event_store.archive_state()"
    )
    return grouped([ArchiveState(*row) for row in cursor.fetchall()])


def _require_continuation(folder: Path, before: Manifest, archive_id: str, held: Sequence[ArchivedPartition]) -> None:
    """Refuse to add to a backup that this store does not continue.

    Raises:
        ForeignBackup: It is another store's, or ends beyond this one.
    """
    if before.archive_id != archive_id:
        raise ForeignBackup(
            f"{folder} holds a backup of another event store.",
            detail=f"It is that of {before.archive_id}; this store is {archive_id}.",
            hint="Choose another folder. A restored store takes backups of its own.",
        )
    marks = {each.partition: each.high_water_mark for each in held}
    for partition in before.partitions:
        if partition.high_water_mark > marks[partition.partition]:
            raise ForeignBackup(
                f"{folder} holds a backup of a later time than this store is at.",
                detail=f"Log partition {partition.partition}: the backup reaches {partition.high_water_mark}, the store"
                f" {marks[partition.partition]}.",
                hint="Choose another folder.",
            )


def _require_same_history(folder: Path, before: Manifest, cursor: Any) -> None:  # noqa: ANN401 - ADBC has no types
    """Refuse a store that went another way after a common beginning, as one that was set back to an earlier time does.

    The last event of each log partition that the backup has and the log still holds must be the same.

    Raises:
        ForeignBackup: One is another.
    """
    for last in {file.partition: file for file in sorted(before.files, key=lambda file: file.to_position)}.values():
        cursor.execute(
            'select e.event_id::text from event_store.event_log l join event_store.events e using ("offset")'
            " where l.partition = $1 and l.position = $2",
            (last.partition, last.to_position - 1),
        )
        found = [event_id for (event_id,) in cursor.fetchall()]
        if not found:
            continue
        with pq.ParquetFile(folder / last.path) as file:
            (*_, event_id) = file.read_row_group(file.num_row_groups - 1, columns=["event_id"])["event_id"].to_pylist()
        if found != [event_id]:
            raise ForeignBackup(
                f"{folder} holds a backup of another course of this store.",
                detail=f"Position {last.to_position - 1} of log partition {last.partition} is event {event_id} there and"
                f" {found[0]} here.",
                hint="The store was set back to an earlier time and went on. Keep that backup and choose another folder.",
            )


def _column(cursor: Any, query: str) -> list[str]:  # noqa: ANN401 - ADBC has no types
    cursor.execute(query)
    return [value for (value,) in cursor.fetchall()]


def _write_state(folder: Path, cursor: Any, left_out: Sequence[str]) -> tuple[BackedUpTable, ...]:  # noqa: ANN401
    """Write the tables into a folder of this backup's own."""
    from adbc_driver_postgresql import StatementOptions
    from psycopg import sql

    state = folder / STATE / uuid4().hex
    state.mkdir(parents=True)
    written = []
    for table, (source, columns) in STATE_TABLES.items():
        texts = ", ".join(f"({_EXPRESSIONS.get(column, column)})::text as {column}" for column in columns)
        others = sql.Literal(list(left_out)).as_string() if left_out and table in _OF_VIEWS else None
        condition = f" where view <> all ({others}::text[])" if others else ""
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
        cursor.execute(f"select {texts} from {source}{condition}")  # noqa: S608 - names of ours and a literal
        schema = pa.schema([(column, pa.string()) for column in columns])
        path, rows = state / f"{table}.parquet", 0
        with path.open("xb") as sink:
            with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
                for batch in cursor.fetch_record_batch():
                    writer.write_batch(batch.cast(schema))
                    rows += len(batch)
            sink.flush()
            os.fsync(sink.fileno())
        name = str(path.relative_to(folder))
        written.append(BackedUpTable(table, columns, name, rows, path.stat().st_size, file_checksum(path)))
    sync_folder(state)
    sync_folder(state.parent)
    return tuple(written)


def _write_log(
    folder: Path,
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    held: Sequence[ArchivedPartition],
    before: Manifest | None,
    archive: Path | None,
    max_events: int,
    progress: Progress,
) -> tuple[tuple[BackedUpFile, ...], tuple[BackedUpPartition, ...]]:
    """Add what is missing of the log up to the cut."""
    there = {each.partition: each for each in before.partitions} if before else {}
    partitions = []
    wanted: list[LogRange] = []
    for each in held:
        known = there.get(each.partition)
        first = known.earliest_position if known else _first(each)
        start, end = known.high_water_mark if known else first, each.high_water_mark
        wanted += [
            LogRange(each.partition, begin, min(begin + max_events, end)) for begin in range(start, end, max_events)
        ]
        partitions.append(BackedUpPartition(each.partition, first, end))
    by_partition = {each.partition: each for each in held}
    total, done = sum(each.size for each in wanted), 0
    files = list(before.files) if before else []
    for each_range in wanted:
        batches = _batches(cursor, each_range, by_partition[each_range.partition], archive)
        file = write_file(folder / LOG, each_range, batches)
        files.append(BackedUpFile(**vars(each_range), bytes=file.bytes, checksum=file.checksum))
        done += each_range.size
        progress(done, total)
    return tuple(sorted(files, key=lambda file: file.range)), tuple(partitions)


def _first(held: ArchivedPartition) -> int:
    """Where the backup of a log partition begins: with the files that lead up to what the log still holds, else with that."""
    first = held.earliest_position
    for file in reversed(held.files):
        if file.range.from_position < first <= file.range.to_position:
            first = file.range.from_position
    return first


def _batches(
    cursor: Any,  # noqa: ANN401 - ADBC has no types
    wanted: LogRange,
    held: ArchivedPartition,
    archive: Path | None,
) -> Iterator[pa.RecordBatch]:
    """Read a range: what the log holds from there, what is below from the archive."""
    purged = LogRange(wanted.partition, wanted.from_position, min(wanted.to_position, held.earliest_position))
    kept = LogRange(wanted.partition, max(wanted.from_position, held.earliest_position), wanted.to_position)
    parts: list[Iterator[pa.RecordBatch]] = []
    if purged.size > 0:
        parts += [_archived(file, purged) for file in _needed(purged, held, archive)]
    if kept.size > 0:
        parts.append(read_range(cursor, kept))
    return chain(*parts)


def _needed(purged: LogRange, held: ArchivedPartition, archive: Path | None) -> list[Path]:
    """The files of the archive that hold a range, checked."""
    files = [
        file
        for file in held.files
        if file.range.to_position > purged.from_position and file.range.from_position < purged.to_position
    ]
    if archive is None or not files:
        raise ForeignBackup(
            f"Positions {purged.from_position} to {purged.to_position} of log partition {purged.partition} are not in the store any more.",
            detail=f"{len(files)} files of the archive hold some of them.",
            hint="Say where the archive is: --archive, or MILLRACE_ARCHIVE_DIR." if files else "Choose another folder.",
        )
    require_folder(archive, held.archive_id)
    for file in files:
        require_checksum(archive / file.path, file.bytes, file.checksum)
    return [archive / file.path for file in files]


def _archived(path: Path, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    yield from read_file(path, wanted)


def _sweep(folder: Path, manifest: Manifest) -> None:
    """Remove the tables of earlier backups and what killed ones left."""
    kept = {str(Path(table.path).parent.name) for table in manifest.tables}
    for state in (folder / STATE).iterdir():
        if state.name not in kept:
            shutil.rmtree(state, ignore_errors=True)
    listed = {file.path for file in manifest.files}
    for path in (folder / LOG).glob("p*/*") if (folder / LOG).exists() else ():
        if str(path.relative_to(folder)) not in listed:
            path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if is_temporary(path.name):
            path.unlink(missing_ok=True)
