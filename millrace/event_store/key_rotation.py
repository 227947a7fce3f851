"""Rotating the key that wraps people's keys, so that no copy of a forgotten one opens any more; and keys of a restore.

A copy of the database from before a rotation, such as a backup, has keys that only the earlier epoch's file unwraps.
Once that file is destroyed, nothing opens the copies of forgotten ones. A call that is killed is finished by the next.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import psycopg

from millrace.errors import InvalidSetting, MillraceError
from millrace.event_store.sql_functions import SqlFunctions
from millrace.patience import LOOK_S, PATIENCE_S, while_held
from millrace.personal.folder import KeyFolder, opened_folder
from millrace.personal.values import StoredKey
from millrace.postgres.connecting import connect
from millrace.processes import only_one

Result = TypeVar("Result")

# that many keys are wrapped anew in one transaction
BATCH = 5000


@dataclass(frozen=True)
class KeyEpoch:
    """An epoch of keys; its file is destroyed in the rotated folder, and confirmed once no holder has it."""

    epoch: int
    fingerprint: str
    began_at: datetime
    living: int
    forgotten: int
    destroyed_at: datetime | None
    confirmed_at: datetime | None
    forgotten_since: datetime | None


@dataclass(frozen=True)
class KeyHolder:
    """A folder of keys, and the epochs whose files a program saw in it; `seen_at` is the last time."""

    host: str
    folder: str
    epochs: list[int]
    seen_at: datetime

    @property
    def is_silent(self) -> bool:
        """Whether no program noted it for a day."""
        return datetime.now(UTC) - self.seen_at > timedelta(days=1)

    def __str__(self) -> str:
        """Return the arguments of `millrace privacy retire`, and since when it is silent."""
        silent = f" (not seen since {self.seen_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC)" if self.is_silent else ""
        return f"{shlex.quote(self.host)} {shlex.quote(self.folder)}{silent}"


@dataclass(frozen=True)
class Standby:
    """A standby that has not replayed the position `lsn`."""

    standby: str
    lsn: str

    def __str__(self) -> str:
        """Return its name."""
        return f"standby {self.standby}"


@dataclass(frozen=True)
class ForgottenKey:
    """The key of a forgotten person: its name, the epoch whose key wrapped it, and since when it is gone."""

    key_id: str
    epoch: int
    forgotten_at: datetime


@dataclass(frozen=True)
class SubjectEvents:
    """The key of a person, and how many events of one kind hold something that it sealed; no kind: none does."""

    key_id: str
    epoch: int
    created_at: datetime
    forgotten_at: datetime | None
    decider: str | None
    event: str | None
    events: int


class KeyStore(SqlFunctions):
    """The functions on keys that operators call. Every method raises the `MillraceError` of its SQL function."""

    def key_counts(self) -> list[KeyEpoch]:
        """Return the epochs, in order, with their counts of keys."""
        return self._all(KeyEpoch, "select * from event_store.key_counts()")

    def key_holders(self) -> list[KeyHolder]:
        """Return the folders of keys."""
        return self._all(KeyHolder, "select * from event_store.key_holders()")

    def note_holder(self, folder: KeyFolder) -> None:
        """Note the files that a folder has."""
        self._value(str, "select event_store.note_holder(%s, %s, %s)", folder.holder)

    def begin_key_epoch(self, epoch: int, fingerprint: str) -> None:
        """Let an epoch wrap keys from now on."""
        self._value(str, "select event_store_platform.begin_key_epoch(%s, %s)", (epoch, fingerprint))

    def wrap_keys(self, folder: KeyFolder, wrapped: dict[str, bytes], limit: int) -> list[StoredKey]:
        """Keep keys as the folder's last epoch wraps them; return others that an earlier one still wraps."""
        call = "select * from event_store_platform.wrap_keys(%s, %s, %s, %s, %s)"
        arguments = (folder.epoch, folder.fingerprint, [*wrapped], [*wrapped.values()], limit)
        return self._all(StoredKey, call, arguments)

    def wrapped_keys(self) -> list[StoredKey]:
        """Return one living key of each epoch that still wraps one."""
        return self._all(StoredKey, "select * from event_store_platform.wrapped_keys()")

    def open_keys(self, key_ids: list[str]) -> list[StoredKey]:
        """Return keys by their names, as they are wrapped."""
        return self._all(StoredKey, "select * from event_store.open_keys(%s)", (key_ids,))

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

    def forget_subject(self, subject_mac: bytes, reason: str) -> ForgottenKey:
        """Destroy the key of a person, and return its name; repeating the call changes nothing."""
        call = "select * from event_store_platform.forget_subject(%s, %s)"
        return self._one(ForgottenKey, call, (subject_mac, reason))

    def readmit_subject(self, subject_mac: bytes, reason: str) -> str | None:
        """Let a forgotten person get a new key; return the name of the forgotten one, None if there is none."""
        call = "select k from event_store_platform.readmit_subject(%s, %s) k where k is not null"
        return next(iter(self._values(str, call, (subject_mac, reason))), None)

    def subject_events(self, subject_mac: bytes) -> list[SubjectEvents]:
        """Return the key of a person with the events that it sealed; it reads all events."""
        call = "select * from event_store_platform.subject_events(%s)"
        return self._all(SubjectEvents, call, (subject_mac,))

    def retire_holder(self, host: str, folder: str, reason: str) -> bool:
        """Take a folder off the holders; return whether it was one."""
        return self._value(bool, "select event_store_platform.retire_holder(%s, %s, %s)", (host, folder, reason))


def rotate(dsn: str, folder: Path, *, wait_s: float = PATIENCE_S) -> int:
    """Wrap the keys of all living people by the next epoch, destroy the files before, and return the epoch.

    Only this folder's files are destroyed. It waits `wait_s` for holders that were seen within a day to have the new
    file, and for standbys to replay it. The role must be `event_store_owner`.

    Raises:
        InvalidSetting: The folder lacks a file, is of another store or epoch, or cannot unwrap a key.
        MillraceError: A holder lacks the new file, a standby lags, a transaction holds keys, or another process
            rotates; call it again.
    """
    path = opened_folder(folder).path
    busy = MillraceError(f"Another process rotates the keys of {path}.", hint="Wait until it ends.")
    with only_one(path / ".lock", held=lambda _: busy), connect(dsn) as connection:
        # what queues behind a call that waits for a lock must go on
        connection.execute(f"set lock_timeout = '{LOOK_S}s'".encode())
        store = KeyStore(connection)
        keys = begun(store, path, wait_s)
        wrap_anew(store, keys)
        require_wrapped(store, keys, wait_s)
        keys.destroy_earlier()
        store.note_holder(keys)
        store.end_key_epoch(keys.epoch - 1)
        return keys.epoch


def folder_of(store: KeyStore, path: Path) -> KeyFolder:
    """Return the folder of a store's keys at the store's epoch; the file of the next one may be there already.

    Raises:
        InvalidSetting: It lacks a file, others may read one, or it belongs to another store.
    """
    keys, epochs = opened_folder(path), store.key_counts()
    if not epochs:
        raise InvalidSetting("The store has no keys yet: `millrace privacy init` begins with them.")
    last = epochs[-1]
    if keys.epoch == last.epoch + 1:
        keys = opened_folder(path, refused=keys.epoch)
    if (keys.epoch, keys.fingerprint) != (last.epoch, last.fingerprint):
        raise InvalidSetting(
            f"The folder of keys {path} does not fit the store: it is at epoch {keys.epoch} with fingerprint"
            f" {keys.fingerprint[:8]}, the store at epoch {last.epoch} with fingerprint {last.fingerprint[:8]}.",
            hint="Name the folder of this store in MILLRACE_KEYS. If the store was set back to an earlier time: `millrace"
            " privacy restore-keys`.",
        )
    return keys


def begun(store: KeyStore, path: Path, wait_s: float) -> KeyFolder:
    """Begin the folder's next epoch, unless an earlier rotation is not finished; return the folder."""
    last, keys = folder_of(store, path), opened_folder(path)
    if keys.epoch == last.epoch and all(each.destroyed_at for each in store.key_counts()[:-1]):
        keys = keys.begun_next()
    if keys.epoch > last.epoch:

        def lacking() -> list[KeyHolder]:
            # each time: a program in an open transaction may be noting it
            store.note_holder(keys)
            return [each for each in store.key_holders() if not (keys.epoch in each.epochs or each.is_silent)]

        _until_none(
            wait_s,
            lacking,
            f"Other folders lack {keys.path}/epoch-{keys.epoch}.key: the rotation has not begun.",
            "Copy the file there, and call it again. A program that has asked for no key since does not say that the file"
            " is there: `millrace privacy status` says it at once. A folder that is gone for good is taken off by"
            " `millrace privacy retire`.",
        )
    _unheld(lambda: store.begin_key_epoch(keys.epoch, keys.fingerprint))
    return keys


def wrap_anew(store: KeyStore, keys: KeyFolder) -> None:
    """Wrap all living keys by the folder's last epoch; each batch is in the folder before it is in the store."""
    wrapped, done = dict[str, bytes](), 0
    while rows := _unheld(lambda: store.wrap_keys(keys, wrapped, BATCH)):  # noqa: B023 - at once
        wrapped = keys.wrapped(_opened(keys, rows))
        keys.note_living(wrapped)
        done += len(rows)
    living = keys.living()
    if len(living) < done:
        raise InvalidSetting(f"The file living-{keys.epoch}.keys of {keys.path} does not open: nothing is destroyed.")
    # forgotten while their batch was wrapped
    if gone := [key.key_id for key in store.open_keys([*living]) if key.wrapped is None]:
        keys.drop_living(gone)


def require_wrapped(store: KeyStore, keys: KeyFolder, wait_s: float) -> None:
    """Refuse to go on while a key is wrapped by an earlier epoch, here or on a standby, or one does not open."""
    rows = store.wrapped_keys()
    _opened(keys, rows)
    if any(row.epoch != keys.epoch for row in rows):
        raise MillraceError("Keys are still wrapped by an earlier epoch: nothing is destroyed.", hint="Call it again.")
    behind = store.standbys_behind(None)
    _until_none(
        wait_s,
        lambda: store.standbys_behind(behind[0].lsn) if behind else [],
        "A standby has not replayed the keys as they are wrapped now: nothing is destroyed.",
        "Call it again once it has; a role without pg_read_all_stats cannot see that.",
    )


def restored_keys(connection: psycopg.Connection, folder: Path) -> int:
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


def _opened(keys: KeyFolder, rows: Sequence[StoredKey]) -> dict[str, bytes]:
    opened = keys.unwrapped(rows)
    for row in rows:
        if row.key_id not in opened:
            raise InvalidSetting(
                f"The folder of keys {keys.path} cannot open key {row.key_id} of epoch {row.epoch}.",
                hint="Use the folder of keys that belongs to this store, with all its files.",
            )
    return opened


def _until_none(wait_s: float, find: Callable[[], Sequence[object]], fault: str, hint: str) -> None:
    """Wait until nothing is found; after that time refuse to go on."""
    deadline = time.monotonic() + wait_s
    while found := find():
        if time.monotonic() > deadline:
            raise MillraceError(fault, detail="; ".join(map(str, found)), hint=hint)
        time.sleep(LOOK_S)


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
