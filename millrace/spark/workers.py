"""Housekeeping in Spark's Python processes, outside their tasks."""

import gc
from functools import cache


@cache
def spare_imports() -> None:
    """Exclude this process's imports from garbage collection from now on; a task calls this at its end.

    Spark collects garbage after each task. Traversing all imported objects takes ten times as long as a small task.
    """
    gc.freeze()
