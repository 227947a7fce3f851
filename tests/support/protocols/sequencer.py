"""Transactions append, and the sequencer gives their events positions.

Transactions commit in any order, long after they drew their offsets. Two processes are sequencers, and each may be
killed at any moment; its uncommitted work is lost. One row is the lock: a sequencer locks it, then reads which
transactions are committed, and gives the next positions to the events of those that the stored snapshot did not see.
Positions and the new snapshot commit together. A process records the high-water marks now and then.

The code is in `sequence_events.sql` and `add_mark.sql` of `sql/functions/event_store/log`. The model has three
transactions, each with an event in both of two log partitions. A test executes each step with sessions at a real store,
and compares logs and marks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.support.protocols.checker import Protocol

TITLE = "The sequencer"
TRANSACTIONS, PARTITIONS, SEQUENCERS = (1, 2, 3), (0, 1), ("A", "B")
MUTANTS = {
    "two reads": "The marks of the two log partitions are read by two statements.",
    "snapshot before lock": "A sequencer reads what is committed, and what was seen, before it has the lock.",
    "cursor": "The sequencer remembers the highest transaction that it saw, and not which ones.",
}


@dataclass(frozen=True)
class State:
    """Transactions by their outcome; the log; the uncommitted work of sequencers; marks."""

    open: frozenset[int] = frozenset(TRANSACTIONS)
    committed: frozenset[int] = frozenset()
    log: frozenset[tuple[int, int, int]] = frozenset()  # log partition, position, transaction
    seen: frozenset[int] = frozenset()
    lock: str | None = None
    # by sequencer: the transactions to give positions, and its new snapshot
    passes: tuple[tuple[frozenset[int], frozenset[int]] | None, ...] = (None, None)
    half: int | None = None  # the mark of the first log partition, where the second is still to be read
    marks: frozenset[tuple[int, int]] = frozenset()


def high(state: State, partition: int) -> int:
    return sum(each == partition for each, _, _ in state.log)


def protocol(mutant: str | None = None, *, most_marks: int = 1) -> Protocol[State]:
    """Return the protocol, or its mutant with one broken rule."""

    def steps(s: State) -> Iterator[tuple[str, State]]:
        for one in sorted(s.open):
            yield f"T{one} commits", replace(s, open=s.open - {one}, committed=s.committed | {one})
            yield f"T{one} is rolled back", replace(s, open=s.open - {one})
        for number, name in enumerate(SEQUENCERS):
            under_way = s.passes[number]

            def with_pass(found: tuple[frozenset[int], frozenset[int]] | None, at: int = number) -> State:
                return replace(s, passes=(*s.passes[:at], found, *s.passes[at + 1 :]))

            if under_way is None:
                fresh = s.committed - s.seen
                if mutant == "cursor":
                    fresh = frozenset(one for one in s.committed if one > max(s.seen, default=0))
                if fresh and (s.lock is None or mutant == "snapshot before lock"):
                    found = with_pass((fresh, s.seen | fresh))
                    yield f"{name} reads", found if mutant == "snapshot before lock" else replace(found, lock=name)
                continue
            if mutant == "snapshot before lock" and s.lock is None:
                yield f"{name} takes the lock", replace(s, lock=name)
            if s.lock == name:
                yield (
                    f"{name} commits",
                    replace(with_pass(None), log=_longer(s, under_way[0]), seen=under_way[1], lock=None),
                )
            yield f"{name} is killed", replace(with_pass(None), lock=None if s.lock == name else s.lock)
        if len(s.marks) < most_marks:
            first, second = high(s, 0), high(s, 1)
            if mutant != "two reads":
                yield "marks are recorded", replace(s, marks=s.marks | {(first, second)})
            elif s.half is None:
                yield "the first mark is read", replace(s, half=first)
            else:
                yield "the second mark is read", replace(s, half=None, marks=s.marks | {(s.half, second)})

    return Protocol(
        State(),
        steps,
        {
            "Each position is given once, and positions are dense.": lambda s: all(
                sorted(position for each, position, _ in s.log if each == partition) == [*range(high(s, partition))]
                for partition in PARTITIONS
            ),
            "Each event has one position at most.": lambda s: len(s.log) == len({(p, one) for p, _, one in s.log}),
            "Only committed events have positions.": lambda s: {one for _, _, one in s.log} <= s.committed,
            "Recorded marks divide no transaction.": lambda s: all(
                len({position < mark[partition] for partition, position, of in s.log if of == one}) < 2
                for mark in s.marks
                for one in s.committed
            ),
        },
        lambda s: not s.open and {one for _, _, one in s.log} == s.committed,
    )


def _longer(s: State, fresh: frozenset[int]) -> frozenset[tuple[int, int, int]]:
    return s.log | {(p, high(s, p) + n, one) for p in PARTITIONS for n, one in enumerate(sorted(fresh))}


def shown(s: State) -> str:
    """Return a state as shown on the page."""
    logs = (" ".join(f"T{t}" for _, t in sorted((n, t) for p, n, t in s.log if p == each)) for each in PARTITIONS)
    return " | ".join(f"log {each}: {log or '-'}" for each, log in enumerate(logs)) + (
        f" | marks: {', '.join(map(str, sorted(s.marks)))}" if s.marks else ""
    )
