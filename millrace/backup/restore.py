"""Restores a backup into an empty event store: all of it in one transaction, or nothing.

It restores all events with their offsets, versions and times, and the tables of `state_tables`, but no read models:
they are rebuilt from the first event. Not here: the rule that tells an empty store (`begin_restore.sql`), and the final
checks (`finish_restore.sql`).
"""

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from millrace.archive.bounded import bounded_batches
from millrace.archive.files import read_file
from millrace.archive.store import NO_TIME_LIMITS
from millrace.backup.log_files import Progress
from millrace.backup.manifest import Manifest, read_manifest, reading, require_backup
from millrace.backup.state_tables import STATE_TABLES, SUBJECT_KEYS
from millrace.backup.store import BackupStore
from millrace.errors import ArchiveDamaged, BackupDamaged, InvalidSetting, SchemaMismatch
from millrace.event_store.key_rotation import restored_keys
from millrace.event_store.migrations import migrate
from millrace.postgres.connecting import connect
from millrace.spark.log_source import COLUMNS, LogRange

_POSITION = ("partition", "position", "offset")
_EVENT = tuple(column for column in COLUMNS if column not in ("partition", "position"))
# The first transaction of any cluster: the event counts as appended long ago. Transaction ids of another cluster mean
# nothing here.
_LONG_AGO = "3"
# rows of a table decoded at once
ROWS = 1000
# the CSV of COPY: null is an empty field, and text has quotes, even an empty one
_CSV = pa.csv.WriteOptions(include_header=False, quoting_style="all_valid")


@dataclass(frozen=True)
class RestoreReport:
    """The restored backup and the seconds it took; `checking_s` of them went into checking the files."""

    manifest: Manifest
    events: int
    checking_s: float
    seconds: float


def restore(
    dsn: str, folder: Path, *, keys: Path | None = None, progress: Progress = lambda _done, _total: None
) -> RestoreReport:
    """Restore a backup into a database without a store, or with an empty one.

    Args:
        dsn: The database; the role must be able to migrate it, or be `event_store_owner` of a migrated one.
        folder: The backup; later ones may be taken into the folder meanwhile.
        keys: The folder of keys, for a backup with keys of people: whose key was destroyed since stays forgotten.
        progress: Called with how many events are loaded, and the total.

    Raises:
        InvalidSetting: The backup has keys of people, and `keys` is missing, or cannot open them.
        KeyGone: `keys` is of another store, or a copy from before a rotation that the backup knows.
        NoBackup: The folder holds no finished backup.
        BackupDamaged: A file is missing or changed, or the store it makes is not whole; the text says which.
        NotEmpty: The store is not empty.
        SchemaMismatch: The backup has tables or columns that this version does not know, or another number of log
            partitions than the store.
    """
    with reading(folder):
        return _restore(dsn, folder, keys, progress)


def _restore(dsn: str, folder: Path, keys: Path | None, progress: Progress) -> RestoreReport:
    began = time.monotonic()
    manifest = read_manifest(folder)
    require_backup(folder, manifest)
    checked = time.monotonic()
    _require_known(manifest)
    has_keys = any(each.table == SUBJECT_KEYS and each.rows for each in manifest.tables)
    if has_keys and keys is None:
        raise InvalidSetting(
            "The backup has keys of people: state the folder of keys.",
            hint="`millrace restore --keys DIR`. It lists the people that were forgotten since the backup.",
        )
    migrate(dsn, log_partitions=len(manifest.partitions))
    with connect(dsn, autocommit=False) as connection:
        store = BackupStore(connection)
        connection.execute(NO_TIME_LIMITS)
        store.begin_restore()
        for table in manifest.tables:
            columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            into = sql.SQL("copy {} ({}) from stdin (format csv)").format(
                sql.SQL(STATE_TABLES[table.table][0]), columns
            )
            try:
                for batch in _batches(folder / table.path):
                    _copy(connection, into, batch)
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
                # schema_version does not tell this: before the first release, versions have no order
                raise _of_another_version(f"Postgres says: {error.diag.message_primary}.") from error
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded) as error:
                raise BackupDamaged(
                    f"{folder / table.path} has a row that no store has.",
                    detail=f"Postgres says: {error.diag.message_primary}",
                    hint="Nothing was restored.",
                ) from error
        _load_log(connection, folder, manifest, progress)
        events = store.finish_restore(
            [each.partition for each in manifest.partitions],
            [each.earliest_position for each in manifest.partitions],
            [each.high_water_mark for each in manifest.partitions],
            manifest.last_offset,
            manifest.lease_token,
            {
                "archive_id": manifest.archive_id,
                "taken_at": manifest.taken_at,
                "events": manifest.events,
                "left_out": list(manifest.left_out),
            },
        )
        if has_keys and keys is not None:
            restored_keys(connection, keys)
    return RestoreReport(manifest, events, checked - began, time.monotonic() - began)


def _require_known(manifest: Manifest) -> None:
    """Refuse tables and columns that no backup of this version has: the restoring role may be a superuser."""
    unknown = [
        f"{each.table}.{column}"
        for each in manifest.tables
        for column in each.columns
        if column not in STATE_TABLES.get(each.table, ("", ()))[1]
    ]
    if unknown:
        raise _of_another_version(f"This one knows no {', no '.join(unknown[:5])}.")


def _of_another_version(detail: str) -> SchemaMismatch:
    return SchemaMismatch(
        "The backup is of another version of Millrace.",
        detail=detail,
        hint="Restore it with the version of Millrace that wrote it, or a later one. Nothing was restored.",
    )


def _load_log(connection: psycopg.Connection, folder: Path, manifest: Manifest, progress: Progress) -> None:
    events = sql.SQL("copy event_store.events ({}, transaction_id) from stdin (format csv)").format(
        sql.SQL(", ").join(map(sql.Identifier, _EVENT))
    )
    positions = sql.SQL("copy event_store.event_log ({}) from stdin (format csv)").format(
        sql.SQL(", ").join(map(sql.Identifier, _POSITION))
    )
    loaded = 0
    try:
        for file in manifest.files:
            for batch in read_file(folder / file.path, LogRange(file.partition, file.from_position, file.to_position)):
                stamped = _select(batch, _EVENT).append_column("transaction_id", pa.array([_LONG_AGO] * len(batch)))
                _copy(connection, events, stamped)
                _copy(connection, positions, _select(batch, _POSITION))
                loaded += len(batch)
                progress(loaded, manifest.events)
    except ArchiveDamaged as error:
        raise BackupDamaged(error.message, detail=error.detail, hint="Nothing was restored.") from error


def _copy(connection: psycopg.Connection, into: sql.Composed, rows: pa.Table) -> None:
    buffer = io.BytesIO()
    pa.csv.write_csv(rows, buffer, _CSV)
    with connection.cursor().copy(into) as copy:
        copy.write(buffer.getbuffer())


def _select(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches([batch]).select(list(columns))


def _batches(path: Path) -> Iterator[pa.Table]:
    try:
        for batch in bounded_batches(path, ROWS):
            yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise BackupDamaged(f"{path} cannot be read.", detail=str(error), hint="Nothing was restored.") from error
