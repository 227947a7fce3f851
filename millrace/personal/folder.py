"""The keys that lie outside of the database: one for each epoch, and one that turns a person's name into a digest.

    subjects.key        32 random bytes: HMAC-SHA-256 of a subject with it is the subject's name in the store
    epoch-<n>.key       64 random bytes: wraps the keys of people that were made in the epoch
    forgotten.list      the names of keys that were destroyed: what a restored database must forget again
    living-<n>.keys     people's keys as epoch n wraps them, of those made before: an older backup opens with these only

Only the owner may read the files. They must not be in a backup of the database: then a destroyed key would come back.
"""

import hashlib
import hmac
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace.errors import InvalidSetting
from millrace.personal.declaration import named
from millrace.personal.envelope import KEY_BYTES, bytes_of, decrypt, encrypt, text_of
from millrace.personal.values import StoredKey
from millrace.processes import only_one

SUBJECTS = "subjects.key"
FORGOTTEN = "forgotten.list"
EPOCH = re.compile(r"epoch-([1-9][0-9]{0,8})\.key")
KEY_ID = re.compile(r"[A-Za-z0-9_-]{22}")
MAC_BYTES = 32


class Holder(NamedTuple):
    """A folder of keys on a machine, and the epochs whose files it has."""

    host: str
    folder: str
    epochs: list[int]


@dataclass(frozen=True)
class KeyFolder:
    """A folder of keys at its last epoch, whose files the store knows by a fingerprint: SHA-256, in hexadecimal."""

    path: Path
    epoch: int
    fingerprint: str

    @property
    def holder(self) -> Holder:
        """The folder as the store notes it."""
        epochs = sorted(_epochs(self.path)) if self.path.exists() else []
        return Holder(socket.gethostname(), str(self.path.absolute()), epochs)

    def mac(self, subject: str) -> bytes:
        """Return the name in the store of a subject as people write it; raises as `named`."""
        return self.macs([named(subject)])[subject]

    def macs(self, subjects: Iterable[str]) -> dict[str, bytes]:
        """Return the names of subjects in the store."""
        key = _read(self.path / SUBJECTS, MAC_BYTES)
        return {subject: hmac.digest(key, subject.encode(), "sha256") for subject in subjects}

    def key(self, epoch: int) -> bytes | None:
        """Return the key of an epoch; None where its file was destroyed."""
        file = self.path / f"epoch-{epoch}.key"
        try:
            return _read(file, KEY_BYTES)
        except InvalidSetting:
            if file.exists():
                raise
            return None

    def wrapped(self, raw: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return people's keys, by their names, as the last epoch wraps them."""
        cipher = AESSIV(_read(self.path / f"epoch-{self.epoch}.key", KEY_BYTES))
        return {name: encrypt(cipher, key, name, str(self.epoch)) for name, key in raw.items()}

    def unwrapped(self, rows: Collection[StoredKey]) -> dict[str, bytes]:
        """Return people's keys, by their names, without those that are forgotten or that no file here unwraps."""
        ciphers = {epoch: AESSIV(key) for epoch in {row.epoch for row in rows} if (key := self.key(epoch))}
        found = dict[str, bytes]()
        for row in rows:
            if row.wrapped and row.epoch in ciphers:
                with suppress(ValueError):
                    found[row.key_id] = decrypt(ciphers[row.epoch], bytes(row.wrapped), row.key_id, str(row.epoch))
        return found

    def forgotten(self) -> list[str]:
        """Return the names of the keys that are destroyed."""
        return [line for line in _lines(self.path / FORGOTTEN) if KEY_ID.fullmatch(line)]

    def note_forgotten(self, key_ids: Iterable[str]) -> None:
        """Add names of keys to the list of those that are destroyed, durably; one that is there stays once."""
        _append(self.path / FORGOTTEN, [*{*key_ids} - {*self.forgotten()}])

    def living(self) -> dict[str, bytes]:
        """Return the keys that were wrapped anew by the last epoch, by their names."""
        found = dict[str, bytes]()
        for line in _lines(self.path / f"living-{self.epoch}.keys"):
            with suppress(ValueError):  # a line that a kill cut off
                name, text = line.split()
                found[name] = bytes_of(text)
        return {name: found[name] for name in self.unwrapped([StoredKey(n, self.epoch, k) for n, k in found.items()])}

    def note_living(self, wrapped: Mapping[str, bytes]) -> None:
        """Keep keys as the last epoch wraps them, durably."""
        _append(self.path / f"living-{self.epoch}.keys", (f"{name} {text_of(key)}" for name, key in wrapped.items()))

    def drop_living(self, names: Collection[str]) -> None:
        """Remove keys from those that the last epoch wraps."""
        kept = "".join(f"{name} {text_of(key)}\n" for name, key in self.living().items() if name not in names)
        _write(self.path, f"living-{self.epoch}.keys", kept.encode())

    def begun_next(self) -> "KeyFolder":
        """Make the file of the next epoch, durably, unless an earlier one is still there; return the folder with it."""
        if min(_epochs(self.path)) < self.epoch:
            return self
        _write(self.path, f"epoch-{self.epoch + 1}.key", secrets.token_bytes(KEY_BYTES))
        return opened_folder(self.path)

    def destroy_earlier(self) -> None:
        """Overwrite and remove the files of the epochs before the last."""
        self._destroy(epoch for epoch in _epochs(self.path) if epoch < self.epoch)

    def copied_to(self, path: Path) -> "KeyFolder":
        """Copy the folder, durably, also over an earlier copy of it, whose other epochs are destroyed; return the copy.

        Raises:
            InvalidSetting: There are keys of another store, or the folder changed meanwhile.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = _contents(self.path)
        if _contents(path).get(SUBJECTS) not in {None, files[SUBJECTS]}:
            raise InvalidSetting(f"The folder {path} has keys of another store.", hint="Name another folder.")
        path.chmod(0o700)
        # of people that were forgotten with the copy
        if missing := set(KeyFolder(path, self.epoch, "").forgotten()).difference(self.forgotten()):
            self.note_forgotten(sorted(missing))
            files = _contents(self.path)
        for left in path.glob(".*.key"):  # by a copy that was killed
            left.unlink()
        # the epochs' files last: with them the copy counts as one
        for name in sorted(files, key=lambda name: bool(EPOCH.fullmatch(name))):
            _write(path, name, files[name])
        copy = opened_folder(path)
        copy._destroy(set(_epochs(path)) - set(_epochs(self.path)))
        if _contents(path) != _contents(self.path):
            raise InvalidSetting(f"The folder {self.path} changed while it was copied.", hint="Call it again.")
        return copy

    def _destroy(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            (self.path / f"living-{epoch}.keys").unlink(missing_ok=True)
            file = self.path / f"epoch-{epoch}.key"
            with file.open("r+b") as out:
                _write_durably(out, secrets.token_bytes(KEY_BYTES))
            file.unlink()
        _sync_folder(self.path)


def opened_folder(path: str | Path, refused: int | None = None) -> KeyFolder:
    """Return a folder of keys; its last epoch is another than a refused one, which the store may not have begun.

    Raises:
        InvalidSetting: It lacks a file, or others may read one.
    """
    folder = Path(path)
    epochs = _epochs(folder)
    if not epochs:
        raise InvalidSetting(
            f"The folder of keys {folder} has no file epoch-1.key: `millrace privacy init` makes it.",
            hint="If the store has keys already, name their folder.",
        )
    last = max([epoch for epoch in epochs if epoch != refused] or epochs)
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
                _write(folder, name, secrets.token_bytes(size))
    return opened_folder(folder)


def _epochs(folder: Path) -> list[int]:
    try:
        return [int(found[1]) for each in folder.iterdir() if (found := EPOCH.fullmatch(each.name))]
    except OSError as error:
        raise InvalidSetting(f"The folder of keys {folder} cannot be read: {error.strerror}.") from error


def _contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix in (".key", ".keys", ".list")}


def _write(folder: Path, name: str, content: bytes) -> None:
    beside = folder / f".{name}"
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        _write_durably(out, content)
    beside.replace(folder / name)
    _sync_folder(folder)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split("\n") if file.exists() else []
    except UnicodeError as error:
        raise InvalidSetting(f"The file {file} cannot be read: take it from your copy of the folder.") from error


def _append(file: Path, lines: Iterable[str]) -> None:
    with os.fdopen(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "ab+") as out:
        cut_off = out.tell() and os.pread(out.fileno(), 1, out.tell() - 1) != b"\n"  # by a kill
        _write_durably(out, "".join(["\n" if cut_off else "", *(f"{line}\n" for line in lines)]).encode())
    _sync_folder(file.parent)


def _write_durably(out: IO[bytes], content: bytes) -> None:
    out.write(content)
    out.flush()
    os.fsync(out.fileno())


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
