"""Looks at every state that a protocol can reach, breadth first, so that a way to a fault is a shortest one."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
# no protocol here has a tenth of this
MOST_STATES = 200_000


@dataclass(frozen=True)
class Protocol(Generic[State]):
    """A protocol with few processes and few events.

    Attributes:
        first: The state that it begins in.
        steps: What may happen next in a state, whoever does it: the words for it, and the state after it.
        invariants: What holds in each state, by what a page says of it.
        end: Which states are an end; from each state one can be reached, whatever has happened.
    """

    first: State
    steps: Callable[[State], Iterable[tuple[str, State]]]
    invariants: Mapping[str, Callable[[State], bool]]
    end: Callable[[State], bool]


@dataclass(frozen=True)
class Broken(Generic[State]):
    """What does not hold, and a shortest way there: each step with the state after it."""

    promise: str
    way: tuple[tuple[str, State], ...]


@dataclass(frozen=True)
class Checked(Generic[State]):
    """All states that were reached, each with its steps, and the first fault; None where all promises hold."""

    graph: Mapping[State, tuple[tuple[str, State], ...]]
    broken: Broken[State] | None


def check(protocol: Protocol[State]) -> Checked[State]:
    """Look at all states, up to the first in which an invariant does not hold; then whether each leads to an end."""
    before: dict[State, tuple[str, State] | None] = {protocol.first: None}
    graph: dict[State, tuple[tuple[str, State], ...]] = {}
    todo = deque([protocol.first])
    while todo:
        state = todo.popleft()
        for promise, holds in protocol.invariants.items():
            if not holds(state):
                return Checked(graph, Broken(promise, _way(before, state)))
        graph[state] = tuple(protocol.steps(state))
        for said, after in graph[state]:
            if after not in before:
                before[after] = (said, state)
                todo.append(after)
        assert len(before) < MOST_STATES, "the protocol has too many states: some number of it grows without end"
    leading = _leading(graph, [state for state in graph if protocol.end(state)])
    # in the order of the search: the first is one of the shortest
    stuck = next((state for state in graph if state not in leading), None)
    return Checked(graph, None if stuck is None else Broken("The end can always be reached.", _way(before, stuck)))


def _way(before: Mapping[State, tuple[str, State] | None], state: State) -> tuple[tuple[str, State], ...]:
    way: list[tuple[str, State]] = []
    while (step := before[state]) is not None:
        way.append((step[0], state))
        state = step[1]
    return tuple(reversed(way))


def _leading(graph: Mapping[State, tuple[tuple[str, State], ...]], ends: list[State]) -> set[State]:
    """Return the states from which one of these ends can be reached."""
    sources: dict[State, list[State]] = {state: [] for state in graph}
    for state, steps in graph.items():
        for _, after in steps:
            sources[after].append(state)
    leading, todo = set(ends), [*ends]
    while todo:
        for source in sources[todo.pop()]:
            if source not in leading:
                leading.add(source)
                todo.append(source)
    return leading
