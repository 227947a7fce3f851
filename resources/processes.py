"""Other processes: whether they live, and waiting for their end.

Belongs here: what holds for any process of this machine. Not here: which processes there should be.
"""

import time
from collections.abc import Iterable

import psutil


def alive(process: psutil.Process) -> bool:
    """Tell whether the very same process still runs; a zombie does not, even if nobody ever reaps it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all have ended or the time is over; give those that still live.

    Unlike `psutil.wait_procs` this does not wait for a slow init to reap what was orphaned.
    """
    deadline = time.monotonic() + seconds
    living = [process for process in processes if alive(process)]
    while living and time.monotonic() < deadline:
        time.sleep(0.02)
        living = [process for process in living if alive(process)]
    return living
