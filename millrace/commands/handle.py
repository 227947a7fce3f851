"""The call that handles a command, for either store: its loop is in `handling`, and for coroutines `async_handling`."""

from collections.abc import Coroutine
from typing import Any, overload
from uuid import UUID

from millrace.commands.async_handling import handle_async
from millrace.commands.decider import Command, Decided, Decider, State
from millrace.commands.handling import handle_sync
from millrace.event_store import AsyncEventStore, Event, EventStore


@overload
def handle(
    store: EventStore,
    decider: Decider[State, Command],
    decider_id: str,
    command: Command,
    *,
    command_id: UUID | None = None,
    tries: int = 5,
    caused_by: Event | None = None,
) -> Decided[State]: ...


@overload
def handle(
    store: AsyncEventStore,
    decider: Decider[State, Command],
    decider_id: str,
    command: Command,
    *,
    command_id: UUID | None = None,
    tries: int = 5,
    caused_by: Event | None = None,
) -> Coroutine[Any, Any, Decided[State]]: ...


def handle(
    store: EventStore | AsyncEventStore,
    decider: Decider[State, Command],
    decider_id: str,
    command: Command,
    *,
    command_id: UUID | None = None,
    tries: int = 5,
    caused_by: Event | None = None,
) -> Decided[State] | Coroutine[Any, Any, Decided[State]]:
    """Decide on a command with the state of its stream, append the events, and return the result.

    With an `AsyncEventStore` it is a coroutine.

    If another writer appends first, only its events are loaded, and the command is decided on again. In the caller's
    transaction the events are stored at its commit; above READ COMMITTED it sees no new events, and so gives up.

    Args:
        store: The store that has the stream.
        decider: The stream's decider.
        decider_id: The stream.
        command: The argument of `decide`.
        command_id: The command's own id. A command that was handled with this id is not decided on again: its first
            result is returned.
        tries: How often the command is decided on at most.
        caused_by: The event that caused the command, as for `append_event`; within `causing` the default is its event.

    Raises:
        GaveUp: Another writer appended first each time.
        EventIdReused: An event of another stream has the id of one of the command's events.
        HistoryPurged: The stream's first events were purged, and there is no snapshot of it.
        StreamClosed: Events were decided, but the stream has its final event.
    """
    if isinstance(store, AsyncEventStore):
        return handle_async(store, decider, decider_id, command, command_id, tries, caused_by)
    return handle_sync(store, decider, decider_id, command, command_id, tries, caused_by)
