"""How long a test waits for a state that has to come."""

import os
import threading
import time
from collections.abc import Callable

_QUIET_S = 60
# the longest patience so far of each test: a limit made in a busy minute must not outlast a later one
_longest: dict[str, int] = {}


def patience() -> int:
    """Return the seconds to wait: the limit of a quiet machine times the number of processes that share a core.

    Within a test it never shrinks.
    """
    now = round(_QUIET_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _longest[test] = max(now, _longest.get(test, 0))
    return _longest[test]


def wait_until(state: Callable[[], object], what: str) -> None:
    """Poll until the state is reached, without taking the core from the processes that bring it about."""
    began, pause = time.monotonic(), threading.Event()
    while not state():
        assert time.monotonic() - began < patience(), f"never happened: {what}"
        pause.wait(0.01)
