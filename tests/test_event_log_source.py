"""The data source `event_log`: every option right and wrong, ranges over tasks, and values as Postgres has them."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from resources.event_log_source import (
    COLUMNS,
    EventLogInput,
    EventLogOptions,
    EventLogReader,
    InvalidOption,
    OffsetRange,
    wanted_ranges,
)
from resources.event_store import EventStore, NewEvent
from resources.settings import PROJECT
from tests.factories import Connect, ids_of_one_partition, register_orders, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SPARK_TYPES = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
}


@pytest.fixture
def log(store: EventStore) -> EventStore:
    """Log partition 0 holds five events, partition 1 three, partition 2 one, all others none."""
    register_orders(store)
    for partition, number in ((0, 5), (1, 3), (2, 1)):
        (decider_id,) = ids_of_one_partition(store.connection, 1, partition)
        store.append_events(
            NewEvent(
                "order" if n % 2 == 0 else "invoice",
                decider_id,
                "placed" if n < 2 else "paid",
                uuid4(),
                {"n": n},
                uuid4(),
            )
            for n in range(number)
        )
    store.sequence_events()
    return store


def read(dsn: str, **options: object) -> list[dict[str, Any]]:
    """Read as Spark's tasks do, without Spark."""
    reader = reader_of(dsn, **options)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def reader_of(dsn: str, **options: object) -> EventLogReader:
    parsed = options_of(dsn=dsn, **options)
    types = {name: SPARK_TYPES[COLUMNS[name][0]] for name in parsed.columns} | dict.fromkeys(
        parsed.extract, StringType()
    )
    return EventLogReader(parsed, StructType([StructField(name, type_) for name, type_ in types.items()]))


def options_of(**options: object) -> EventLogOptions:
    return EventLogOptions.read({k: v if isinstance(v, str) else json.dumps(v) for k, v in options.items()})


def load(spark: "SparkSession", dsn: str, **options: object) -> "DataFrame":
    reader = spark.read.format("event_log").option("dsn", dsn)
    for name, option in options.items():
        reader = reader.option(name, option if isinstance(option, str) else json.dumps(option))
    return reader.load()


def positions(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["partition_offset"]) for row in found)


ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (2, 0)]


# Options ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"startingOffsets": {"0": 3, "1": 3}}, [(0, 3), (0, 4), (2, 0)]),
        ({"endingOffsets": {"0": 2, "1": 0}}, [(0, 0), (0, 1), (2, 0)]),
        ({"startingOffsets": {"0": 1, "1": 1}, "endingOffsets": {"0": 2, "1": 3}}, [(0, 1), (1, 1), (1, 2)]),
        ({"startingOffsets": {"0": 2}, "endingOffsets": {"0": 2}}, []),
        ({"startingOffsets": {}, "endingOffsets": {}}, []),
        ({"partitions": [1, 2]}, [(1, 0), (1, 1), (1, 2), (2, 0)]),
        ({"partitions": [15]}, []),
        ({"partitions": []}, []),
        ({"deciders": ["invoice"]}, [(0, 1), (0, 3), (1, 1)]),
        ({"deciders": ["nobody"]}, []),
        ({"deciders": []}, []),
        ({"events": ["placed"]}, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]),
        ({"deciders": ["order"], "events": ["paid", "shipped"]}, [(0, 2), (0, 4), (1, 2)]),
        ({"maxRecordsPerPartition": "1"}, ALL),
        ({"MAXRECORDSPERPARTITION": "2", "STARTINGOFFSETS": "earliest"}, ALL),
    ],
)
def test_options_choose_what_is_read(dsn: str, options: dict[str, object], expected: list[tuple[int, int]]) -> None:
    assert positions(read(dsn, **options)) == expected


@pytest.mark.parametrize(
    ("name", "wrong", "allowed"),
    [
        ("dsn", "", "a Postgres connection string"),
        ("startingOffsets", "latest", 'earliest, or JSON {"<log partition>": <partition offset>, …}'),
        ("startingOffsets", "[1]", "earliest, or JSON"),
        ("startingOffsets", '{"0": -1}', "earliest, or JSON"),
        ("startingOffsets", '{"0": 1.5}', "earliest, or JSON"),
        ("startingOffsets", '{"0": true}', "earliest, or JSON"),
        ("startingOffsets", '{"p0": 1}', "earliest, or JSON"),
        ("startingOffsets", '{"²": 1}', "earliest, or JSON"),
        ("startingOffsets", "null", "earliest, or JSON"),
        ("endingOffsets", "earliest", "latest, or JSON"),
        ("endingOffsets", '{"0": ', "latest, or JSON"),
        ("partitions", "0", "JSON list of log partitions, from 0"),
        ("partitions", "[-1]", "JSON list of log partitions, from 0"),
        ("partitions", '["0"]', "JSON list of log partitions, from 0"),
        ("partitions", "[0, 0]", "JSON list of log partitions, from 0"),
        ("deciders", "order", "JSON list of deciders"),
        ("deciders", "[1]", "JSON list of deciders"),
        ("events", '{"placed": 1}', "JSON list of events"),
        ("columns", "[]", "JSON list of partition, partition_offset, offset, event,"),
        ("columns", '["amount"]', "JSON list of partition,"),
        ("columns", '["event", "event"]', "JSON list of partition,"),
        ("columns", "[[1]]", "JSON list of partition,"),
        ("extract", "[]", "JSON {column: [key, …]}"),
        ("extract", '{"a": []}', "JSON {column: [key, …]}"),
        ("extract", '{"a": "b"}', "JSON {column: [key, …]}"),
        ("extract", '{"a": [1]}', "JSON {column: [key, …]}"),
        ("maxRecordsPerPartition", "0", "a whole number from 1"),
        ("maxRecordsPerPartition", "-1", "a whole number from 1"),
        ("maxRecordsPerPartition", "many", "a whole number from 1"),
        ("maxRecordsPerPartition", "²", "a whole number from 1"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name_with_what_is_allowed(name: str, wrong: str, allowed: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        EventLogOptions.read({"dsn": "postgresql://", name: wrong})
    assert f"option {name!r} is {wrong!r}; allowed: {allowed}" in str(refused.value)


def test_an_unknown_option_a_missing_dsn_and_a_taken_name_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"option 'startingoffset' is '\{\}'; allowed: dsn, startingOffsets, "):
        EventLogOptions.read({"dsn": "postgresql://", "startingOffset": "{}"})
    with pytest.raises(InvalidOption, match="option 'dsn' is None; allowed: a Postgres connection string"):
        EventLogOptions.read({})
    with pytest.raises(InvalidOption, match="option 'extract' is 'event'; allowed: names that are not columns already"):
        options_of(dsn="postgresql://", extract={"event": ["a"]})


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"partitions": [3, 99]}, "option 'partitions' is 99; allowed: log partitions 0, 1, 2"),
        ({"startingOffsets": {"99": 0}}, "option 'startingOffsets' is 99; allowed: log partitions 0, 1, 2"),
        ({"endingOffsets": {"99": 0}}, "option 'endingOffsets' is 99; allowed: log partitions 0, 1, 2"),
        (
            {"startingOffsets": {"0": 0}, "endingOffsets": {}},
            "option 'startingOffsets' is 0; allowed: log partitions none",
        ),
        (
            {"startingOffsets": {"99": 0}, "endingOffsets": {"99": 5}},
            "'endingOffsets' is 99; allowed: log partitions 0 to 15",
        ),
        ({"endingOffsets": {"0": 6}}, "option 'endingOffsets' is 6; allowed: offsets 0 to 5 of log partition 0"),
        (
            {"startingOffsets": {"1": 0}, "endingOffsets": {"1": 4}},
            "option 'endingOffsets' is 4; allowed: offsets 0 to 3 of log partition 1",
        ),
    ],
)
def test_what_the_log_does_not_hold_is_refused_and_never_read_as_fewer_rows(
    dsn: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        read(dsn, **options)
    assert sentence in str(refused.value)


def test_history_that_is_removed_is_refused_where_it_is_asked_for_and_earliest_begins_after_it(
    log: EventStore, dsn: str
) -> None:
    log.mark_archived(0, 2)
    log.raise_low_water_mark(0, 2)
    assert positions(read(dsn, partitions=[0])) == [(0, 2), (0, 3), (0, 4)]
    for options in ({"startingOffsets": {"0": 1}}, {"startingOffsets": {"0": 0}, "endingOffsets": {"0": 5}}):
        with pytest.raises(
            InvalidOption, match=r"option 'startingOffsets' is \d; allowed: offsets 2 to 5 of log partition 0"
        ):
            read(dsn, **options)


# Tasks -----------------------------------------------------------------------------------------------------


def tasks(dsn: str, **options: object) -> list[list[tuple[int, int, int]]]:
    parts = reader_of(dsn, **options).partitions()
    assert all(isinstance(part, EventLogInput) for part in parts)
    return [[(r.partition, r.from_offset, r.to_offset) for r in part.ranges] for part in parts]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (100, [[(0, 0, 5), (1, 0, 3), (2, 0, 1)]]),
        (9, [[(0, 0, 5), (1, 0, 3), (2, 0, 1)]]),
        (8, [[(0, 0, 5), (1, 0, 3)], [(2, 0, 1)]]),
        (4, [[(0, 0, 4)], [(0, 4, 5), (1, 0, 3)], [(2, 0, 1)]]),
        (2, [[(0, 0, 2)], [(0, 2, 4)], [(0, 4, 5), (1, 0, 1)], [(1, 1, 3)], [(2, 0, 1)]]),
    ],
)
def test_small_ranges_share_a_task_and_large_ones_are_split(
    dsn: str, records: int, expected: list[list[tuple[int, int, int]]]
) -> None:
    assert tasks(dsn, maxRecordsPerPartition=str(records)) == expected


def test_stated_ranges_are_planned_without_asking_postgres() -> None:
    options = options_of(dsn="host=/nowhere", startingOffsets={"3": 1}, endingOffsets={"3": 4, "5": 0})
    assert wanted_ranges(options) == [OffsetRange(3, 1, 4)]


def test_an_empty_log_has_no_tasks_and_no_rows(dsn: str, spark: "SparkSession") -> None:
    assert tasks(dsn) == []
    assert load(spark, dsn).count() == 0


# Values ----------------------------------------------------------------------------------------------------

KEYS = ["plain", "with space", "quote'", 'double"', "back\\slash", "{brace,}", "ключ", "tick`", "100%", "%s", "A", "a"]


@pytest.fixture
def odd(store: EventStore) -> EventStore:
    register_orders(store)
    data = {key: f"value of {key}" for key in KEYS} | {
        "null": None,
        "number": 12.50,
        "big": 10**30,
        "truth": True,
        "object": {"inner": {"deep": "found", "list": [10, {"x": "y"}]}},
        "empty": "",
        "text": "a'b\"c\\d\ne\U0001f600",
    }
    store.append_events([NewEvent("order", 'it\'s \\ "ü"', "placed", uuid4(), data, uuid4())])
    store.sequence_events()
    return store


def extracted(dsn: str, *path: str) -> object:
    (row,) = read(dsn, columns=["offset"], extract={"found": list(path)})
    return row["found"]


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (["missing"], None),
        (["null"], None),
        (["plain", "deeper"], None),
        (["empty"], ""),
        (["number"], "12.5"),
        (["big"], str(10**30)),
        (["truth"], "true"),
        (["text"], "a'b\"c\\d\ne\U0001f600"),
        (["object", "inner", "deep"], "found"),
        (["object", "inner", "list", "1", "x"], "y"),
        (["object", "inner", "list", "0"], "10"),
        (["object", "inner", "list"], '[10, {"x": "y"}]'),
        (["object", "missing", "deep"], None),
        *(([key], f"value of {key}") for key in KEYS),
    ],
)
def test_extract_takes_a_field_by_its_path_as_text_and_null_where_it_is_not(
    dsn: str, path: list[str], expected: str | None
) -> None:
    assert extracted(dsn, *path) == expected


@pytest.mark.usefixtures("odd")
def test_new_columns_may_have_any_name_also_through_spark(dsn: str, spark: "SparkSession") -> None:
    found = load(spark, dsn, columns=["decider_id"], extract={f"{key} of it": [key] for key in KEYS})
    assert found.columns == ["decider_id", *(f"{key} of it" for key in KEYS)]
    assert [tuple(row) for row in found.collect()] == [('it\'s \\ "ü"', *(f"value of {key}" for key in KEYS))]


def test_filters_may_hold_quotes_and_backslashes(store: EventStore, dsn: str) -> None:
    odd = "o'r\\d\"e,r{}"
    store.register_decider_event(odd, odd, "odd")
    store.append_events([NewEvent(odd, "a", odd, uuid4(), {}, uuid4())])
    store.sequence_events()
    assert [row["event"] for row in read(dsn, deciders=[odd], events=[odd])] == [odd]
    assert read(dsn, deciders=[odd + "'"]) == []


@pytest.mark.usefixtures("log")
def test_columns_come_as_asked_and_in_that_order(dsn: str) -> None:
    (row,) = read(dsn, columns=["event", "offset", "final"], extract={"n": ["n"]}, partitions=[2])
    assert list(row) == ["event", "offset", "final", "n"]
    assert (row["event"], row["final"], row["n"]) == ("placed", False, "0")


def test_every_value_and_type_is_that_of_postgres_also_in_other_time_zones(
    odd: EventStore, dsn: str, connect: Connect, spark: "SparkSession"
) -> None:
    at = datetime(1999, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)
    elsewhere: psycopg.Connection = connect()
    elsewhere.execute("set timezone = 'Asia/Kathmandu'")
    elsewhere.execute("select set_config('event_store.clock', %s, false)", (at.isoformat(),))
    second = NewEvent("order", 'it\'s \\ "ü"', "paid", uuid4(), {}, uuid4(), final=True)
    EventStore(elsewhere).append_events([second])
    odd.sequence_events()
    odd.connection.execute(
        sql.SQL("alter database {} set timezone = 'America/Caracas'").format(sql.Identifier(odd.connection.info.dbname))
    )
    expressions = ", ".join(f"{expression} as {name}" for name, (_, expression) in COLUMNS.items() if name != "offset")
    expected = rows(
        odd.connection,
        f'select {expressions}, l."offset" from event_store.event_log l join event_store.events e using ("offset")'
        " order by l.partition_offset",
    )
    order = [*(name for name in COLUMNS if name != "offset"), "offset"]
    found = load(spark, dsn, columns=order).orderBy("partition_offset")
    assert dict(found.dtypes) == {name: type_ for name, (type_, _) in COLUMNS.items()}
    arrow = found.toArrow().to_pylist()
    assert [tuple(row[name] for name in order) for row in arrow] == expected
    assert arrow[1]["created_at"] == at


# Through Spark ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("log")
def test_spark_reads_the_whole_log_over_several_tasks(dsn: str, spark: "SparkSession") -> None:
    found = load(spark, dsn, maxRecordsPerPartition="2", columns=["partition", "partition_offset"])
    assert sorted((row.partition, row.partition_offset) for row in found.collect()) == ALL


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": '["amount"]'}, "event_log: option 'columns' is '[\"amount\"]'; allowed: JSON list of partition"),
        ({"partitions": "[99]"}, "event_log: option 'partitions' is 99; allowed: log partitions 0, 1"),
        ({"endingOffsets": '{"0": 99}'}, "event_log: option 'endingOffsets' is 99; allowed: offsets 0 to 5 of log"),
    ],
    ids=["when the schema is asked for", "when tasks are planned", "when a task reads"],
)
def test_the_user_of_spark_sees_which_option_is_wrong(
    dsn: str, spark: "SparkSession", options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        load(spark, dsn, **options).collect()
    assert sentence in str(failed.value)


def test_the_module_imports_neither_dagster_nor_anything_of_ours() -> None:
    script = (
        "import sys, resources.event_log_source\n"
        "ours = ('resources', 'assets', 'platform_defs', 'dagster', 'psycopg', 'adbc_driver_postgresql')\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ours))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['resources', 'resources.event_log_source']"
