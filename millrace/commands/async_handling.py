"""Handling a command on psycopg's asynchronous connections: `handle_sync` as a coroutine.

Written by `scripts/write_async_client.py` from `handling`: change that.
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
from millrace.event_store import AsyncEventStore, Event
from millrace.event_store.client import STREAM_PAGE


async def handle_async(
    store: AsyncEventStore,
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
            loaded, is_stored = await _first_loaded(store, decider, decider_id, first)
        else:
            loaded, is_stored = await _loaded(store, decider, decider_id, loaded, first)
        # a state that contains this command is never decided on
        if is_stored and (before := await _decided_before(store, decider, decider_id, command_id)):
            return before
        (opened,) = await store.open_rows([{"state": loaded.state}])
        found = to_append(decider, replace(loaded, state=opened["state"]), decider_id, command, command_id)
        if found is None:
            return decided(decider, loaded, decider_id, [])
        try:
            # a refused statement would abort the caller's transaction
            async with store.savepoint():
                appended = await store.append_returning(*found, caused_by=caused_by)
        except Conflict:
            continue
        except EventIdReused:
            # another call handled the same command first, with other events
            if before := await _decided_before(store, decider, decider_id, command_id):
                return before
            raise
        return decided(decider, loaded, decider_id, appended)
    if loaded is not None:
        head = await store.head(decider.name, decider_id)
        if head is not None and loaded.version < head.version:
            async for _ in store.read(decider.name, decider_id, loaded.version + 1, 1):
                break
            else:
                raise purged(decider.name, decider_id, loaded.version)
    raise gave_up(decider.name, decider_id, tries)


async def _first_loaded(
    store: AsyncEventStore, decider: Decider[State, Command], decider_id: str, first: UUID | None
) -> tuple[Loaded[State], bool]:
    """Return the stream, and whether the first event of the command is stored.

    The stream is its state in a fold read model, if there is one, with the later events.
    """
    loaded, fold = Loaded(decider.initial), decider.fold
    if fold is None:
        return await _loaded(store, decider, decider_id, loaded, first)
    stored, events, is_stored = await store.stream_behind_state(
        fold.name, decider.fingerprint, decider.name, decider_id, event_id=first
    )
    if stored is not None:
        loaded = Loaded(decider.initial if stored.state is None else stored.state, stored.version, stored.offset)
    for event in events:
        loaded = loaded.after(decider, event)
    if len(events) == STREAM_PAGE:
        loaded, is_later = await _loaded(store, decider, decider_id, loaded, first)
        is_stored = is_stored or is_later
    return loaded, is_stored


async def _loaded(
    store: AsyncEventStore, decider: Decider[State, Command], decider_id: str, loaded: Loaded[State], first: UUID | None
) -> tuple[Loaded[State], bool]:
    """Return the stream with the events after the loaded ones, and whether the first event of the command is one."""
    is_stored = False
    async for event in store.read(decider.name, decider_id, loaded.version + 1, upcast=True):
        loaded, is_stored = loaded.after(decider, event), is_stored or event.event_id == first
    return loaded, is_stored


async def _decided_before(
    store: AsyncEventStore, decider: Decider[State, Command], decider_id: str, command_id: UUID | None
) -> Decided[State] | None:
    """Return the first result of a command, and the state after it; None if it has no events here.

    An event with the id of its first one may be another decider's: any writer can give it that id.
    """
    loaded, led = Loaded(decider.initial), list[Event]()
    async for event in store.read(decider.name, decider_id, upcast=True):
        if led and event.command_id != command_id:
            break
        loaded = loaded.after(decider, event)
        if event.command_id == command_id:
            led += [event]
    if not led:
        return None
    return Decided(decider.name, decider_id, tuple(led), loaded.state, loaded.version, loaded.offset)
