"""Deciders, which fold a stream to a state and decide on a command, and the result of a command."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from msgspec import structs

from millrace.errors import GaveUp, HistoryPurged, Malformed
from millrace.event_store import Event, Json, NewEvent, StreamEvents
from millrace.event_store.ids import id_of, uuid7
from millrace.event_store.new_events import LaterEvent, require_one_time
from millrace.read_models.declared.fold_event import FoldEvent
from millrace.user_code import finished, is_async, is_generator

if TYPE_CHECKING:
    from millrace.read_models.declared.fold import Fold

State = TypeVar("State")
Command = TypeVar("Command")


@dataclass(frozen=True)
class Emit:
    """An event that a decider decides on; `final` closes its stream."""

    event: str
    data: Json
    event_version: int = 1
    final: bool = False
    metadata: Json = None


@dataclass(frozen=True)
class Later:
    """An event that a decider decides on for later, as `EventStore.schedule` does; beside it is an `Emit`.

    It comes `after` a time or `at` a moment, unless the event `unless` comes first. An event of the same `name` moves.
    """

    event: Emit
    name: str
    after: timedelta | None = None
    at: datetime | None = None
    unless: str | None = None

    def __post_init__(self) -> None:
        """Refuse one without a time of its own."""
        require_one_time(self.after, self.at)


@dataclass(frozen=True, kw_only=True)
class Decider(Generic[State, Command]):
    """A kind of entity, as pure functions: they depend on their arguments only, and change none of them.

    Attributes:
        name: The decider in the event store, such as `order`.
        initial: The state of a stream without events.
        decide: From a command and the state to its events, none if it changes nothing; those of a `Later` are scheduled
            in the same call. It refuses a command by raising any error. Sealed values in the dicts and lists of a state
            are opened for it.
        evolve: From the state and an event to the next state. Or a fold read model of this decider alone: its stored
            states are snapshots, and only the events after them are read.
    """

    name: str
    initial: State
    decide: Callable[[Command, State], Iterable[Emit | Later]]
    evolve: "Callable[[State, Any], State] | Fold"

    def __post_init__(self) -> None:
        """Refuse functions with code that would not run, and a fold that also takes other streams."""
        for name, function in (("decide", self.decide), ("evolve", self.evolve)):
            if is_async(function) or (name == "evolve" and is_generator(function)):
                raise ValueError(f"{name} of {self.name} is async or a generator: its code would not run.")
        fold = self.fold
        if fold is not None and fold.deciders != (self.name,):
            raise ValueError(
                f"The fold {fold.name} takes events of {fold.deciders or 'all deciders'}: declare it with"
                f" deciders=[{self.name!r}] alone, so that each of its rows is the state of one {self.name}."
            )

    @property
    def fold(self) -> "Fold | None":
        """The read model that stores states as snapshots, if there is one."""
        return None if callable(self.evolve) else self.evolve

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the fold's declaration, computed from its source."""
        return "" if self.fold is None else self.fold.fingerprint.partition("+")[0]

    def evolved(self, state: State, event: Event) -> State:
        """Return the state after an event."""
        new_state = state
        # states are stored: they are made of sealed values, not of opened ones
        event = structs.replace(event)
        if callable(self.evolve):
            new_state = self.evolve(state, event)
        elif self.evolve.events is None or event.event in self.evolve.events:
            # a fold's state has a type that only the user knows
            function: Callable[[Any, FoldEvent], Any] = self.evolve.function
            new_state = function(
                state,
                FoldEvent(
                    event.decider,
                    event.decider_id,
                    event.event,
                    event.event_version,
                    event.data,
                    event.created_at,
                    event.offset,
                ),
            )
        return finished(new_state)


@dataclass(frozen=True)
class Decided(Generic[State]):
    """The result of a command.

    Attributes:
        decider: The decider's name.
        decider_id: The stream.
        events: The events that were appended, as they are stored; none if none was decided.
        state: The state after them.
        version: How many events the stream has.
        offset: The offset of its last event, 0 without one: `wait_for("orders", decided)` waits for it.
    """

    decider: str
    decider_id: str
    events: tuple[Event, ...]
    state: State
    version: int
    offset: int


@dataclass(frozen=True)
class Loaded(Generic[State]):
    """A stream up to its version, folded."""

    state: State
    version: int = 0
    offset: int = 0

    def after(self, decider: Decider[State, Any], event: Event) -> "Loaded[State]":
        """Return the stream with its next event."""
        if event.version != self.version + 1:
            raise purged(decider.name, event.decider_id, self.version)
        return Loaded(decider.evolved(self.state, event), event.version, event.offset)


def to_append(
    decider: Decider[State, Command], loaded: Loaded[State], decider_id: str, command: Command, command_id: UUID | None
) -> tuple[StreamEvents, list[LaterEvent]] | None:
    """Decide on a command, and return the events to append after the loaded ones, and those for later; None for none.

    With a command_id the events have the same ids each time.

    Raises:
        Malformed: There are only events for later.
    """
    recorded_id = command_id or uuid7()
    decisions = [*decider.decide(command, loaded.state)]
    emitted = [one for one in decisions if isinstance(one, Emit)]
    later = [one for one in decisions if isinstance(one, Later)]
    if later and not emitted:
        raise Malformed(
            f"The decider {decider.name} decides on {later[0].event.event} for later, and on no event for now.",
            detail=f"Stream ({decider.name}, {decider_id}), command {type(command).__name__}.",
            hint="Decide on an Emit beside the Later: without an event the command would not be known again.",
        )
    new = [
        NewEvent(
            one.event,
            one.data,
            event_id=event_id_of(recorded_id, decider.name, decider_id, number),
            command_id=recorded_id,
            event_version=one.event_version,
            final=one.final,
            metadata=one.metadata,
        )
        for number, one in enumerate([*emitted, *(each.event for each in later)])
    ]
    if not new:
        return None
    number = len(emitted)
    scheduled = [
        LaterEvent(event, each.name, each.after, each.at, each.unless)
        for event, each in zip(new[number:], later, strict=True)
    ]
    return StreamEvents(decider.name, decider_id, tuple(new[:number]), loaded.version), scheduled


def event_id_of(command_id: UUID, decider: str, decider_id: str, number: int) -> UUID:
    """Return the id of an event of a command: the same each time that the command is handled."""
    return id_of(command_id, f"{decider}/{decider_id}/{number}")


def decided(
    decider: Decider[State, Any], loaded: Loaded[State], decider_id: str, events: Iterable[Event]
) -> Decided[State]:
    """Return the result of a command: the loaded stream with its new events."""
    appended = tuple(events)
    for event in appended:
        state = decider.evolved(loaded.state, event)
        loaded = replace(loaded, state=state, version=loaded.version + 1, offset=event.offset)
    return Decided(decider.name, decider_id, appended, loaded.state, loaded.version, loaded.offset)


def purged(decider: str, decider_id: str, version: int) -> HistoryPurged:
    """Return the error for a stream that does not continue with its next event."""
    return HistoryPurged(
        "The stream's state cannot be computed from its events: some were purged.",
        detail=f"Stream ({decider}, {decider_id}): the event after version {version} is not kept.",
        hint="Let evolve be a fold read model: its states are snapshots, which need no earlier events.",
    )


def gave_up(decider: str, decider_id: str, tries: int) -> GaveUp:
    """Return the error after the last try."""
    return GaveUp(
        "Other writers were first each time.",
        detail=f"Stream ({decider}, {decider_id}): {tries} tries.",
        hint="Try again later. A stream that many writers share wants smaller streams, or one writer.",
    )
