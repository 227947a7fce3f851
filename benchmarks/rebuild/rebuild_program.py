"""Rebuilds a read model twice in a separate process, because a process has one Spark master; `cluster` runs it.

It waits for a line of input before and after the second rebuild, which is measured.
"""

import json
import sys
from pathlib import Path

import psycopg

from benchmarks.rebuild.bench import ORDERS
from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from millrace.spark import spark_session


def main(dsn: str, archive: str, configuration: str) -> None:
    """Rebuild all log partitions; `archive` is the folder, or empty for Postgres alone."""
    with (
        spark_session(json.loads(configuration)) as spark,
        ViewDrain(dsn, ORDERS, lambda: spark, "bench", archive=Path(archive) if archive else None) as consumer,
    ):
        with psycopg.connect(dsn) as connection:
            partitions = [info.partition for info in PlatformStore(connection).partition_info()]
        consumer.rebuild(*partitions)
        _meet("begin")
        events = consumer.rebuild(*partitions).events
        _meet(f"end {events}")


def _meet(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
