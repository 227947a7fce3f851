"""Deciders in tests: the events of a command on a real event store, compared with the expected ones."""

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic

from millrace.commands.decider import Command, Decided, Decider, Emit, Later, Loaded, State
from millrace.commands.handle import handle
from millrace.event_store import EventStore


@dataclass(frozen=True)
class Handled(Generic[State]):
    """A command that was handled on given events. `Given.when` makes one.

    Attributes:
        decided: Its result, as `handle` returned it.
        later: What it decided on for later.
    """

    decided: Decided[State]
    later: tuple[Later, ...] = ()

    @property
    def state(self) -> State:
        """The state of the stream after the command."""
        return self.decided.state

    def then(self, *expected: Emit | Later) -> "Handled[State]":
        """Assert that the command led to these events and to these for later, in this order; to none, if none is named.

        Raises:
            AssertionError: It led to other events; the text names both.
        """
        __tracebackhide__ = True
        led: list[Emit | Later] = [
            Emit(each.event, each.data, each.event_version, each.final) for each in self.decided.events
        ]
        led += [replace(each, event=_stored(each.event)) for each in self.later]
        expected_events: list[Emit | Later] = [_stored(each) for each in expected if isinstance(each, Emit)]
        expected_events += [replace(each, event=_stored(each.event)) for each in expected if isinstance(each, Later)]
        if led != expected_events:
            stream = f"{self.decided.decider} {self.decided.decider_id!r}"
            lines = [f"The command led to other events of {stream}."]
            lines += [f"  expected: {_in_words(each)}" for each in expected_events] or ["  expected: none"]
            lines += [f"  led to:   {_in_words(each)}" for each in led] or ["  led to:   none"]
            raise AssertionError("\n".join(lines))
        return self


def tried(store: EventStore, decider: Decider[State, Command], decider_id: str, command: Command) -> Handled[State]:
    """Handle a command on the present events of the store; also register the events that it leads to.

    Raises:
        AssertionError: `decide` or `evolve` depends on more than its arguments, or changes them: two equal calls
            differed, or a snapshot differs from the state that all events give.
    """
    __tracebackhide__ = True
    initial = deepcopy(decider.initial)
    (opened,) = store.open_rows([{"state": _folded(store, decider, decider_id)}])
    state_before = opened["state"]
    unchanged = deepcopy(state_before)
    emitted = [*decider.decide(command, state_before)]
    if state_before != unchanged or decider.initial != initial:
        raise AssertionError(
            f"The decider {decider.name} changes a state in its place: decide and evolve return what is new."
        )
    later = tuple(each for each in emitted if isinstance(each, Later))
    emits = [each.event if isinstance(each, Later) else each for each in emitted]
    named = [(each.event, each.event_version) for each in emits] + [(each.unless, 1) for each in later if each.unless]
    for event, version in dict.fromkeys(named):
        store.register_decider_event(decider.name, event, "decided on in a test", version)
    decided = handle(store, decider, decider_id, command)
    Handled(decided, later).then(*emitted)
    state_after = _folded(store, decider, decider_id)
    if _as_stored(state_after) != _as_stored(decided.state):
        raise AssertionError(
            f"The state of {decider.name} {decider_id!r} depends on how it is computed.\n"
            f"  from all its events: {state_after}\n"
            f"  as it was decided:   {decided.state}\n"
            "evolve and decide look at their arguments only, and change none of them."
        )
    return Handled(decided, later)


def _folded(store: EventStore, decider: Decider[State, Command], decider_id: str) -> State:
    """Return the state of a stream from its first event on."""
    loaded = Loaded(decider.initial)
    for event in store.read(decider.name, decider_id, upcast=True):
        loaded = loaded.after(decider, event)
    return loaded.state


def _as_stored(value: Any) -> Any:  # noqa: ANN401 - a user's
    """Return a value as JSON has it, if JSON can hold it: a tuple is a list, a key a text."""
    try:
        # a `Plain` is its value
        return json.loads(json.dumps(value, default=lambda plain: plain.value))
    except (AttributeError, TypeError, ValueError):
        return value


def _stored(one: Emit) -> Emit:
    return replace(one, data=_as_stored(one.data), metadata=None)


def _in_words(one: Emit | Later) -> str:
    if isinstance(one, Later):
        unless = f" unless {one.unless}" if one.unless else ""
        return f"{_in_words(one.event)} later as {one.name}, after {one.after or one.at}{unless}"
    version, final = f" version {one.event_version}" * (one.event_version != 1), " final" * one.final
    return f"{one.event}{version}{final} {one.data}"
