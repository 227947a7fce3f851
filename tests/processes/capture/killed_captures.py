"""A program that kills a capture: `python -m tests.processes.capture.killed_captures DSN SOURCE KILLS SEED`.

The capture runs in forks of this program, which kill themselves at a step, or are killed by it at any moment. The
source changes meanwhile. test_random_kills.py captures the rest and asserts the result. This is a separate program
because pytest has threads, which a fork does not survive.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

from millrace.capture import backfill
from millrace.capture import drain as capture
from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.decoding.change import Change
from millrace.capture.drain import CaptureDrain
from millrace.capture.source import probe
from millrace.capture.store import CaptureStore
from tests.support.capturing.kill_steps import OF_RUNS
from tests.support.forks import fork

# true for every row: the same rows are captured with and without it, but each change publishes and reads the table anew
SAME = "id > 0"


def declared(source: str, where: str | None = None) -> Capture:
    tables = (CapturedTable("items", where=where), CapturedTable("notes"), CapturedTable("journal"))
    return Capture("shop", lambda: source, tables)


def kill_at(place: object, name: str, after: bool, number: int) -> None:
    original: Callable[..., Any] = getattr(place, name)
    left = number

    def killing(*args: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(place, name, killing)


def kill_in_copy(number: int) -> None:
    original = CaptureStore.copy_changes

    def watched(changes: Iterable[Change]) -> Iterator[Change]:
        for at, change in enumerate(changes, 1):
            if at == number:
                os.kill(os.getpid(), signal.SIGKILL)
            yield change

    def copying(self: CaptureStore, source_generation: int, changes: Iterable[Change]) -> int:
        return original(self, source_generation, watched(changes))

    CaptureStore.copy_changes = copying  # type: ignore[method-assign]


def fork_capture(dsn: str, captured: Capture, prepare: Callable[[], None]) -> int:
    def work() -> int:
        # small limits, so that one run takes each step several times
        capture.MOST_CHANGES, capture.PIECE, capture.EMIT = 60, 25, 40
        backfill.CHUNK, backfill.FINISH = 25, 40
        # without the lock, because a run leaves out a locked table and reads it anew later, with a hole in its history
        probe._lock = lambda *_: None
        prepare()
        # the same owner, which does not wait for the lease of its killed predecessor
        with CaptureDrain(dsn, captured, "test") as capturing:
            capturing.drain(budget_s=1, idle_s=0.2)
        return 0

    return fork(work)


def main(dsn: str, source: str, kills: int, seed: int) -> dict[str, int]:
    """Kill `kills` captures; return how many were killed at which step."""
    random = Random(seed)
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        kind = random.random()
        number = random.randint(1, 3)
        captured = declared(source, random.choice([None, None, SAME]))
        if kind < 0.7:
            place, name, after = random.choice(OF_RUNS)
            step = f"{'after' if after else 'before'} {name}"
            child = fork_capture(dsn, captured, partial(kill_at, place, name, after, number))
        elif kind < 0.8:
            step = "in copy_changes"
            child = fork_capture(dsn, captured, partial(kill_in_copy, number * 10))
        else:
            step = "anywhere"
            child = fork_capture(dsn, captured, lambda: None)
            # a random moment for the kill; nothing else depends on this sleep
            time.sleep(random.uniform(0.0, 0.3))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in {0, -signal.SIGKILL}, (step, code)
        killed[step] += code != 0
    return dict(killed)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))  # noqa: T201 - its result
