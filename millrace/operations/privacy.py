"""Forgetting people: what an operator does with the store's keys and the folder that lies outside of it.

Here: the order of the steps in both, so that a kill between two of them loses nothing. Not here: sealing and opening
values, which is in `millrace.personal`, and what the keys are, which is in `sql/functions/personal`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace.backup.manifest import MANIFEST
from millrace.errors import InvalidSetting
from millrace.event_store.key_rotation import ForgottenKey, KeyEpoch, KeyHolder, KeyStore, folder_of
from millrace.event_store.platform import PlatformStore
from millrace.personal.envelope import open_sealed
from millrace.personal.folder import FORGOTTEN, KeyFolder, begun_folder
from millrace.personal.values import StoredKey

# when Dagster rotates: on Mondays at 4:30 UTC, as `planned` reckons
WEEKLY = "30 4 * * 1"
# how many of the newest events are looked through for what is forgotten, and how many values are tried
NEWEST, TRIED = 10_000, 20
ENVELOPE = re.compile(r'"\$sealed": "(1\.([\w-]{22})\.[\w-]{22}\.[\w-]+)"')


def given_values(store: KeyStore) -> list[str]:
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


def init(store: KeyStore, path: Path) -> KeyFolder:
    """Make the folder's first files where there are none, and let their key wrap people's keys; it may be repeated.

    Raises:
        InvalidSetting: The store has keys already, and the folder is not theirs; or it cannot be written.
    """
    if store.key_counts():
        return folder_of(store, path)
    with _writing(path):
        folder = begun_folder(path)
    store.begin_key_epoch(folder.epoch, folder.fingerprint)
    return folder


def forget(store: KeyStore, path: Path, subject: str, reason: str) -> ForgottenKey:
    """Forget a person, `<kind>:<id>`; return the key that is gone.

    The folder's list has the key before the store commits. After a kill anywhere the next call ends what was begun.

    Raises:
        UnknownSubject: Nothing was ever sealed for the person.
        InvalidSetting: The folder is not that of the store, or it cannot be written; nothing was changed.
        Malformed: The name of the person is none.
    """
    folder = folder_of(store, path)
    with store.connection.transaction():
        gone = store.forget_subject(folder.mac(subject), reason)
        with _writing(path):
            folder.note_forgotten([gone.key_id])
    return gone


def backup_keys(store: KeyStore, path: Path, to: Path) -> KeyFolder:
    """Copy the folder, also over an earlier copy; a rotation is confirmed once the copy was made anew.

    Raises:
        InvalidSetting: The place is within a database or a backup, has keys of another store, or cannot be written.
    """
    folder, to = folder_of(store, path), to.absolute()
    for above in (place := to.resolve(), *place.parents):
        if above == path.resolve() or any((above / name).exists() for name in ("PG_VERSION", MANIFEST)):
            raise InvalidSetting(
                f"{to} is within {above}, which has the keys, a database or a backup.",
                hint="Name a folder on a medium that is kept apart from both.",
            )
    with _writing(to):
        copy = folder.copied_to(to)
    for each in (folder, copy):
        store.note_holder(each)
    return copy


def planned(forgotten_at: datetime) -> datetime:
    """Return when the weekly rotation destroys the file that copies of a forgotten key open with."""
    at = forgotten_at.astimezone(UTC)
    monday = (at - timedelta(days=at.weekday())).replace(hour=4, minute=30, second=0, microsecond=0)
    return monday if monday > at else monday + timedelta(days=7)


def confirmed(epochs: Sequence[KeyEpoch], last: int) -> datetime | None:
    """Return since when no copy of a key opens that was forgotten in an epoch; None before."""
    times = [each.confirmed_at for each in epochs if each.epoch <= last]
    return max(filter(None, times)) if all(times) else None


def unconfirmed(epochs: Sequence[KeyEpoch], holders: Sequence[KeyHolder]) -> list[str]:
    """Return why a rotation is not confirmed, or is late, each as a sentence."""
    found, goes_on = [], "`millrace privacy rotate`"
    for each in epochs:
        holding = ", ".join(str(holder) for holder in holders if each.epoch in holder.epochs)
        if each is epochs[-1]:
            since = each.forgotten_since
            if since and planned(since) < datetime.now(UTC):
                found += [f"Keys are forgotten since {since:%Y-%m-%d}, and no rotation followed: run {goes_on}."]
        elif not each.destroyed_at:
            found += [f"The rotation of epoch {each.epoch} is half done, held by: {holding}. To go on run {goes_on}."]
        elif not each.confirmed_at:
            found += [
                f"epoch-{each.epoch}.key is destroyed here, and not by: {holding}. Destroy it there and run `millrace"
                " privacy status` there, or state `millrace privacy retire HOST FOLDER`."
            ]
    return found


def problems(store: KeyStore, path: Path) -> list[str]:
    """Return what is wrong between a folder and the store, each as a sentence; note that the folder is there."""
    try:
        folder = folder_of(store, path)
        forgotten = folder.forgotten()
    except (InvalidSetting, OSError) as error:
        return [str(error)]
    store.note_holder(folder)
    if not (living := sum(key.wrapped is not None for key in store.open_keys(forgotten))):
        return []
    return [
        f"{living:,} keys in {path / FORGOTTEN} live in the store: a `millrace privacy forget` was interrupted, or a backup"
        " from before was restored. Forget these people again."
    ]


def opened_forgotten(store: KeyStore, path: Path) -> tuple[int, list[str]]:
    """Try to open values of forgotten people with all that folder and store have; return how many, and the keys.

    A key that was forgotten since the last rotation may still be in the folder as that wrapped it: this is left out.
    """
    folder, events = folder_of(store, path), PlatformStore(store.connection).latest_events(NEWEST)
    listed, living = set(folder.forgotten()), folder.living()
    found = [match.groups() for event in events for match in ENVELOPE.finditer(event.data_json)]
    keys = {key.key_id: key for key in store.open_keys(list({name for _, name in found}))}
    gone = {name: key for name, key in keys.items() if name in listed or key.wrapped is None}
    tried, opening = [(text, gone[name]) for text, name in found if name in gone][:TRIED], set[str]()
    for text, key in tried:
        kept = (key.wrapped, living.get(key.key_id) if key.epoch < folder.epoch else None)
        for wrapped, epoch in product(filter(None, kept), folder.holder.epochs):
            for raw in folder.unwrapped([StoredKey(key.key_id, epoch, wrapped)]).values():
                with suppress(ValueError):
                    open_sealed(AESSIV(raw), text)
                    opening.add(key.key_id)
    return len(tried), sorted(opening)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidSetting(
            f"The folder of keys {path} cannot be written: {error.strerror}.", hint="Nothing was changed in the store."
        ) from error
