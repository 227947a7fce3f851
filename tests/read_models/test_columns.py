"""What a column refuses when it is declared, and what its type takes of a value: exactly that or a failed partition."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, LiteralString, cast
from uuid import uuid4

import psycopg
import pytest
from pyspark.errors import PySparkException

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.staging import read_events, stage_batch
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.read_models.column_types import InvalidColumn
from millrace.resources.read_models.columns import (
    Column,
    KeyColumn,
    all_,
    any_,
    avg,
    count,
    field,
    first,
    last,
    max_,
    min_,
    set_union,
    stream_id,
    sum_,
)
from millrace.resources.read_models.declaration import ReadModel, read_model
from millrace.resources.read_models.merge import merge_batch, next_batch
from millrace.resources.read_models.plans import partial_rows
from millrace.resources.read_models.versions import ensure_version
from tests.support.factories import ids_of_one_partition, rows, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TYPES = ("int", "bigint", "money", "tiny", "double", "boolean", "date", "timestamp", "string")
MONEY = "decimal(18,2)"
TINY = "decimal(38,36)"
ERROR_OF: LiteralString = "select last_error from event_store.stream_locks where decider_id = %s"


def spark_type(name: str) -> str:
    return {"money": MONEY, "tiny": TINY}.get(name, name)


# Each field is a value's type, so one event tries one type; the key crosses nothing.
Typed = read_model(view="typed", deciders=["thing"], key=["thing_id"])(
    type(
        "Typed",
        (),
        {
            "__doc__": "One row per thing: the last value of each type.",
            "thing_id": stream_id(),
            "sum_of_bigint": sum_("data.bigint"),
            "sum_of_money": sum_("data.money", type=MONEY),
            "sum_of_tiny": sum_("data.tiny", type=TINY),
            "mean_of_money": avg("data.money", type=MONEY),
        }
        | {f"last_{name}": last(f"data.{name}", type=spark_type(name)) for name in TYPES},
    )
)


def of_field(name: str) -> ReadModel:
    """Return the model with the columns of one field alone: Spark plans few of them sooner."""
    columns = {told: column for told, column in Typed.columns.items() if told.partition("_of_")[2] == name}
    return replace(Typed, columns={**columns, f"last_{name}": Typed.columns[f"last_{name}"]})


@pytest.fixture
def things(store: EventStore) -> EventStore:
    for event in ("made", "used", "broken"):
        store.register_decider_event("thing", event, f"a thing was {event}")
    return store


def thing(decider_id: str, data: object, event: str = "made") -> NewEvent:
    return NewEvent("thing", decider_id, event, uuid4(), cast("Any", data), uuid4())


def build(dsn: str, spark: "SparkSession", model: ReadModel) -> None:
    with Consumer.open(dsn, model, lambda: spark, "test") as consumer:
        consumer.drain(budget_s=60, idle_s=0)


# What Postgres must hold: the value that the JSON says, digit by digit.
TAKEN: list[tuple[str, str, str]] = [
    ("int", "5", "5"),
    ("int", '"-5"', "-5"),
    ("int", "1e3", "1000"),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("bigint", "-9223372036854775808", "-9223372036854775808"),
    ("money", "12.34", "12.34"),
    ("money", "12.340", "12.34"),
    ("money", "12", "12.00"),
    ("money", '"12.5"', "12.50"),
    ("money", "-0.01", "-0.01"),
    ("money", "1.5e3", "1500.00"),
    ("money", "9999999999999999.99", "9999999999999999.99"),
    ("tiny", "0.000000000000000000000000000000000001", "0.000000000000000000000000000000000001"),
    ("double", "0.1", "0.1"),
    ("double", "-1.5e300", "-1.5e+300"),
    ("double", "1e-400", "0"),
    ("boolean", "true", "true"),
    ("boolean", '"no"', "false"),
    ("boolean", "1", "true"),
    ("date", '"2024-02-29"', "2024-02-29"),
    ("timestamp", '"2024-02-29"', "2024-02-29 00:00:00+00"),
    ("timestamp", '"2024-02-29T12:00:00.123456+02:00"', "2024-02-29 10:00:00.123456+00"),
    ("timestamp", '"2024-02-29 12:00:00"', "2024-02-29 12:00:00+00"),
    ("string", "12.340", "12.340"),
    ("string", '{"b": [1, null], "a": "\\u00e9"}', '{"a": "é", "b": [1, null]}'),
    ("string", '""', ""),
    ("string", "[" * 190 + "]" * 190, "[" * 190 + "]" * 190),
]

REFUSED: list[tuple[str, str]] = [
    ("int", "2147483648"),
    ("int", "5.5"),
    ("int", "5.0"),
    ("int", '"five"'),
    ("int", '""'),
    ("int", "true"),
    ("bigint", "9223372036854775808"),
    ("bigint", "1e400"),
    ("bigint", "[1]"),
    ("money", "12.345"),
    ("money", "0.001"),
    ("money", '"1e-3"'),
    ("money", "1e400"),
    ("money", "10000000000000000"),
    ("money", '"NaN"'),
    ("money", '"12,50"'),
    ("money", "true"),
    ("money", '{"amount": 1}'),
    ("tiny", "0.0000000000000000000000000000000000001"),
    ("tiny", "100"),
    ("double", "1e400"),
    ("double", '"NaN"'),
    ("double", '"Infinity"'),
    ("double", '"1d"'),
    ("double", "true"),
    ("boolean", '"maybe"'),
    ("boolean", "2"),
    ("date", '"2024-02-30"'),
    ("date", '"2024"'),
    ("date", '"2024-02-29T10:00:00"'),
    ("date", "20240229"),
    ("timestamp", '"10:30"'),
    ("timestamp", '"T10:30:00"'),
    ("timestamp", '"now"'),
    ("timestamp", '"2024"'),
    ("timestamp", "1709200000"),
]


def append_json(store: EventStore, decider_id: str, name: str, json: str) -> None:
    """Append a value as its JSON says it: Python's numbers would not hold it."""
    store.connection.execute(
        "select * from event_store.append_event('made', gen_random_uuid(), 'thing', %s, %s::jsonb, gen_random_uuid(), null)",
        (decider_id, f'{{"{name}": {json}}}'),
    )


def test_a_value_that_its_type_holds_is_stored_as_it_is(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    for n, (name, json, _) in enumerate(TAKEN):
        append_json(things, f"t-{n:03}", name, json)
    build(dsn, spark, Typed)
    things.connection.execute("set timezone = 'UTC'")
    stored = [
        value(
            things.connection,
            "select to_jsonb(t) ->> %s from read_models.typed t where thing_id = %s",
            f"last_{name}",
            f"t-{n:03}",
        )
        for n, (name, _, _) in enumerate(TAKEN)
    ]
    expected = [
        text.replace(" ", "T", 1).replace("+00", "+00:00") if name == "timestamp" else text for name, _, text in TAKEN
    ]
    assert [normal(name, one) for (name, _, _), one in zip(TAKEN, stored, strict=True)] == [
        normal(name, one) for (name, _, _), one in zip(TAKEN, expected, strict=True)
    ]


def normal(name: str, text: str) -> object:
    return float(text) if name == "double" else text


def test_a_value_that_its_type_does_not_hold_fails_its_partition_with_the_value_and_is_never_changed(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    """One partial build per value: what Spark says of each, without a drain around it."""
    ids = ids_of_one_partition(things.connection, len(REFUSED), partition=7)
    for decider_id, (name, json) in zip(ids, REFUSED, strict=True):
        append_json(things, decider_id, name, json)
    things.register_view("typed", "-infinity", mode="bulk")
    (lease,) = things.claim_batch("typed", "test", 1_000, 600)
    taken = []
    for n, (name, json) in enumerate(REFUSED):
        one, model = type(lease)(lease.partition, n, n + 1, lease.lease_token), of_field(name)
        with suppress(PySparkException):
            (row,) = partial_rows(read_events(spark, dsn, model, [one]), model).collect()
            taken.append((name, json, row[f"last_{name}"]))
    assert taken == []


def test_a_stream_that_fails_names_the_field_the_value_and_the_type(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("a", {"money": 12.345}), thing("b", {"money": 1})])
    build(dsn, spark, Typed)
    line = value(things.connection, ERROR_OF, "a")
    assert "data.money is '12.345', which is not exactly a decimal(18,2)" in line


def test_sums_are_exact_to_the_last_digit(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    numbers = ["0.100000000000000000000000000000000001", "0.200000000000000000000000000000000002"]
    things.append_events([thing("a", {"tiny": number, "money": "0.10", "bigint": 2**62}) for number in numbers])
    build(dsn, spark, Typed)
    assert "overflow" in value(things.connection, ERROR_OF, "a")
    things.append_events([thing("c", {"tiny": number, "money": "0.10", "bigint": 2**53 + 1}) for number in numbers])
    build(dsn, spark, Typed)
    found = rows(
        things.connection,
        "select sum_of_tiny, sum_of_money, sum_of_bigint, mean_of_money from read_models.typed where thing_id = 'c'",
    )
    assert found == [(Decimal("0.300000000000000000000000000000000003"), Decimal("0.20"), 2**54 + 2, Decimal("0.1"))]


@pytest.mark.parametrize(
    ("declared_as", "value_of_one", "type_"),
    [
        ({"total": sum_("data.n")}, "9223372036854775807", "bigint"),
        ({"total": sum_("data.n", type="decimal(38,2)")}, "999999999999999999999999999999999999.99", "decimal(38,2)"),
        ({"total": avg("data.n", type=TINY)}, "99.9", "decimal(38,36)"),
    ],
)
def test_a_sum_that_outgrows_its_type_names_its_column_whether_in_a_batch_or_in_the_merge(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    declared_as: dict[str, Column],
    value_of_one: str,
    type_: str,
) -> None:
    members = {"__doc__": "One row per thing.", "thing_id": stream_id()} | declared_as
    model = read_model(view="grown", key=["thing_id"])(type("Grown", (), members))
    ensure_version(things.connection, model)
    things.append_events([thing("a", {"n": value_of_one}), thing("a", {"n": value_of_one})])
    (lease,) = things.claim_batch("grown", "test", 1_000, 600)
    halves = [replace(lease, from_position=n, to_position=n + 1) for n in range(2)]
    overflow = f"overflow in column total: its sum does not fit {type_}"
    with pytest.raises(PySparkException, match=re.escape(overflow)):
        partial_rows(read_events(spark, dsn, model, [lease]), model).collect()
    batch = next_batch(things.connection)
    staged = [rows for half in halves for rows in stage_batch(spark, dsn, model, [half], batch)]
    with pytest.raises(psycopg.DataError, match=re.escape(overflow)):
        merge_batch(things.connection, model, batch, staged)


def test_a_column_fails_by_no_value_of_an_event_that_it_does_not_look_at(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    members = {
        "__doc__": "One row per thing.",
        "thing_id": stream_id(),
        "made": sum_("data.n", events=["made"]),
        "used": sum_("data.n", type=MONEY, events=["used"]),
        "texts": count("data.n"),
    }
    model = read_model(view="picky", key=["thing_id"])(type("Picky", (), members))
    things.append_events(
        [
            thing("a", {"n": 1}),
            thing("a", {"n": 2.5}, "used"),
            thing("a", {"n": "broken"}, "broken"),
            thing("a", {"n": None}),
        ]
    )
    build(dsn, spark, model)
    assert rows(things.connection, "select * from read_models.picky") == [("a", 1, Decimal("2.50"), 3)]


def test_fields_are_told_apart_by_case_quotes_and_backticks_in_their_keys(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    keys = ["id", "ID", "a`b", 'q"q', "it's", "back\\slash", "ключ", "with space"]
    members = {"__doc__": "One row per thing.", "thing_id": stream_id()} | {
        f"c{n}": last(f"data.{key}") for n, key in enumerate(keys)
    }
    model = read_model(view="keys", key=["thing_id"])(type("Keys", (), members))
    things.append_events([thing("a", {key: f"value of {key}" for key in keys})])
    build(dsn, spark, model)
    assert rows(things.connection, "select * from read_models.keys") == [("a", *(f"value of {key}" for key in keys))]


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: count("amount"), "'amount' is neither a column of the event (partition, "),
        (lambda: count("data."), "'data.' is neither a column of the event"),
        (lambda: count("data.a..b"), "nor a field data.<key>[.<key>…]"),
        (lambda: sum_("data.n", type="double"), "sums are bigint or decimal(p,s), which add up exactly"),
        (lambda: sum_("data.n", type="int"), "sums are bigint or decimal(p,s)"),
        (lambda: avg("data.n", type="double"), "means are of bigint or decimal(p,s)"),
        (lambda: sum_("created_at"), "'created_at' has type timestamp, not bigint"),
        (lambda: sum_("data.n", type="decimal"), "type is 'decimal'; allowed: bigint, boolean, date"),
        (lambda: sum_("data.n", type="decimal(18,2"), "type is 'decimal(18,2'; allowed"),
        (lambda: sum_("data.n", type="decimal(39,2)"), "type is 'decimal(39,2)'; allowed"),
        (lambda: sum_("data.n", type="decimal(2,3)"), "type is 'decimal(2,3)'; allowed"),
        (lambda: sum_("data.n", type="decimal(0,0)"), "type is 'decimal(0,0)'; allowed"),
        (lambda: sum_("data.n", type="decimal(²,2)"), "allowed"),
        (lambda: last("data.n", type="float"), "type is 'float'; allowed"),
        (lambda: last("event", type="int"), "'event' has type string, not int"),
        (lambda: min_("data.n", type="boolean"), "a boolean has no order; use any_ and all_"),
        (lambda: max_("final"), "a boolean has no order; use any_ and all_"),
        (lambda: set_union("data.n", type="double"), "type is 'double', which 0 and -0 are two of; use decimal(p,s)"),
        (lambda: set_union("data.n", type="text"), "type is 'text'; allowed"),
        (lambda: any_("event"), "'event' has type string, not boolean"),
        (lambda: all_("offset"), "'offset' has type bigint, not boolean"),
        (lambda: count(events=[]), "events= is []: name at least one event in a list"),
        (lambda: count(events=cast("Any", "made")), "events= is 'made': name at least one event in a list"),
        (lambda: field("data.n", type="number"), "type is 'number'; allowed"),
        (lambda: first("nothing"), "'nothing' is neither"),
    ],
)
def test_a_column_that_cannot_work_is_refused_in_a_sentence(
    declare: Callable[[], Column | KeyColumn], sentence: str
) -> None:
    with pytest.raises(InvalidColumn) as refused:
        declare()
    assert sentence in str(refused.value)


def test_every_column_that_is_not_refused_merges_in_postgres(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    kinds: dict[str, Callable[..., Column]] = {"min": min_, "max": max_, "first": first, "last": last}
    members: dict[str, object] = {"__doc__": "One row per thing.", "thing_id": stream_id()}
    for type_ in ("int", "bigint", "double", "boolean", "date", "timestamp", "string", MONEY):
        for kind, make in kinds.items():
            if type_ == "boolean" and kind in {"min", "max"}:
                continue
            members[f"{kind}_{type_.partition('(')[0]}"] = make(f"data.{type_.partition('(')[0]}", type=type_)
    model = read_model(view="kinds", key=["thing_id"])(type("Kinds", (), members))
    low = {"int": 1, "bigint": 1, "double": 0.5, "boolean": False, "date": "2024-01-01", "timestamp": "2024-01-01", "string": "a", "decimal": "0.5"}  # fmt: skip
    high = {"int": 2, "bigint": 2, "double": 1.5, "boolean": True, "date": "2024-01-02", "timestamp": "2024-01-02", "string": "b", "decimal": "1.5"}  # fmt: skip
    for data in (high, low):
        things.append_events([thing("a", data)])
        build(dsn, spark, model)
    connection: psycopg.Connection = things.connection
    for name in low:
        extremes = () if name == "boolean" else ("min", "max")
        for kind in (*extremes, "first", "last"):
            wanted = low if kind in {"min", "last"} else high
            found = connection.execute(f"select {kind}_{name} = %s from read_models.kinds".encode(), (wanted[name],))
            assert found.fetchall() == [(True,)], (kind, name)
