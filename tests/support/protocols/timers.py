"""An event is scheduled, moved, taken back, or appended when it is due, unless another one came first.

A service schedules an event under a name, moves it, cancels it, or appends the event that it waits for; each is one
transaction. Two sequencers append scheduled events that are due. A sequencer locks the row, which the other then passes
over, and looks at the stream up to its head. Then it appends with this head as the expected version, and looks again if
another writer was first. The event and the row's outcome commit together. While the service holds the stream, the
sequencer gives up, and tries later. A process hears the event: its step, with an id made from the event's, commits with
the acknowledgement. An operator may send the process back to events that it heard. Each transaction may be killed at
any moment, and then leaves nothing.

The code is in `sql/functions/scheduled` and `millrace/commands/processes.py`. The model has one stream, and two events
of one name; nothing is scheduled after the awaited event. A test executes each step with sessions at a real store, and
compares rows, streams and acknowledgements. A lock of the test stops a sequencer between its look and its append.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.protocols.checker import Protocol

TITLE = "Scheduled events and processes"
SEQUENCERS, EVENTS, PAID = ("A", "B"), (1, 2), 0
FIRED, CANCELLED, UNLESS = "fired", "cancelled", "unless"
MUTANTS = {
    "no expected version": "The event is appended without the head that was looked at.",
    "two transactions": "The row gets its outcome in a transaction after the event's.",
    "no row lock": "A row is taken without a lock.",
    "late cancel": "A cancel does not ask whether the event is done.",
    "step without id": "A step has no id of its own.",
}


@dataclass(frozen=True)
class Row:
    """What has the name: the event, and its outcome (None while it waits)."""

    event: int
    outcome: str | None = None


@dataclass(frozen=True)
class Try:
    """A sequencer's uncommitted work: the event, the head that it looked at, and the outcome once there is one."""

    event: int
    head: int
    outcome: str | None = None


@dataclass(frozen=True)
class State:
    """The clock (event n is due at n); the row; the stream; uncommitted work; what the process has heard and done."""

    clock: int = 0
    row: Row | None = None
    stream: tuple[int, ...] = ()
    change: str | None = None  # of the service
    tries: tuple[Try | None, ...] = (None, None)
    taken_back: frozenset[int] = frozenset()
    steps: tuple[int, ...] = ()
    heard: int = 0
    is_stepping: bool = False
    was_sent_back: bool = False


def fired(s: State) -> list[int]:
    return [event for event in s.stream if event != PAID]


def protocol(mutant: str | None = None) -> Protocol[State]:
    """Return the protocol, or its mutant with one broken rule."""

    def steps(s: State) -> Iterator[tuple[str, State]]:
        if s.clock < len(EVENTS):
            yield f"{s.clock + 1} is due", replace(s, clock=s.clock + 1)
        yield from _service(s, mutant)
        for number, name in enumerate(SEQUENCERS):
            yield from _sequencer(s, number, name, mutant)
        yield from _process(s, mutant)

    invariants = {
        "Each event is in its stream once at most.": lambda s: len(s.stream) == len({*s.stream}),
        "None comes before its time.": lambda s: all(event <= s.clock for event in s.stream),
        "None follows the event that it waits for.": lambda s: PAID not in s.stream[:-1],
        "None comes after it was moved, or cancelled in time.": lambda s: not s.taken_back & {*s.stream},
        "A row says whether its event is in the stream.": lambda s: (
            s.row is None or (s.row.event in s.stream) == (s.row.outcome == FIRED)
        ),
        "A process takes one step for an event.": lambda s: len(s.steps) == len({*s.steps}),
        "What it acknowledged has its step.": lambda s: {*fired(s)[: s.heard]} <= {*s.steps},
    }
    if mutant == "two transactions":
        # between the two it does not
        del invariants["A row says whether its event is in the stream."]
    return Protocol(
        State(),
        steps,
        invariants,
        lambda s: (
            (s.row is None or s.row.outcome is not None)
            and s.heard == len(fired(s))
            and (s.change, *s.tries, s.is_stepping) == (None, None, None, False)
        ),
    )


def is_taken(s: State, mutant: str | None = None) -> bool:
    """Return whether a transaction holds the row."""
    holding = [one for one in s.tries if one and not (mutant == "two transactions" and one.outcome == FIRED)]
    return s.change not in (None, "pays") or (bool(holding) and mutant != "no row lock")


def is_held(s: State, mutant: str | None = None) -> bool:
    """Return whether a transaction holds the stream."""
    appended = any(one and one.outcome == FIRED for one in s.tries)
    return s.change == "pays" or (appended and mutant != "two transactions")


def _service(s: State, mutant: str | None) -> Iterator[tuple[str, State]]:
    row = s.row
    if s.change is not None:
        yield "the service is killed", replace(s, change=None)
        done = replace(s, change=None)
        if s.change == "pays":
            done = replace(done, stream=(*s.stream, PAID))
        else:
            if row and (row.outcome is None or s.change == "cancels"):
                done = replace(done, taken_back=s.taken_back | {row.event})
            cancelled = Row(row.event, CANCELLED) if row and s.change == "cancels" else None
            done = replace(done, row=cancelled or Row(int(s.change[-1])))
        yield "the service commits", done
        return
    if not is_taken(s, mutant):
        fresh = row.event + 1 if row else 1
        if PAID not in s.stream and fresh in EVENTS:
            yield f"the service schedules {fresh}", replace(s, change=f"schedules {fresh}")
        if row and (row.outcome is None or mutant == "late cancel"):
            yield "the service cancels", replace(s, change="cancels")
        elif row:
            yield "the service cancels too late", s
    if PAID not in s.stream and not is_held(s, mutant):
        yield "the service pays", replace(s, change="pays")


def _sequencer(s: State, number: int, name: str, mutant: str | None) -> Iterator[tuple[str, State]]:
    mine, row = s.tries[number], s.row

    def with_mine(found: Try | None, state: State = s) -> State:
        return replace(state, tries=(*s.tries[:number], found, *s.tries[number + 1 :]))

    def looked(event: int) -> State:
        return with_mine(Try(event, len(s.stream), UNLESS if PAID in s.stream else None))

    if mine is None:
        if row and row.outcome is None and row.event <= s.clock and not is_taken(s, mutant):
            yield f"{name} looks", looked(row.event)
        return
    yield f"{name} is killed", with_mine(None)
    # an event that is stored already is not stored again
    longer = s.stream if mine.event in s.stream else (*s.stream, mine.event)
    if mine.outcome is not None and row is not None:
        stream = longer if mine.outcome == FIRED else s.stream
        yield f"{name} commits", with_mine(None, replace(s, row=Row(row.event, mine.outcome), stream=stream))
    elif is_held(s, mutant):
        yield f"{name} finds the stream locked", with_mine(None)
    elif mine.head != len(s.stream) and mutant != "no expected version":
        yield f"{name} looks again", looked(mine.event)
    else:
        after = replace(s, stream=longer) if mutant == "two transactions" else s
        yield f"{name} appends {mine.event}", with_mine(replace(mine, outcome=FIRED), after)


def _process(s: State, mutant: str | None) -> Iterator[tuple[str, State]]:
    if s.is_stepping:
        yield "the process is killed", replace(s, is_stepping=False)
        event = fired(s)[s.heard]
        steps = s.steps if event in s.steps and mutant != "step without id" else (*s.steps, event)
        yield "the process commits", replace(s, is_stepping=False, steps=steps, heard=s.heard + 1)
        return
    if s.heard < len(fired(s)):
        yield f"the process hears {fired(s)[s.heard]}", replace(s, is_stepping=True)
    if s.heard and not s.was_sent_back:
        yield "the process is sent back", replace(s, heard=0, was_sent_back=True)


def shown(s: State) -> str:
    """Return a state as shown on the page."""
    row = f"{s.row.event} {s.row.outcome or 'waits'}" if s.row else "-"
    stream = " ".join("paid" if event == PAID else str(event) for event in s.stream) or "-"
    return f"row: {row} | stream: {stream}" + (f" | steps: {' '.join(map(str, s.steps))}" if s.steps else "")
