"""Handling a command: load the stream, decide, append; if another writer appends first, load its events and retry.

`scripts/write_async_client.py` writes `async_handling` from this file; a test fails if that has to run again.
"""

from dataclasses import replace
from uuid import UUID

from millrace.commands.decider import (
    Command,
    Decided,
    Decider,
    Loaded,
    State,
    decided,
    event_id_of,
    gave_up,
    purged,
    to_append,
)
from millrace.errors import Conflict, EventIdReused
from millrace.event_store import Event, EventStore
from millrace.event_store.client import STREAM_PAGE


def handle_sync(
    store: EventStore,
    decider: Decider[State, Command],
    decider_id: str,
    command: Command,
    command_id: UUID | None,
    tries: int,
    caused_by: Event | None,
) -> Decided[State]:
    """Handle a command as `handle` documents it."""
    loaded: Loaded[State] | None = None
    first = None if command_id is None else event_id_of(command_id, decider.name, decider_id, 0)
    for _ in range(tries):
        if loaded is None:
            loaded, is_stored = _first_loaded(store, decider, decider_id, first)
        else:
            loaded, is_stored = _loaded(store, decider, decider_id, loaded, first)
        # a state that contains this command is never decided on
        if is_stored and (before := _decided_before(store, decider, decider_id, command_id)):
            return before
        (opened,) = store.open_rows([{"state": loaded.state}])
        found = to_append(decider, replace(loaded, state=opened["state"]), decider_id, command, command_id)
        if found is None:
            return decided(decider, loaded, decider_id, [])
        try:
            # a refused statement would abort the caller's transaction
            with store.savepoint():
                appended = store.append_returning(*found, caused_by=caused_by)
        except Conflict:
            continue
        except EventIdReused:
            # another call handled the same command first, with other events
            if before := _decided_before(store, decider, decider_id, command_id):
                return before
            raise
        return decided(decider, loaded, decider_id, appended)
    if loaded is not None:
        head = store.head(decider.name, decider_id)
        if head is not None and loaded.version < head.version:
            for _ in store.read(decider.name, decider_id, loaded.version + 1, 1):
                break
            else:
                raise purged(decider.name, decider_id, loaded.version)
    raise gave_up(decider.name, decider_id, tries)


def _first_loaded(
    store: EventStore, decider: Decider[State, Command], decider_id: str, first: UUID | None
) -> tuple[Loaded[State], bool]:
    """Return the stream, and whether the first event of the command is stored.

    The stream is its state in a fold read model, if there is one, with the later events.
    """
    loaded, fold = Loaded(decider.initial), decider.fold
    if fold is None:
        return _loaded(store, decider, decider_id, loaded, first)
    stored, events, is_stored = store.stream_behind_state(
        fold.name, decider.fingerprint, decider.name, decider_id, event_id=first
    )
    if stored is not None:
        loaded = Loaded(decider.initial if stored.state is None else stored.state, stored.version, stored.offset)
    for event in events:
        loaded = loaded.after(decider, event)
    if len(events) == STREAM_PAGE:
        loaded, is_later = _loaded(store, decider, decider_id, loaded, first)
        is_stored = is_stored or is_later
    return loaded, is_stored


def _loaded(
    store: EventStore, decider: Decider[State, Command], decider_id: str, loaded: Loaded[State], first: UUID | None
) -> tuple[Loaded[State], bool]:
    """Return the stream with the events after the loaded ones, and whether the first event of the command is one."""
    is_stored = False
    for event in store.read(decider.name, decider_id, loaded.version + 1, upcast=True):
        loaded, is_stored = loaded.after(decider, event), is_stored or event.event_id == first
    return loaded, is_stored


def _decided_before(
    store: EventStore, decider: Decider[State, Command], decider_id: str, command_id: UUID | None
) -> Decided[State] | None:
    """Return the first result of a command, and the state after it; None if it has no events here.

    An event with the id of its first one may be another decider's: any writer can give it that id.
    """
    loaded, led = Loaded(decider.initial), list[Event]()
    for event in store.read(decider.name, decider_id, upcast=True):
        if led and event.command_id != command_id:
            break
        loaded = loaded.after(decider, event)
        if event.command_id == command_id:
            led += [event]
    if not led:
        return None
    return Decided(decider.name, decider_id, tuple(led), loaded.state, loaded.version, loaded.offset)
