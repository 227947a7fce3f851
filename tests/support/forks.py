"""Processes that tests kill: forks, which start at once and share their parent's imports."""

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], int]) -> int:
    """Do the work in a new process and return its pid; the process ends with the work's status, or 1 if it raises."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        status = work()
    except BaseException:  # noqa: BLE001 - a fork must not return to what its parent was doing
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
