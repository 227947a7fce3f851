"""A fold that waits in the middle of a round until a test releases it, and writes down its process id."""

import os
import time
from pathlib import Path
from typing import cast

from millrace import fold
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State
from tests.support.building.drains import thing
from tests.support.building.hanging import processes
from tests.support.building.read_models import DECIDER
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent


@fold(view="waiting", deciders=[DECIDER], key="thing_id", columns={"seen": "bigint"})
def waiting(state: State | None, event: FoldEvent) -> State:
    """One row per thing; an event that names a file waits until there is another one beside it."""
    told = event.data.get("wait")
    if told is not None:
        with Path(told).open("a") as file:
            file.write(f"{os.getpid()}\n")
        deadline = time.monotonic() + patience()
        while not Path(f"{told}.go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return {"seen": (state or {"seen": 0})["seen"] + 1}


Waiting = cast("ReadModel", waiting)


def stop_at(path: Path) -> BatchEvent:
    return thing("sleeper", wait=str(path))


def met(path: Path, times: int = 1) -> int:
    wait_until(lambda: len(processes(path)) >= times, "the fold is at its event")
    return processes(path)[-1]


def let_go(path: Path) -> None:
    Path(f"{path}.go").touch()
