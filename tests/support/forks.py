"""Processes that tests kill: forks, which begin at once and share what their parent has imported.

Belongs here: starting one. Not here: killing it; the programs that do (`killed_producers`, `killed_captures`) have no threads, which a
fork would not survive.
"""

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], int]) -> int:
    """Do the work in a process of its own, which ends with the status that it returns, 1 if it raises; return the process id."""
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
