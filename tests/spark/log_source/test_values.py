"""The rows of the source: values, names and types as Postgres has them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from psycopg import Connection

from millrace.event_store.platform import PlatformStore
from millrace.spark.log_source import COLUMNS
from tests.support.building.event_log_reads import KEYS, append_odd, fill, load, read
from tests.support.factories import Connect, register_orders, rows
from tests.support.sql_calls import BatchEvent, append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# a path in the data of the odd event, and the text at it
FOUND: list[tuple[list[str], str | None]] = [
    (["missing"], None), (["null"], None), (["plain", "deeper"], None), (["empty"], ""), (["number"], "12.5"),
    (["big"], str(10**30)), (["truth"], "true"), (["text"], "a'b\"c\\d\ne\U0001f600"),
    (["object", "inner", "deep"], "found"), (["object", "inner", "list", "1", "x"], "y"),
    (["object", "inner", "list", "0"], "10"), (["object", "inner", "list"], '[10, {"x": "y"}]'),
    (["object", "missing", "deep"], None), *(([key], f"value of {key}") for key in KEYS),
]  # fmt: skip


@pytest.fixture
def odd(store: PlatformStore) -> PlatformStore:
    register_orders(store)
    append_odd(store)
    return store


@pytest.mark.usefixtures("odd")
def test_extract_takes_a_field_by_its_path_as_text_or_null(dsn: str) -> None:
    (row,) = read(dsn, columns=["offset"], extract={str(n): path for n, (path, _) in enumerate(FOUND)})
    assert [(path, row[str(n)]) for n, (path, _) in enumerate(FOUND)] == FOUND
    # also without other columns
    assert read(dsn, columns=["offset"], extract={"found": ["text"]})[0]["found"] == FOUND[7][1]


@pytest.mark.usefixtures("odd")
def test_new_columns_may_have_any_name_also_through_spark(dsn: str, spark: "SparkSession") -> None:
    found = load(spark, dsn, columns=["decider_id"], extract={f"{key} of it": [key] for key in KEYS})
    assert found.columns == ["decider_id", *(f"{key} of it" for key in KEYS)]
    assert [tuple(row) for row in found.collect()] == [('it\'s \\ "ü"', *(f"value of {key}" for key in KEYS))]


def test_filters_may_hold_quotes_and_backslashes(store: PlatformStore, dsn: str) -> None:
    odd = "o'r\\d\"e,r{}"
    store.register_decider_event(odd, odd, "odd")
    append_events(store, [BatchEvent(odd, "a", odd, uuid4(), {}, uuid4())])
    store.sequence_events()
    assert [row["event"] for row in read(dsn, deciders=[odd], events=[odd])] == [odd]
    assert read(dsn, deciders=[odd + "'"]) == []


def test_columns_come_as_asked_and_in_that_order(store: PlatformStore, dsn: str) -> None:
    fill(store)
    (row,) = read(dsn, columns=["event", "offset", "final"], extract={"n": ["n"]}, partitions=[2])
    assert list(row) == ["event", "offset", "final", "n"]
    assert (row["event"], row["final"], row["n"]) == ("placed", False, "0")


def test_values_are_those_of_postgres(odd: PlatformStore, dsn: str, connect: Connect, spark: "SparkSession") -> None:
    at = datetime(1999, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)
    elsewhere: Connection = connect()
    elsewhere.execute("set timezone = 'Asia/Kathmandu'")
    elsewhere.execute("select set_config('event_store.clock', %s, false)", (at.isoformat(),))
    second = BatchEvent("order", 'it\'s \\ "ü"', "paid", uuid4(), {}, uuid4(), final=True)
    append_events(PlatformStore(elsewhere), [second])
    odd.sequence_events()
    database = odd.connection.info.dbname
    odd.connection.execute(f"alter database {database} set timezone = 'America/Caracas'".encode())
    expressions = ", ".join(f"{expression} as {name}" for name, (_, expression) in COLUMNS.items() if name != "offset")
    expected = rows(
        odd.connection,
        f'select {expressions}, l."offset" from event_store.event_log l join event_store.events e using ("offset")'
        " order by l.position",
    )
    order = [*(name for name in COLUMNS if name != "offset"), "offset"]
    found = load(spark, dsn, columns=order).orderBy("position")
    assert dict(found.dtypes) == {name: type_ for name, (type_, _) in COLUMNS.items()}
    arrow = found.toArrow().to_pylist()
    assert [tuple(row[name] for name in order) for row in arrow] == expected
    assert arrow[1]["created_at"] == at


def test_names_that_are_longer_than_postgres_keeps_are_names_all_the_same(odd: PlatformStore, dsn: str) -> None:
    assert odd
    names = ["é" * 40 + end for end in ("a", "b")] + ["data." + "x" * 100, "c0", "offset 1"]
    (row,) = read(dsn, columns=["offset", "event"], extract={name: [KEYS[n]] for n, name in enumerate(names)})
    assert list(row) == ["offset", "event", *names]
    assert [row[name] for name in names] == [f"value of {KEYS[n]}" for n in range(len(names))]
