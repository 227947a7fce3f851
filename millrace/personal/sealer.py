"""Seals the personal values of events, and opens them, with keys that the store keeps and a folder unwraps."""

import json
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace.errors import KeyGone
from millrace.personal.declaration import named
from millrace.personal.envelope import KEY_BYTES, emptied, json_of, nonce_of, open_sealed, seal, text_of
from millrace.personal.folder import KeyFolder, opened_folder
from millrace.personal.marked_text import changed
from millrace.personal.values import SEALED, Forgotten, Key, OpenKey, Plain, Sealed, SubjectKey, is_envelope

# so long a program may open what is forgotten since; and so often it notes its folder
KEPT_S = 300.0
# what holds no other value; most values are of these, and asking for a mapping takes long
_SCALARS = (str, int, float, type(None))
# as Postgres prints it
_ENVELOPE = re.compile(r'\{"\$sealed": "[A-Za-z0-9_.-]+"\}')


class Sealer:
    """Seals and opens the personal values of events, for `EventStore(connection, sealer=…)`; for any threads.

    A key is kept for five minutes at most, and only after the transaction that made it has committed.

    Attributes:
        has_opened: Whether it has opened a value.
    """

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self._of_subject, self._by_name = dict[str, Key](), dict[str, Key]()
        self._kept_until = 0.0
        self._noted: tuple[str, str, list[int]] | None = None
        self._noted_until = 0.0
        self.has_opened = False

    @classmethod
    def from_folder(cls, path: str | Path) -> "Sealer":
        """Return a sealer with the keys of a folder, which `millrace privacy init` makes.

        Raises:
            InvalidSetting: The folder lacks a file, or others may read one.
        """
        return cls(opened_folder(path))

    def to_note(self) -> tuple[str, str, list[int]] | None:
        """Return the folder's `holder`, which the caller notes in the store; None while that has it."""
        holder, now = self.folder.holder, time.monotonic()
        if holder == self._noted and now < self._noted_until:
            return None
        self._noted, self._noted_until = holder, now + KEPT_S
        return holder

    def drop_keys(self) -> None:
        """Forget which keys people have: the store refused one."""
        self._of_subject.clear()

    def kept_keys(self, data: Iterable[Any]) -> dict[str, Key | None]:
        """Return the people whose keys are needed to seal data, with the keys that are kept."""
        return self.keys_kept_of(each.subject for one in data for each in _plains(one))

    def keys_kept_of(self, people: Iterable[str]) -> dict[str, Key | None]:
        """Return people with the keys that are kept."""
        self._drop_old()
        return {each: self._of_subject.get(each) for each in people}

    def proposed(self, subjects: Iterable[str]) -> tuple[int, str, list[bytes], list[str], list[bytes]]:
        """Return new keys for people, as `subject_keys` takes them.

        Raises:
            Malformed: A name is none: an operator could not forget that person.
        """
        folder = self.folder
        if folder.key(folder.epoch) is None:
            # the epoch ended while this process had nothing to seal
            folder = self.folder = opened_folder(folder.path)
        macs = [*folder.macs(map(named, subjects)).values()]
        size = 16 + KEY_BYTES
        drawn = secrets.token_bytes(size * len(macs))
        each = [drawn[at : at + size] for at in range(0, len(drawn), size)]
        wrapped = folder.wrapped({text_of(raw[:16]): raw[16:] for raw in each})
        return folder.epoch, folder.fingerprint, macs, [*wrapped], [*wrapped.values()]

    def refused(self, epoch: int, error: KeyGone) -> KeyGone:
        """Take another epoch of the folder from now on, and return the error that names the folder."""
        if self.folder.epoch == epoch:
            self.folder = opened_folder(self.folder.path, refused=epoch)
        return KeyGone(error.message, detail=error.detail, hint=f"Take the newest files of {self.folder.path}.")

    def learnt(self, subjects: Iterable[str], rows: Iterable[SubjectKey]) -> dict[str, Key]:
        """Return people's keys as the store gave them, and keep those that may be kept.

        Raises:
            KeyGone: The folder does not unwrap one, such as when a rotation destroyed the file since.
        """
        by_mac = {bytes(row.subject_mac): row for row in rows}
        found = self._keys(by_mac.values())
        keys = dict[str, Key]()
        for subject, mac in self.folder.macs(subjects).items():
            row = by_mac[mac]
            keys[subject] = key = found[row.key_id]
            if not (key.raw or key.forgotten):  # the next call asks again: another epoch may wrap it by then
                raise KeyGone(
                    "The folder of keys cannot unwrap a person's key.",
                    detail=f"key {key.key_id}",
                    hint=f"Take the newest files of {self.folder.path}.",
                )
            self._by_name[row.key_id] = key
            if row.settled:
                self._of_subject[subject] = key
        return keys

    def sealed(self, data: Any, event_id: bytes, keys: Mapping[str, Key]) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with each personal value sealed; of a forgotten person nothing is kept."""

        def envelope(value: Plain, path: str) -> Any:  # noqa: ANN401 - what JSON holds
            return {SEALED: self._content(keys[value.subject], nonce_of(event_id, path), json_of(value.value))}

        return _changed(data, Plain, envelope)

    def sealed_text(self, text: str, place: bytes, keys: Mapping[str, Key]) -> str:
        """Return JSON text with its marked values sealed; of the same place and path they have the same nonce."""

        def envelope(subject: str, path: str, value: str) -> str:
            return f'{{"{SEALED}": "{self._content(keys[subject], nonce_of(place, path), value)}"}}'

        return changed(text, envelope)

    def kept_and_unknown(self, data: Iterable[Any]) -> tuple[dict[str, Key], list[str]]:
        """Return the keys that are kept by their names, and the names of others that data are sealed with."""
        self._drop_old()
        kept = self._by_name
        return kept, [name for name in dict.fromkeys(name for one in data for name in _names(one)) if name not in kept]

    def learn(self, rows: Iterable[OpenKey], kept: dict[str, Key] | None = None) -> bool:
        """Keep keys as the store gave them by their names; return whether the folder unwraps all."""
        kept, found = self._by_name if kept is None else kept, self._keys([*rows])
        fit = {name: key for name, key in found.items() if key.raw or key.forgotten}
        kept.update(fit)
        return len(fit) == len(found)

    def opened(self, data: Any, kept: Mapping[str, Key] | None = None) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with sealed values opened; those without a key here are `Sealed`, forgotten ones `Forgotten`.

        With the keys of `kept_and_unknown`: another thread may have dropped them since.
        """
        keys = self._by_name if kept is None else kept

        def value(envelope: Mapping[str, str], _: str) -> Any:  # noqa: ANN401 - what JSON holds
            sealed = Sealed(envelope)
            key = keys.get(sealed.key_id)
            if (key is not None and key.forgotten) or sealed[SEALED] == emptied(sealed.key_id):
                return Forgotten({SEALED: emptied(sealed.key_id)})
            if key is None or key.raw is None:
                return sealed
            try:
                opened = open_sealed(key.raw, sealed[SEALED])
            except ValueError:
                return sealed
            self.has_opened = True
            return opened

        return _changed(data, is_envelope, value) if any(_names(data)) else data

    def opened_text(self, text: str) -> str:
        """Return JSON as Postgres prints it with sealed values opened; all else stays, such as digits of numbers."""
        return _ENVELOPE.sub(lambda found: json.dumps(self.opened(json.loads(found[0]))), text)

    def _content(self, key: Key, nonce: str, json_text: str) -> str:
        if key.forgotten:
            return emptied(key.key_id)
        assert key.raw is not None
        return seal(key.raw, key.key_id, nonce, json_text)

    def _drop_old(self) -> None:
        if (now := time.monotonic()) >= self._kept_until:
            # new ones: another thread may use the old ones
            self._of_subject, self._by_name, self._kept_until = {}, {}, now + KEPT_S

    def _keys(self, rows: Collection[SubjectKey | OpenKey]) -> dict[str, Key]:
        wrapped = defaultdict[int, dict[str, bytes]](dict)
        for row in rows:
            if row.wrapped is not None:
                wrapped[row.epoch][row.key_id] = bytes(row.wrapped)
        raw = {name: key for epoch, each in wrapped.items() for name, key in self.folder.unwrapped(epoch, each).items()}
        ciphers = {name: AESSIV(key) for name, key in raw.items()}
        return {row.key_id: Key(row.key_id, ciphers.get(row.key_id), forgotten=row.wrapped is None) for row in rows}


def _plains(data: Any) -> Iterator[Plain]:  # noqa: ANN401 - what JSON holds
    if isinstance(data, Plain):
        yield data
    for each in _parts(data):
        yield from _plains(each)


def _names(data: Any) -> Iterator[str]:  # noqa: ANN401 - what JSON holds
    if is_envelope(data):
        yield Sealed(data).key_id
    for each in _parts(data):
        yield from _names(each)


def _parts(data: Any) -> Iterable[Any]:  # noqa: ANN401 - what JSON holds
    if isinstance(data, Mapping):
        return [each for each in data.values() if not isinstance(each, _SCALARS)]
    return [each for each in data if not isinstance(each, _SCALARS)] if isinstance(data, list | tuple) else ()


def _changed(
    data: Any,  # noqa: ANN401 - what JSON holds
    wanted: type | Callable[[object], bool],
    change: Callable[[Any, str], Any],
    path: str = "",
) -> Any:  # noqa: ANN401 - what JSON holds
    """Return data in which each wanted value is changed, with the keys that lead to it, joined by dots."""
    if isinstance(data, _SCALARS):
        return data
    if isinstance(data, wanted) if isinstance(wanted, type) else wanted(data):
        return change(data, path)
    below = f"{path}." if path else ""
    if isinstance(data, Mapping):
        return {key: _changed(each, wanted, change, f"{below}{key}") for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_changed(each, wanted, change, f"{below}{number}") for number, each in enumerate(data)]
    return data
