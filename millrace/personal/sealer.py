"""Seals the personal values of events, and opens them, with keys that the store keeps and a folder unwraps."""

import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace.errors import KeyGone
from millrace.personal.declaration import named
from millrace.personal.envelope import KEY_BYTES, emptied, json_of, nonce_of, open_sealed, seal, text_of
from millrace.personal.folder import Holder, KeyFolder, opened_folder
from millrace.personal.marked_text import changed
from millrace.personal.values import SEALED, Forgotten, Key, Plain, Sealed, StoredKey, is_envelope

# so long a program may open what is forgotten since; and so often it notes its folder
KEPT_S = 300.0
# what holds no other value; most values are of these, and asking for a mapping takes long
_SCALARS = (str, int, float, type(None))
# as Postgres prints it
_ENVELOPE = re.compile(r'\{"\$sealed": "[A-Za-z0-9_.-]+"\}')


class Sealer:
    """Seals and opens the personal values of events, for `EventStore(connection, sealer=…)`; for any threads.

    A key is kept for five minutes at most, and only after the transaction that made it has committed. `has_opened` says
    whether it has opened a value.
    """

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self._of_subject, self._by_name = dict[str, Key](), dict[str, Key]()
        self._kept_until = 0.0
        self._noted: Holder | None = None
        self._noted_until = 0.0
        self.has_opened = False

    @classmethod
    def from_folder(cls, path: str | Path) -> "Sealer":
        """Return a sealer with the keys of a folder, which `millrace privacy init` makes.

        Raises:
            InvalidSetting: The folder lacks a file, or others may read one.
        """
        return cls(opened_folder(path))

    def to_note(self) -> Holder | None:
        """Return the folder's `holder`, which the caller notes in the store; None while that has it."""
        holder, now = self.folder.holder, time.monotonic()
        if holder == self._noted and now < self._noted_until:
            return None
        self._noted, self._noted_until = holder, now + KEPT_S
        return holder

    def drop_keys(self) -> None:
        """Forget which keys people have: the store refused one."""
        self._of_subject.clear()

    @staticmethod
    def people_in(data: Any) -> list[str]:  # noqa: ANN401 - what JSON holds
        """Return the people of the personal values in data, each once."""
        return [*dict.fromkeys(plain.subject for plain in _found(data, _is_plain))]

    @staticmethod
    def key_names_in(data: Any) -> list[str]:  # noqa: ANN401 - what JSON holds
        """Return the names of the keys that data are sealed with, each once."""
        return [*dict.fromkeys(Sealed(envelope).key_id for envelope in _found(data, is_envelope))]

    def kept(self, people: Iterable[str]) -> dict[str, Key]:
        """Return the keys that are kept of people."""
        self._drop_old()
        return {each: key for each in people if (key := self._of_subject.get(each))}

    def kept_by_name(self) -> dict[str, Key]:
        """Return the keys that are kept, by their names; `learn` adds to them."""
        self._drop_old()
        return self._by_name

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
        wrapped = folder.wrapped({text_of(secrets.token_bytes(16)): secrets.token_bytes(KEY_BYTES) for _ in macs})
        return folder.epoch, folder.fingerprint, macs, [*wrapped], [*wrapped.values()]

    def refused(self, epoch: int, error: KeyGone) -> KeyGone:
        """Take another epoch of the folder from now on, and return the error that names the folder."""
        if self.folder.epoch == epoch:
            self.folder = opened_folder(self.folder.path, refused=epoch)
        return KeyGone(error.message, detail=error.detail, hint=f"Take the newest files of {self.folder.path}.")

    def learnt(self, subjects: Iterable[str], rows: Iterable[StoredKey]) -> dict[str, Key]:
        """Return people's keys as the store gave them, and keep those that may be kept.

        Raises:
            KeyGone: The folder does not unwrap one, such as when a rotation destroyed the file since.
        """
        by_mac = {bytes(row.subject_mac): row for row in rows}
        known, keys = self._by_name, dict[str, Key]()
        self.learn(known, by_mac.values())
        for subject, mac in self.folder.macs(subjects).items():
            row = by_mac[mac]
            if row.key_id not in known:
                raise KeyGone(
                    "The folder of keys cannot unwrap a person's key.",
                    detail=f"key {row.key_id}",
                    hint=f"Take the newest files of {self.folder.path}.",
                )
            keys[subject] = known[row.key_id]
            if row.settled:
                self._of_subject[subject] = keys[subject]
        return keys

    def learn(self, keys: dict[str, Key], rows: Collection[StoredKey]) -> bool:
        """Add keys as the store gave them, but none that the folder cannot unwrap; return whether it unwraps all."""
        keys.update({row.key_id: Key(row.key_id, None) for row in rows if row.wrapped is None})
        keys.update({name: Key(name, AESSIV(raw)) for name, raw in self.folder.unwrapped(rows).items()})
        return all(row.key_id in keys for row in rows)

    def sealed(self, data: Any, event_id: UUID | str, keys: Mapping[str, Key]) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with each personal value sealed; of a forgotten person nothing is kept."""
        place = UUID(str(event_id)).bytes

        def envelope(value: Plain, path: str) -> dict[str, str]:
            return {SEALED: _content(keys[value.subject], nonce_of(place, path), json_of(value.value))}

        return _changed(data, _is_plain, envelope)

    def sealed_text(self, text: str, place: bytes, keys: Mapping[str, Key]) -> str:
        """Return JSON text with its marked values sealed; of the same place and path they have the same nonce."""

        def envelope(subject: str, path: str, value: str) -> str:
            return f'{{"{SEALED}": "{_content(keys[subject], nonce_of(place, path), value)}"}}'

        return changed(text, envelope)

    def opened(self, data: Any, keys: Mapping[str, Key]) -> Any:  # noqa: ANN401 - what JSON holds
        """Return data with sealed values opened; those without a key here are `Sealed`, forgotten ones `Forgotten`."""

        def value(envelope: Mapping[str, str], _: str) -> Any:  # noqa: ANN401 - what JSON holds
            sealed = Sealed(envelope)
            key, nothing = keys.get(sealed.key_id), emptied(sealed.key_id)
            if sealed[SEALED] == nothing or (key and key.cipher is None):
                return Forgotten({SEALED: nothing})
            if key and key.cipher:
                with suppress(ValueError):
                    opened = open_sealed(key.cipher, sealed[SEALED])
                    self.has_opened = True
                    return opened
            return sealed

        return _changed(data, is_envelope, value) if self.key_names_in(data) else data

    def opened_text(self, text: str) -> str:
        """Return JSON as Postgres prints it with sealed values opened; all else stays, such as digits of numbers."""
        return _ENVELOPE.sub(lambda found: json.dumps(self.opened(json.loads(found[0]), self._by_name)), text)

    def _drop_old(self) -> None:
        if (now := time.monotonic()) >= self._kept_until:
            # new ones: another thread may use the old ones
            self._of_subject, self._by_name, self._kept_until = {}, {}, now + KEPT_S


def _content(key: Key, nonce: str, json_text: str) -> str:
    return emptied(key.key_id) if key.cipher is None else seal(key.cipher, key.key_id, nonce, json_text)


def _is_plain(value: object) -> bool:
    return isinstance(value, Plain)


def _found(data: Any, wanted: Callable[[object], bool]) -> Iterator[Any]:  # noqa: ANN401 - what JSON holds
    if wanted(data):
        yield data
    for each in data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ():
        if not isinstance(each, _SCALARS):
            yield from _found(each, wanted)


def _changed(
    data: Any,  # noqa: ANN401 - what JSON holds
    wanted: Callable[[object], bool],
    change: Callable[[Any, str], Any],
    path: str = "",
) -> Any:  # noqa: ANN401 - what JSON holds
    """Return data in which each wanted value is changed, with the keys that lead to it, joined by dots."""
    if isinstance(data, _SCALARS):
        return data
    if wanted(data):
        return change(data, path)
    below = f"{path}." if path else ""
    if isinstance(data, Mapping):
        return {key: _changed(each, wanted, change, f"{below}{key}") for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_changed(each, wanted, change, f"{below}{number}") for number, each in enumerate(data)]
    return data
