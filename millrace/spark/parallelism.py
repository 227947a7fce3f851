"""How many tasks, and how large a batch, a session is worth: fixed on one machine, on a cluster by its cores."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from millrace.spark.session import TASK_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# a task of fewer events costs more than they do
LEAST_TASK_EVENTS = 50_000
# tasks for each core: one that is slow then holds up a third of a core's work
TASKS_OF_A_CORE = 3
BATCH_EVENTS = 500_000
BATCH_EVENTS_OF_A_CORE = 250_000
# more than any cluster has cores
_ROWS = 1 << 16
_cores: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


def task_number(spark: "SparkSession", events: int, cores: int | None = None) -> int:
    """Return how many tasks read so many events; `cores` says how many the session has, None asks it."""
    size = _task_events(spark)
    if size is not None:
        return 1 + events // size
    if events <= LEAST_TASK_EVENTS:
        return 1
    return tasks_on(cores or cores_of(spark), events)


def tasks_on(cores: int, events: int) -> int:
    """Return how many tasks read so many events on so many cores."""
    return max(1, min(TASKS_OF_A_CORE * cores, events // LEAST_TASK_EVENTS))


def batch_size(spark: "SparkSession", cores: int | None = None) -> int:
    """Return how many events a batch of a drain has; `cores` says how many the session has, None asks it."""
    if _task_events(spark) is not None:
        return BATCH_EVENTS
    return BATCH_EVENTS_OF_A_CORE * (cores or cores_of(spark))


def cores_of(spark: "SparkSession") -> int:
    """Return how many tasks a session runs side by side, as its scheduler counts them; of a session it asks once.

    `spark.default.parallelism` replaces that number where it is set.
    """
    if spark not in _cores:
        # executors may register after the first job began; over Spark Connect nothing else tells
        _slices(spark)
        _cores[spark] = _slices(spark)
    return _cores[spark]


def _slices(spark: "SparkSession") -> int:
    """Return into how many slices Spark cuts a range if nobody says how many."""
    from pyspark.sql import functions as f

    (row,) = spark.range(_ROWS).select(f.spark_partition_id().alias("slice")).agg(f.max("slice")).collect()
    return int(row[0]) + 1


def _task_events(spark: "SparkSession") -> int | None:
    size = spark.conf.get(TASK_EVENTS, None)
    return None if size is None else int(size)
