"""Visits every reachable state of a protocol, breadth first, so the way to a fault is a shortest one."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
# no protocol here has a tenth of these
MOST_STATES = 200_000


@dataclass(frozen=True)
class Protocol(Generic[State]):
    """A protocol with few processes and few events.

    Attributes:
        first: The initial state.
        steps: The possible next steps of all processes in a state: the text of each, and the state after it.
        invariants: The predicates that hold in each state, by their text on a page.
        end: Whether a state is an end; an end can be reached from every state.
    """

    first: State
    steps: Callable[[State], Iterable[tuple[str, State]]]
    invariants: Mapping[str, Callable[[State], bool]]
    end: Callable[[State], bool]


@dataclass(frozen=True)
class Broken(Generic[State]):
    """A broken promise, and a shortest way there: each step with the state after it."""

    promise: str
    way: tuple[tuple[str, State], ...]


@dataclass(frozen=True)
class Checked(Generic[State]):
    """All reached states, each with its steps, and the first fault (None: all promises hold)."""

    graph: Mapping[State, tuple[tuple[str, State], ...]]
    broken: Broken[State] | None


def check(protocol: Protocol[State]) -> Checked[State]:
    """Visit all states, up to the first that breaks an invariant; then check that each leads to an end."""
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
