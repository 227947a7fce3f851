"""Seals the personal values of events, and opens them, with keys that the store keeps and a folder unwraps."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.errors import KeyGone, Malformed
from millrace.personal.envelope import KEY_BYTES, emptied, nonce_of, open_sealed, seal, text_of
from millrace.personal.folder import KeyFolder, opened_folder
from millrace.personal.values import SEALED, Forgotten, Key, OpenKey, Plain, Sealed, SubjectKey, is_envelope

# so long a program may open what is forgotten since
KEPT_S = 300.0


class Sealer:
    """Seals and opens the personal values of events, for `EventStore(connection, sealer=…)`; for any threads.

    A key is kept for five minutes at most, and only after the transaction that made it has committed.
    """

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self._of_subject: dict[str, tuple[Key, float]] = {}
        self._by_name: dict[str, tuple[Key, float]] = {}

    @classmethod
    def from_folder(cls, path: str | Path) -> "Sealer":
        """Return a sealer with the keys of a folder, which `millrace privacy begin` makes.

        Raises:
            InvalidSetting: The folder lacks a file, or others may read one.
        """
        return cls(opened_folder(path))

    def drop_keys(self) -> None:
        """Forget which keys people have: the store refused one."""
        self._of_subject.clear()

    def unknown_subjects(self, data: Iterable[Any]) -> list[str]:
        """Return the people whose keys are needed to seal data, and are not known."""
        now = time.monotonic()
        wanted = dict.fromkeys(each.subject for one in data for each in _plains(one))
        return [subject for subject in wanted if _fresh(self._of_subject, subject, now) is None]

    def proposed(self, subjects: Iterable[str]) -> tuple[int, str, list[bytes], list[str], list[bytes]]:
        """Return new keys for people, as `subject_keys` takes them."""
        folder = self.folder
        if folder.key(folder.epoch) is None:
            # the epoch ended while this process had nothing to seal
            folder = self.folder = opened_folder(folder.path)
        macs = [folder.mac(subject) for subject in subjects]
        wrapped = folder.wrapped({text_of(secrets.token_bytes(16)): secrets.token_bytes(KEY_BYTES) for _ in macs})
        return folder.epoch, folder.fingerprint, macs, [*wrapped], [*wrapped.values()]

    def refused(self, epoch: int, error: KeyGone) -> KeyGone:
        """Take another epoch of the folder from now on, and return the error that names the folder."""
        if self.folder.epoch == epoch:
            self.folder = opened_folder(self.folder.path, refused=epoch)
        return KeyGone(error.message, detail=error.detail, hint=f"Take the newest files of {self.folder.path}.")

    def learnt(self, subjects: Iterable[str], rows: Iterable[SubjectKey]) -> dict[str, Key]:
        """Return people's keys as the store gave them, and keep those that may be kept."""
        by_mac = {bytes(row.subject_mac): row for row in rows}
        until, keys = time.monotonic() + KEPT_S, dict[str, Key]()
        for subject in subjects:
            row = by_mac[self.folder.mac(subject)]
            keys[subject] = self._key(row.key_id, row.epoch, row.wrapped)
            if row.settled and (keys[subject].raw or keys[subject].forgotten):
                self._of_subject[subject] = (keys[subject], until)
        return keys

    def sealed(self, data: Any, event_id: bytes, keys: Mapping[str, Key]) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with each personal value sealed; of a forgotten person nothing is kept."""

        def envelope(value: Plain, path: str) -> Any:  # noqa: ANN401 - what JSON holds
            found = keys.get(value.subject) or self._of_subject[value.subject][0]
            if found.forgotten:
                return emptied(found.key_id)
            if found.raw is None:
                raise Malformed(
                    "The folder of keys cannot unwrap a person's key.",
                    detail=f"key {found.key_id}",
                    hint=f"Take the newest files of {self.folder.path}.",
                )
            return seal(found.raw, found.key_id, nonce_of(event_id, path), value.value)

        return _changed(data, Plain, envelope)

    def unknown_keys(self, data: Iterable[Any]) -> list[str]:
        """Return the names of the keys that data are sealed with and that are not known."""
        now = time.monotonic()
        wanted = dict.fromkeys(name for one in data for name in _names(one))
        return [name for name in wanted if _fresh(self._by_name, name, now) is None]

    def learn(self, rows: Iterable[OpenKey]) -> None:
        """Keep keys as the store gave them by their names."""
        until = time.monotonic() + KEPT_S
        for row in rows:
            key = self._key(row.key_id, row.epoch, row.wrapped)
            if key.raw or key.forgotten:  # otherwise the next call asks again: another epoch may wrap it by then
                self._by_name[row.key_id] = (key, until)

    def opened(self, data: Any) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with sealed values opened; those without a key here are `Sealed`, forgotten ones `Forgotten`."""

        def value(envelope: Mapping[str, str], _: str) -> Any:  # noqa: ANN401 - what JSON holds
            sealed = Sealed(envelope)
            found = self._by_name.get(sealed.key_id)
            if found is None:
                return sealed
            key = found[0]
            if key.forgotten:
                return Forgotten(emptied(key.key_id))
            try:
                return sealed if key.raw is None else open_sealed(key.raw, sealed[SEALED])
            except ValueError:
                return sealed

        return _changed(data, is_envelope, value)

    def _key(self, name: str, epoch: int, wrapped: bytes | None) -> Key:
        if wrapped is None:
            return Key(name, None, forgotten=True)
        return Key(name, self.folder.unwrapped(epoch, {name: bytes(wrapped)}).get(name), forgotten=False)


def _fresh(kept: Mapping[str, tuple[Key, float]], name: str, now: float) -> Key | None:
    key, until = kept.get(name, (None, 0.0))
    return key if now < until else None


def _plains(data: Any) -> Iterator[Plain]:  # noqa: ANN401 - what JSON holds
    if isinstance(data, Plain):
        yield data
    elif isinstance(data, Mapping | list | tuple):
        for each in data.values() if isinstance(data, Mapping) else data:
            yield from _plains(each)


def _names(data: Any) -> Iterator[str]:  # noqa: ANN401 - what JSON holds
    if is_envelope(data):
        yield Sealed(data).key_id
    elif isinstance(data, Mapping | list):
        for each in data.values() if isinstance(data, Mapping) else data:
            yield from _names(each)


def _changed(
    data: Any,  # noqa: ANN401 - what JSON holds
    wanted: type | Callable[[object], bool],
    change: Callable[[Any, str], Any],
    path: str = "",
) -> Any:  # noqa: ANN401 - what JSON holds
    """Return data in which each wanted value is changed, with the keys that lead to it, joined by dots."""
    if isinstance(data, wanted) if isinstance(wanted, type) else wanted(data):
        return change(data, path)
    below = f"{path}." if path else ""
    if isinstance(data, Mapping):
        return {key: _changed(each, wanted, change, f"{below}{key}") for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_changed(each, wanted, change, f"{below}{number}") for number, each in enumerate(data)]
    return data
