"""Helpers for tests of the source `event_log`: a small log, and reads as Spark's tasks do, without Spark."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source import COLUMNS, EventLogOptions, EventLogReader
from tests.support.factories import ids_of_one_partition, register_orders
from tests.support.sql_calls import BatchEvent, append_events


def fill(store: PlatformStore) -> PlatformStore:
    """Let log partition 0 hold five events, partition 1 three, partition 2 one, all others none."""
    register_orders(store)
    for partition, number in ((0, 5), (1, 3), (2, 1)):
        (decider_id,) = ids_of_one_partition(store.connection, 1, partition)
        append_events(
            store,
            (
                BatchEvent(
                    ("order", "invoice")[n % 2], decider_id, "placed" if n < 2 else "paid", uuid4(), {"n": n}, uuid4()
                )
                for n in range(number)
            ),
        )
    store.sequence_events()
    return store


# keys of data with every kind of character
KEYS = ["plain", "with space", "quote'", 'double"', "back\\slash", "{brace,}", "ключ", "tick`", "100%", "%s", "A", "a"]


def append_odd(store: PlatformStore) -> None:
    """Append one event of an odd stream with such keys and values of every kind in its data."""
    data = {key: f"value of {key}" for key in KEYS} | {
        "null": None, "number": 12.50, "big": 10**30, "truth": True,
        "object": {"inner": {"deep": "found", "list": [10, {"x": "y"}]}}, "empty": "",
        "text": "a'b\"c\\d\ne\U0001f600",
    }  # fmt: skip
    append_events(store, [BatchEvent("order", 'it\'s \\ "ü"', "placed", uuid4(), data, uuid4())])
    store.sequence_events()


def append_json(store: PlatformStore, decider: str, values: Sequence[tuple[str, str, str]]) -> None:
    """Append (stream, event, data as JSON text): Python's numbers could not hold the JSON's."""
    store.connection.execute(
        """
        select event_store.append_events((
          select jsonb_agg(jsonb_build_object(
            'decider', %s::text, 'decider_id', decider_id, 'event', event, 'event_id', gen_random_uuid(),
            'command_id', gen_random_uuid(), 'data', data::jsonb
          ) order by n)
          from unnest(%s::text[], %s::text[], %s::text[]) with ordinality t(decider_id, event, data, n)
        ))
        """,
        (decider, *map(list, zip(*values, strict=True))),
    )


SPARK_TYPES = {
    "int": IntegerType(), "bigint": LongType(), "string": StringType(), "boolean": BooleanType(),
    "timestamp": TimestampType(),
}  # fmt: skip


def read(dsn: str, **options: object) -> list[dict[str, Any]]:
    """Read as Spark's tasks do, without Spark."""
    reader = reader_of(dsn, **options)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def reader_of(dsn: str, **options: object) -> EventLogReader:
    parsed = options_of(dsn=dsn, **options)
    types = {n: SPARK_TYPES[COLUMNS[n][0]] for n in parsed.columns} | dict.fromkeys(parsed.extract, StringType())
    return EventLogReader(parsed, StructType([StructField(name, type_) for name, type_ in types.items()]))


def options_of(**options: object) -> EventLogOptions:
    return EventLogOptions.read(_said(options))


def load(spark: SparkSession, dsn: str, **options: object) -> DataFrame:
    return spark.read.format("event_log").options(dsn=dsn, **_said(options)).load()


def stream(spark: SparkSession, dsn: str, **options: object) -> DataFrame:
    return spark.readStream.format("event_log").options(dsn=dsn, **_said(options)).load()


def _said(options: dict[str, object]) -> dict[str, str]:
    return {name: option if isinstance(option, str) else json.dumps(option) for name, option in options.items()}


def positions(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["position"]) for row in found)


def filed(folder: Path) -> list[tuple[int, int]]:
    """Return the positions in the Parquet files that a query wrote."""
    columns = ["partition", "position"]
    files = folder.glob("*.parquet")
    return positions([row for file in files for row in pq.read_table(file, columns=columns).to_pylist()])


ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (2, 0)]
