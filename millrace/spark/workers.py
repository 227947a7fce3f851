"""What a Python process of Spark's does besides its tasks."""

import gc
from functools import cache


@cache
def spare_imports() -> None:
    """Let the garbage collector pass by, from now on, what this process has imported; a task calls this at its end.

    Spark collects after each task. To look at all that was imported takes ten times as long as a small task.
    """
    gc.freeze()
