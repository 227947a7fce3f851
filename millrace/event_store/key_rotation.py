"""Rotating the key that wraps people's keys, so that no copy of a forgotten one opens any more; and keys of a restore.

Every copy of the database from before a rotation, such as a backup, has keys that only the earlier epoch's file
unwraps. Once living keys are wrapped anew and that file is destroyed, nothing opens the copies of forgotten ones.
A call that is killed anywhere is finished by the next one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import psycopg

from millrace.errors import InvalidSetting, MillraceError
from millrace.event_store.sql_functions import SqlFunctions
from millrace.patience import LOOK_S, PATIENCE_S, while_held
from millrace.personal.folder import KeyFolder, opened_folder
from millrace.personal.values import OpenKey
from millrace.postgres.connecting import connect
from millrace.processes import only_one

Result = TypeVar("Result")

# that many keys are wrapped anew in one transaction
BATCH = 5000


@dataclass(frozen=True)
class KeyEpoch:
    """An epoch of keys in the store; `destroyed_at` is None while its file may exist."""

    epoch: int
    fingerprint: str
    began_at: datetime
    living: int
    forgotten: int
    destroyed_at: datetime | None


@dataclass(frozen=True)
class Standby:
    """A standby that has not replayed the position `lsn`."""

    standby: str
    lsn: str


class KeyStore(SqlFunctions):
    """The functions on keys that operators call. Every method raises the `MillraceError` of its SQL function."""

    def key_counts(self) -> list[KeyEpoch]:
        """Return the epochs, in order, with their counts of keys."""
        return self._all(KeyEpoch, "select * from event_store.key_counts()")

    def begin_key_epoch(self, epoch: int, fingerprint: str) -> None:
        """Let an epoch wrap keys from now on."""
        self._value(str, "select event_store_platform.begin_key_epoch(%s, %s)", (epoch, fingerprint))

    def wrap_keys(self, folder: KeyFolder, wrapped: dict[str, bytes], limit: int) -> list[OpenKey]:
        """Keep keys as the folder's last epoch wraps them; return others that an earlier one still wraps."""
        call = "select * from event_store_platform.wrap_keys(%s, %s, %s, %s, %s)"
        arguments = (folder.epoch, folder.fingerprint, [*wrapped], [*wrapped.values()], limit)
        return self._all(OpenKey, call, arguments)

    def wrapped_keys(self) -> list[OpenKey]:
        """Return one living key of each epoch that still wraps one."""
        return self._all(OpenKey, "select * from event_store_platform.wrapped_keys()")

    def standbys_behind(self, lsn: str | None) -> list[Standby]:
        """Return the connected standbys that have not replayed a position, or what is written by now."""
        return self._all(Standby, "select * from event_store_platform.standbys_behind(%s)", (lsn,))

    def end_key_epoch(self, epoch: int) -> None:
        """Note that the files of an epoch and of those before are destroyed."""
        self._value(str, "select event_store_platform.end_key_epoch(%s)", (epoch,))

    def restore_keys(self, folder: KeyFolder, living: dict[str, bytes], forgotten: list[str]) -> int:
        """Take over a folder's last epoch, and forget keys again; return how many these were."""
        call = "select event_store_platform.restore_keys(%s, %s, %s, %s, %s)"
        arguments = (folder.epoch, folder.fingerprint, [*living], [*living.values()], forgotten)
        return self._value(int, call, arguments)


def rotate(
    dsn: str,
    folder: str | Path,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    standbys_s: float = PATIENCE_S,
) -> int:
    """Wrap the keys of all living people by the next epoch, destroy the files before, and return the epoch.

    Only this folder's files are destroyed. Programs with another copy of the folder need the new file before.

    Args:
        dsn: The event store; the role must be `event_store_owner`.
        folder: The folder of keys.
        progress: Called with how many keys are wrapped anew, and the total.
        standbys_s: How long to wait for standbys to replay it.

    Raises:
        InvalidSetting: The folder lacks a file, or cannot unwrap a key.
        KeyGone: The folder is of another store, or of an earlier epoch.
        MillraceError: A standby lags, a transaction holds keys, or another process rotates; call it again.
    """
    path = opened_folder(folder).path
    busy = MillraceError(f"Another process rotates the keys of {path}.", hint="Wait until it ends.")
    with only_one(path / ".lock", held=lambda _: busy), connect(dsn) as connection:
        # what queues behind a call that waits for a lock must go on
        connection.execute(f"set lock_timeout = '{LOOK_S}s'".encode())
        store = KeyStore(connection)
        keys = begun(store, path)
        wrap_anew(store, keys, progress)
        require_wrapped(store, keys, standbys_s)
        keys.destroy_earlier()
        store.end_key_epoch(keys.epoch - 1)
        return keys.epoch


def begun(store: KeyStore, path: Path) -> KeyFolder:
    """Begin the folder's next epoch, unless an earlier rotation is not finished; return the folder."""
    keys, epochs = opened_folder(path), store.key_counts()
    last = epochs[-1] if epochs else None
    known = opened_folder(path, refused=keys.epoch) if last and keys.epoch > last.epoch else keys
    if last is None or (known.epoch, known.fingerprint) != (last.epoch, last.fingerprint):
        raise InvalidSetting(
            f"The folder of keys {path} is not that of the store, or `millrace privacy begin` never ran.",
            detail=f"It has epoch {known.epoch} with fingerprint {known.fingerprint[:8]};"
            f" the store has {f'epoch {last.epoch} with {last.fingerprint[:8]}' if last else 'none'}.",
        )
    if keys is known and not keys.earlier() and all(each.destroyed_at for each in epochs[:-1]):
        keys = keys.begun_next()
    _unheld(lambda: store.begin_key_epoch(keys.epoch, keys.fingerprint))
    return keys


def wrap_anew(store: KeyStore, keys: KeyFolder, progress: Callable[[int, int], None]) -> None:
    """Wrap all living keys by the folder's last epoch; each batch is in the folder before it is in the store."""
    total = sum(each.living for each in store.key_counts() if each.epoch < keys.epoch)
    wrapped, done = dict[str, bytes](), 0
    while True:
        rows = _unheld(lambda: store.wrap_keys(keys, wrapped, BATCH))  # noqa: B023 - at once
        if not rows:
            break
        wrapped = keys.wrapped(_opened(keys, rows))
        keys.note_living(wrapped)
        done += len(rows)
        progress(done, total)
    if len(keys.living()) < done:
        raise InvalidSetting(f"The file {path_of(keys)} does not open: nothing is destroyed.")


def require_wrapped(store: KeyStore, keys: KeyFolder, standbys_s: float) -> None:
    """Refuse to go on while a key is wrapped by an earlier epoch, here or on a standby, or one does not open."""
    rows = store.wrapped_keys()
    _opened(keys, rows)
    if any(row.epoch != keys.epoch for row in rows):
        raise MillraceError("Keys are still wrapped by an earlier epoch: nothing is destroyed.", hint="Call it again.")
    deadline, lsn = time.monotonic() + standbys_s, None
    while behind := store.standbys_behind(lsn):
        lsn = behind[0].lsn
        if time.monotonic() > deadline:
            raise MillraceError(
                "A standby has not replayed the keys as they are wrapped now: nothing is destroyed.",
                detail=", ".join(f"standby {each.standby}" for each in behind),
                hint="Call it again once it has; a role without pg_read_all_stats cannot see that.",
            )
        time.sleep(LOOK_S)


def restored_keys(connection: psycopg.Connection, folder: str | Path) -> int:
    """Let a restored store have its keys as the folder has them; return how many were forgotten since.

    Call it before anyone else uses a database that was set back to an earlier time, or a standby that was promoted.

    Raises:
        InvalidSetting: The folder lacks a file, or cannot open the store's keys.
        KeyGone: The folder is of another store, or of an earlier epoch.
    """
    keys, store = opened_folder(folder), KeyStore(connection)
    with connection.transaction():
        forgotten = store.restore_keys(keys, keys.living(), keys.forgotten())
        _opened(keys, store.wrapped_keys())
    return forgotten


def path_of(keys: KeyFolder) -> Path:
    """Return the file of the keys that the last epoch wrapped anew."""
    return keys.path / f"living-{keys.epoch}.keys"


def _opened(keys: KeyFolder, rows: Sequence[OpenKey]) -> dict[str, bytes]:
    opened = dict[str, bytes]()
    for epoch in {row.epoch for row in rows}:
        wrapped = {row.key_id: bytes(row.wrapped or b"") for row in rows if row.epoch == epoch}
        opened |= keys.unwrapped(epoch, wrapped)
        for name in wrapped.keys() - opened.keys():
            raise InvalidSetting(
                f"The folder of keys {keys.path} cannot open key {name} of epoch {epoch}.",
                hint="Use the folder of keys that belongs to this store, with all its files.",
            )
    return opened


def _unheld(call: Callable[[], Result]) -> Result:
    """Call it, and again while open transactions hold what it locks."""
    try:
        return while_held(psycopg.errors.LockNotAvailable, PATIENCE_S)(call)
    except psycopg.errors.LockNotAvailable as error:
        raise MillraceError(
            "An open transaction has made or destroyed keys: the rotation waits for its end.",
            hint="End it, and call it again. To find it: select pid, xact_start, query from pg_stat_activity"
            " where datname = current_database() order by xact_start",
        ) from error
