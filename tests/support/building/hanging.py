"""A fold that hangs at an event, in two ways, and writes down its process id."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

from millrace import fold
from millrace.ops import ReadModel
from millrace.rows import FoldEvent, State
from tests.support.building.drains import thing
from tests.support.building.read_models import DECIDER
from tests.support.patience import wait_until
from tests.support.sql_calls import BatchEvent


@fold(view="hanging", deciders=[DECIDER], key="thing_id", columns={"seen": "bigint"})
def hanging(state: State | None, event: FoldEvent) -> State:
    """One row per thing; an event that names a file is never done with."""
    told = event.data.get("hang")
    if told is not None:
        with Path(told).open("a") as file:
            file.write(f"{os.getpid()}\n")
    while told is not None:
        try:
            time.sleep(1)
        except BaseException:
            if not event.data["stubborn"]:
                raise
    return {"seen": (state or {"seen": 0})["seen"] + 1}


Hanging = cast("ReadModel", hanging)


def hang_at(path: Path, decider_id: str = "endless", *, stubborn: bool) -> BatchEvent:
    """Make an event at which the fold hangs; a stubborn one catches every exception that should end it."""
    return thing(decider_id, hang=str(path), stubborn=stubborn)


def processes(path: Path) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(line) for line in path.read_text().splitlines()]
    return []


def all_over(path: Path) -> None:
    assert processes(path)
    wait_until(lambda: not [pid for pid in processes(path) if _lives(pid)], "the processes of the function end")


def _lives(pid: int) -> bool:
    try:
        # the state of a zombie, an ended process that its parent has not waited for, is Z
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
