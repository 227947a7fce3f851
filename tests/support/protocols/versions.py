"""A changed declaration is built beside the version that serves, catches up, and takes its place.

The new version has its own tables and checkpoint. Drains of both continue, each by the protocol of [leases](lease.md):
a killed drain loses its uncommitted work. The switch is one transaction. It replaces the SQL view, which locks readers
out until it commits. Then it locks the old version's checkpoint, compares the two, and rolls back if the new version is
behind. Another transaction removes the old version later, but skips it while a drain has a lease of it. Each process
may be killed at any moment.

The code is `serve_if_caught_up` and `drop_unused_versions` in `millrace/read_models/stored/versions.py`. The model has
two events of one log partition, which come at any moment. A test executes each step with these functions on a real
store, the switch in its own session, and compares the store with the protocol's state. It differs from a drain in two
ways: rows are counted without Spark, and the switch does not check whether it is worth while before it locks readers
out. That check spares readers, and no promise depends on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.protocols.checker import Protocol

TITLE = "Build, catch up, switch"
EVENTS = 2
MUTANTS = {
    "no catch-up": "The switch does not ask where the versions stand.",
    "compared before": "The checkpoints are compared before readers are locked out.",
    "two transactions": "The SQL view is dropped in one transaction and made in the next.",
}


@dataclass(frozen=True)
class State:
    """The number of events in the log; the position of each version (None: no such version); the one readers see."""

    log: int = 0
    old: int | None = 0
    new: int | None = None
    # the position up to which a drain of a version has built without a commit
    building_old: int | None = None
    building_new: int | None = None
    shows: str | None = "old"
    is_locked: bool = False  # by the switch, which is under way
    has_compared: bool = False
    most_read: int = 0  # the most events that any reader saw in the rows


def protocol(mutant: str | None = None) -> Protocol[State]:
    """Return the protocol, or its mutant with one broken rule."""

    def steps(s: State) -> Iterator[tuple[str, State]]:
        if s.log < EVENTS:
            yield "an event comes", replace(s, log=s.log + 1)
        # the switch has locked the old version's checkpoint: a commit waits, and a claim finds nothing
        is_held = s.is_locked and s.has_compared
        if s.old is not None:
            if s.building_old is not None:
                if not is_held:
                    yield "the old version commits", replace(s, old=s.building_old, building_old=None)
                yield "the old version's drain is killed", replace(s, building_old=None)
            elif s.old < s.log and s.shows != "new" and not is_held:
                yield "a drain builds for the old version", replace(s, building_old=s.log)
        seen = read(s)
        if seen is not None and seen > s.most_read and not s.is_locked:
            yield "a reader selects", replace(s, most_read=seen)
        if s.new is None:
            yield "the new version gets its tables", replace(s, new=0)
            return
        if s.building_new is not None:
            yield "the new version commits", replace(s, new=s.building_new, building_new=None)
            yield "the new version's drain is killed", replace(s, building_new=None)
        elif s.new < s.log:
            yield "a drain builds for the new version", replace(s, building_new=s.new + 1)
        yield from _switch(s, s.new, mutant)

    return Protocol(
        State(),
        steps,
        {
            "Readers always find a version.": lambda s: read(s) is not None,
            "No reader sees fewer events than one before.": lambda s: s.is_locked or (read(s) or 0) >= s.most_read,
        },
        lambda s: s.shows == "new" and s.old is None and s.new == s.log,
    )


def _switch(s: State, new: int, mutant: str | None) -> Iterator[tuple[str, State]]:
    served = replace(s, shows="new", is_locked=False, has_compared=False)
    if s.shows == "new":
        if s.old is not None:
            yield "the old version is removed", replace(s, old=None, building_old=None)
        return
    if mutant == "two transactions":
        gone = replace(s, shows=None)
        yield ("the SQL view is made anew", served) if s.shows is None else ("the SQL view is dropped", gone)
        return
    has_caught_up = s.old is not None and new >= s.old
    if s.is_locked or s.has_compared:
        yield "the switch is killed", replace(s, is_locked=False, has_compared=False)
    if (
        not s.has_compared
        and (s.is_locked or mutant == "compared before")
        and (has_caught_up or mutant == "no catch-up")
    ):
        yield "the switch compares the checkpoints", replace(s, has_compared=True)
    if not s.is_locked and (mutant != "compared before" or s.has_compared):
        yield "the switch locks readers out", replace(s, is_locked=True)
    if s.is_locked and s.has_compared:
        yield "the switch commits", served


def read(s: State) -> int | None:
    """Return the number of events in the rows that readers see; None if they find no SQL view."""
    return {"old": s.old, "new": s.new, None: None}[s.shows]


def shown(s: State) -> str:
    """Return a state as shown on the page."""
    stands = " | ".join(f"{name}: {'-' if at is None else at}" for name, at in (("old", s.old), ("new", s.new)))
    return f"log: {s.log} | {stands} | serves: {s.shows or '-'}{', locked' if s.is_locked else ''}"
