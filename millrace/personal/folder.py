"""The keys that lie outside of the database: one for each epoch, and one that turns a person's name into a digest.

    subjects.key        32 random bytes: HMAC-SHA-256 of a subject with it is the subject's name in the store
    epoch-<n>.key       64 random bytes: wraps the keys of people that were made in the epoch
    forgotten.list      the names of keys that were destroyed: what a restored database must forget again

Only the owner may read the files. They must not be in a backup of the database: then a destroyed key would come back.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import InvalidSetting
from millrace.personal.envelope import KEY_BYTES
from millrace.processes import only_one

SUBJECTS = "subjects.key"
FORGOTTEN = "forgotten.list"
EPOCH = re.compile(r"epoch-([1-9][0-9]{0,8})\.key")
MAC_BYTES = 32


@dataclass(frozen=True)
class KeyFolder:
    """The files of a folder of keys.

    Attributes:
        path: The folder.
        epoch: The last epoch.
        fingerprint: The SHA-256 of the last epoch's files, in hexadecimal, by which the store knows them.
    """

    path: Path
    epoch: int
    fingerprint: str

    def mac(self, subject: str) -> bytes:
        """Return the name of a subject in the store."""
        return hmac.new(_read(self.path / SUBJECTS, MAC_BYTES), subject.encode(), hashlib.sha256).digest()

    def key(self, epoch: int) -> bytes | None:
        """Return the key of an epoch; None where its file was destroyed."""
        file = self.path / f"epoch-{epoch}.key"
        return _read(file, KEY_BYTES) if file.exists() else None

    def forgotten(self) -> list[str]:
        """Return the names of the keys that are destroyed."""
        file = self.path / FORGOTTEN
        return file.read_text().split() if file.exists() else []

    def note_forgotten(self, key_ids: Iterable[str]) -> None:
        """Add names of keys to the list of those that are destroyed, durably; one that is there stays once."""
        file, known = self.path / FORGOTTEN, {*self.forgotten()}
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as out:
            # first the end of a line that a crash may have cut
            out.writelines(f"\n{key_id}\n" for key_id in key_ids if key_id not in known)
            out.flush()
            os.fsync(out.fileno())
        _sync_folder(self.path)


def opened_folder(path: str | Path) -> KeyFolder:
    """Return a folder of keys.

    Raises:
        InvalidSetting: It lacks a file, or others may read one.
    """
    folder = Path(path)
    try:
        epochs = [int(found[1]) for each in folder.iterdir() if (found := EPOCH.fullmatch(each.name))]
    except OSError as error:
        raise InvalidSetting(f"The folder of keys {folder} cannot be read: {error.strerror}.") from error
    if not epochs:
        raise InvalidSetting(
            f"The folder of keys {folder} has no file epoch-1.key: `millrace privacy begin` makes it.",
            hint="If the store has keys already, name their folder.",
        )
    last = max(epochs)
    parts = _read(folder / SUBJECTS, MAC_BYTES) + _read(folder / f"epoch-{last}.key", KEY_BYTES)
    return KeyFolder(folder, last, hashlib.sha256(parts).hexdigest())


def begun_folder(path: str | Path) -> KeyFolder:
    """Make the files of the first epoch, where they are missing, and return the folder."""
    folder = Path(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(folder / ".lock"):
        if not any(EPOCH.fullmatch(each.name) for each in folder.iterdir()):
            # the epoch's file last: with it the folder counts as begun
            for name, size in ((SUBJECTS, MAC_BYTES), ("epoch-1.key", KEY_BYTES)):
                beside = folder / f".{name}"
                beside.unlink(missing_ok=True)
                with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                    out.write(secrets.token_bytes(size))
                    out.flush()
                    os.fsync(out.fileno())
                beside.replace(folder / name)
            _sync_folder(folder)
    return opened_folder(folder)


def _read(file: Path, size: int) -> bytes:
    try:
        raw, mode = file.read_bytes(), file.stat().st_mode
    except OSError as error:
        raise InvalidSetting(f"The key {file} cannot be read: {error.strerror}.") from error
    if mode & 0o077:
        raise InvalidSetting(f"Others may read the key {file}: chmod 600 {file}")
    if len(raw) != size:
        raise InvalidSetting(f"The key {file} has {len(raw)} bytes, not {size}: take the folder from your copy of it.")
    return raw


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
