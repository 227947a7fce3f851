"""A consumer leases a range of the log, builds its rows, and commits them with its position; another may take over.

Each consumer may be killed at any moment, or stop and resume much later, as a zombie. The next claim may take over an
expired lease, and gets a new token. A commit is one transaction: it locks the checkpoint, is refused unless its token
is in force, writes the rows, moves the checkpoint, and ends the lease. An expired lease that was not taken over still
holds: the token decides, not the clock.

The code is in `claim_batch.sql`, `commit_batch.sql` and `millrace/drain/commit.py`. The model has two consumers and two
events of one log partition; a claim takes one or both. A test executes each step with the SQL functions on a real
store, and compares its state with the protocol's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.protocols.checker import Protocol

TITLE = "Lease, commit, takeover"
EVENTS, CONSUMERS, LIMITS = 2, ("A", "B"), (1, 2)
MUTANTS = {
    "no token": "A commit does not ask whether its token is in force.",
    "two transactions": "Rows and checkpoint are written in two transactions.",
}


@dataclass(frozen=True)
class Held:
    """A consumer's lease: its range, whether its token is in force, whether it wrote the rows (a mutant)."""

    first: int
    last: int
    in_force: bool = True
    written: bool = False


@dataclass(frozen=True)
class State:
    """The checkpoint, the lease's owner and whether it has expired; rows as positions, in the order of commits."""

    position: int = 0
    lease: str | None = None
    is_over: bool = False
    rows: tuple[int, ...] = ()
    held: tuple[Held | None, ...] = (None, None)
    refused: bool = False  # whether the last step was a refused commit


def protocol(mutant: str | None = None) -> Protocol[State]:
    """Return the protocol, or its mutant with one broken rule."""

    def steps(state: State) -> Iterator[tuple[str, State]]:
        s = replace(state, refused=False)
        if s.lease and not s.is_over:
            yield "the lease is past its time", replace(s, is_over=True)
        for number, name in enumerate(CONSUMERS):
            mine = s.held[number]

            def with_mine(found: Held | None, at: int = number) -> State:
                return replace(s, held=(*s.held[:at], found, *s.held[at + 1 :]))

            if mine is None:
                if s.position < EVENTS and (s.lease is None or s.is_over):
                    for last in sorted({min(s.position + limit, EVENTS) for limit in LIMITS}):
                        others = tuple(held and replace(held, in_force=False) for held in s.held)
                        claimed = (*others[:number], Held(s.position, last), *others[number + 1 :])
                        yield (
                            f"{name} claims {s.position} to {last}",
                            replace(s, lease=name, is_over=False, held=claimed),
                        )
                continue
            yield f"{name} is killed", with_mine(None)
            if mine.in_force:
                yield f"{name} gives its lease back", replace(with_mine(None), lease=None, is_over=False)
            effect = (*s.rows, *range(mine.first, mine.last))
            if not mine.in_force and mutant != "no token":
                yield f"{name} commits", replace(with_mine(None), refused=True)
            elif mutant == "two transactions" and not mine.written:
                yield f"{name} writes its rows", replace(with_mine(replace(mine, written=True)), rows=effect)
            else:
                done = with_mine(None)
                if mine.in_force:
                    done = replace(done, lease=None, is_over=False)
                rows = s.rows if mine.written else effect
                yield f"{name} commits", replace(done, rows=rows, position=max(s.position, mine.last))

    invariants = {
        "Each event is in the rows once, in order, up to the checkpoint.": lambda s: s.rows == (*range(s.position),),
        "One token at most is in force.": lambda s: sum(bool(held and held.in_force) for held in s.held) <= 1,
    }
    if mutant == "two transactions":
        # between the two, the checkpoint may be ahead
        invariants = {"Each event is in the rows once.": lambda s: len(s.rows) == len({*s.rows})}
    return Protocol(State(), steps, invariants, lambda s: s.position == EVENTS)


def shown(s: State) -> str:
    """Return a state as shown on the page."""
    lease = f"lease: {s.lease or '-'}{', past its time' if s.is_over else ''}"
    rows = " ".join(map(str, s.rows)) or "-"
    return f"checkpoint: {s.position} | {lease} | rows of: {rows}{' | refused' if s.refused else ''}"
