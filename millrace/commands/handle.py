"""The call that handles a command, for either store: its loop is in `handling`, and `async_handling` for coroutines."""

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
    """Decide on a command with the state of its stream, append the events, and return what was decided.

    With an `AsyncEventStore` it is a coroutine.

    Where another writer was first, only what is new is loaded, and decided on again. In a transaction of the caller's
    the events are stored when it commits; above READ COMMITTED it does not see what is new, and so gives up.

    Args:
        store: The store that has the stream.
        decider: Its kind.
        decider_id: The stream.
        command: What `decide` gets.
        command_id: The command's own id. A command that was handled with it is not decided on again: what it led to
            then is returned.
        tries: How often it is decided at most.
        caused_by: The event that led to the command, as for `append_event`; within `causing` it is that one's.

    Raises:
        GaveUp: Another writer was first each time.
        EventIdReused: An event of another stream has the id of one that the command leads to.
        HistoryPurged: The stream's first events were purged, and there is no snapshot of it.
        StreamClosed: Something was decided, and the stream has its final event.
    """
    if isinstance(store, AsyncEventStore):
        return handle_async(store, decider, decider_id, command, command_id, tries, caused_by)
    return handle_sync(store, decider, decider_id, command, command_id, tries, caused_by)
