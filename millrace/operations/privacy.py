"""Forgetting people: what an operator does with the store's keys and the folder that lies outside of it.

Here: the order of the steps in both, so that a kill between two of them loses nothing. Not here: sealing and opening
values, which is in `millrace.personal`, and what the keys are, which is in `sql/functions/personal`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from millrace.errors import InvalidSetting
from millrace.event_store.key_rotation import KeyEpoch, KeyStore
from millrace.personal.declaration import subject_of
from millrace.personal.folder import FORGOTTEN, KeyFolder, begun_folder, opened_folder
from millrace.personal.values import OpenKey


@dataclass(frozen=True)
class ForgottenKey:
    """The key of a forgotten person: its name, and since when it is gone."""

    key_id: str
    forgotten_at: datetime


class PrivacyStore(KeyStore):
    """The SQL functions on keys of people. Every method raises the `MillraceError` of its SQL function."""

    def forget_subject(self, subject_mac: bytes, reason: str) -> ForgottenKey:
        """Destroy the key of a person, and return its name; repeating the call changes nothing."""
        call = "select * from event_store_platform.forget_subject(%s, %s)"
        return self._one(ForgottenKey, call, (subject_mac, reason))

    def readmit_subject(self, subject_mac: bytes, reason: str) -> str | None:
        """Let a forgotten person get a new key; return the name of the forgotten one, None if there is none."""
        call = "select k from event_store_platform.readmit_subject(%s, %s) k where k is not null"
        return next(iter(self._values(str, call, (subject_mac, reason))), None)

    def open_keys(self, key_ids: list[str]) -> list[OpenKey]:
        """Return keys by their names, as they are wrapped."""
        return self._all(OpenKey, "select * from event_store.open_keys(%s)", (key_ids,))


def given_values(store: PrivacyStore) -> list[str]:
    """Return the present views whose programs may have opened values: of handlers, and of pushes with `unseal`."""
    query = """
        select v.view from event_store.views v
        where v.mode = 'rows' and (v.edge_function_url is null or v.push_unseal) and exists (
          select from event_store.deciders d
          where d.seals and (v.deciders is null or d.decider = any (v.deciders)) and (v.events is null or d.event = any (v.events))
        )
        order by v.view
    """
    return [view for (view,) in store.connection.execute(query)]


def begin(store: PrivacyStore, path: Path) -> KeyFolder:
    """Make the folder's first files where there are none, and let their key wrap people's keys; return the folder.

    Repeating the call changes nothing, and after a kill it goes on.

    Raises:
        InvalidSetting: The store has keys already, and the folder is not theirs; or it cannot be written.
    """
    if store.key_counts():
        return folder_of(store, path)
    with _writing(path):
        folder = begun_folder(path)
    store.begin_key_epoch(folder.epoch, folder.fingerprint)
    return folder


def folder_of(store: PrivacyStore, path: Path) -> KeyFolder:
    """Return the folder of a store's keys.

    Raises:
        InvalidSetting: It lacks a file, others may read one, or it belongs to another store.
    """
    folder = opened_folder(path)
    if fault := _unfit(folder, store.key_counts()):
        raise InvalidSetting(fault, hint="Name the folder of this store in MILLRACE_KEYS.")
    return folder


def forget(store: PrivacyStore, path: Path, subject: str, reason: str) -> tuple[ForgottenKey, int]:
    """Forget a person, `<kind>:<id>`; return the key that is gone, and the epoch whose key wrapped it.

    The list of the folder has the key before the store commits: after a kill the list may name a key that still lives,
    never the other way round. Repeating the call ends what was begun, and changes nothing else.

    Raises:
        UnknownSubject: Nothing was ever sealed for the person.
        InvalidSetting: The folder is not that of the store, or it cannot be written; nothing was changed.
        Malformed: The name of the person is none.
    """
    folder = folder_of(store, path)
    with store.connection.transaction():
        gone = store.forget_subject(folder.mac(_named(subject)), reason)
        (key,) = store.open_keys([gone.key_id])
        with _writing(path):
            folder.note_forgotten([gone.key_id])
    return gone, key.epoch


def readmit(store: PrivacyStore, path: Path, subject: str, reason: str) -> str | None:
    """Let a forgotten person, `<kind>:<id>`, get a new key with the next value that is sealed; what is gone stays gone.

    Returns the name of the forgotten key; None if the person was not forgotten, which changes nothing. Raises the
    errors of `forget`.
    """
    return store.readmit_subject(folder_of(store, path).mac(_named(subject)), reason)


def problems(store: PrivacyStore, path: Path, epochs: Sequence[KeyEpoch]) -> list[str]:
    """Return what is wrong between a folder and the store, each as a sentence."""
    try:
        folder = opened_folder(path)
    except InvalidSetting as error:
        return [str(error)]
    fault = _unfit(folder, epochs)
    living = sum(key.wrapped is not None for key in store.open_keys(folder.forgotten()))
    back = (
        f"{living:,} keys in {path / FORGOTTEN} live in the store: a `millrace privacy forget` was interrupted, or a backup"
        " from before was restored. Forget these people again."
    )
    return [*([fault] if fault else []), *([back] if living else [])]


def _unfit(folder: KeyFolder, epochs: Sequence[KeyEpoch]) -> str | None:
    if not epochs:
        return "The store has no keys yet: `millrace privacy begin` begins with them."
    last = epochs[-1]
    if (folder.epoch, folder.fingerprint) == (last.epoch, last.fingerprint):
        return None
    return (
        f"The folder of keys {folder.path} does not fit the store: it is at epoch {folder.epoch} with fingerprint"
        f" {folder.fingerprint[:8]}, the store at epoch {last.epoch} with fingerprint {last.fingerprint[:8]}."
    )


def _named(subject: str) -> str:
    kind, _, identity = subject.partition(":")
    return subject_of(kind, identity)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidSetting(
            f"The folder of keys {path} cannot be written: {error.strerror}.", hint="Nothing was changed in the store."
        ) from error
