"""The number of tasks and the size of batches for a session: fixed on one machine, by the cores on a cluster."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from millrace.spark.session import TASK_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# with fewer events a task's overhead costs more than the events
LEAST_TASK_EVENTS = 50_000
# tasks for each core: a slow task then delays a third of a core's work
TASKS_OF_A_CORE = 3
BATCH_EVENTS = 500_000
BATCH_EVENTS_OF_A_CORE = 250_000
# more than any cluster has cores
_ROWS = 1 << 16
_cores: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()


def task_number(spark: "SparkSession", events: int, cores: int | None = None) -> int:
    """Return the number of tasks to read `events` events; `cores` is that of the session, None asks the session."""
    size = _task_events(spark)
    if size is not None:
        return 1 + events // size
    if events <= LEAST_TASK_EVENTS:
        return 1
    return tasks_on(cores or cores_of(spark), events)


def tasks_on(cores: int, events: int) -> int:
    """Return the number of tasks to read `events` events on `cores` cores."""
    return max(1, min(TASKS_OF_A_CORE * cores, events // LEAST_TASK_EVENTS))


def batch_size(spark: "SparkSession", cores: int | None = None) -> int:
    """Return the number of events in a batch of a drain; `cores` is that of the session, None asks the session."""
    if _task_events(spark) is not None:
        return BATCH_EVENTS
    return BATCH_EVENTS_OF_A_CORE * (cores or cores_of(spark))


def cores_of(spark: "SparkSession") -> int:
    """Return the number of tasks that a session runs in parallel, as its scheduler counts; each session is asked once.

    `spark.default.parallelism`, if set, replaces that number.
    """
    if spark not in _cores:
        # asked twice: executors may register after the first job began; Spark Connect has no other way to ask
        _slices(spark)
        _cores[spark] = _slices(spark)
    return _cores[spark]


def _slices(spark: "SparkSession") -> int:
    """Return the number of slices that Spark cuts a range into by default."""
    from pyspark.sql import functions as f

    (row,) = spark.range(_ROWS).select(f.spark_partition_id().alias("slice")).agg(f.max("slice")).collect()
    return int(row[0]) + 1


def _task_events(spark: "SparkSession") -> int | None:
    size = spark.conf.get(TASK_EVENTS, None)
    return None if size is None else int(size)
