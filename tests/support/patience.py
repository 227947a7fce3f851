"""How long a test waits for a state that has to come."""

import os
import threading
import time
from collections.abc import Callable

_QUIET_S = 60
# by test: a limit that was made of it in a busy minute ends within it in a quiet one
_longest: dict[str, int] = {}


def patience() -> int:
    """Return for how many seconds to wait: the limit of a quiet machine, times the processes that share a core.

    Within a test it never shrinks.
    """
    now = round(_QUIET_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _longest[test] = max(now, _longest.get(test, 0))
    return _longest[test]


def wait_until(state: Callable[[], object], what: str) -> None:
    """Ask until the state is there, without taking the core from the processes that bring it about."""
    began, pause = time.monotonic(), threading.Event()
    while not state():
        assert time.monotonic() - began < patience(), f"never happened: {what}"
        pause.wait(0.01)
