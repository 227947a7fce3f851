"""One log of good, odd and hostile values, and the models built from it once, by each door.

A door is a way to build rows: shared rounds, a view's own drain, a rebuild from the log, and one from the archive. A
drain takes a second, so tests of values read these rows and build nothing themselves.
"""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg

from millrace import avg, count, first, last, max_, min_, read_model, stream_id, sum_
from millrace.archive.writer import archive_partition
from millrace.drain.loop import Drain
from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from tests.support.building import read_models as models
from tests.support.building.drains import drain
from tests.support.building.event_log_reads import append_json
from tests.support.building.random_models import OTHER, of_lines, random_documents, random_model, state
from tests.support.building.read_models import DECIDER, EVENTS, random_events
from tests.support.building.shared_drains import TOGETHER, why_away
from tests.support.factories import ARABIC
from tests.support.patience import patience
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MONEY = "decimal(18,2)"
TINY = "decimal(28,26)"
# a field of data, and its type
TYPES = {
    **{name: name for name in ("int", "bigint", "double", "boolean", "date", "timestamp", "string")},
    "money": MONEY,
    "tiny": TINY,
}
# distinct keys of data, and a key longer than Postgres' limit for a name
ODD_KEYS = ["id", "ID", "a`b", 'q"q', "it's", "back\\slash", "ключ", "with space"]
LONG_KEY = "a name that nobody would call short, and that goes on and on " * 2
ODD, REFUSED_BY = "odd value", "refused value"
Values = read_model(view="values_of_types", deciders=[ODD], key=["value_id"])(
    type(
        "ValuesOfTypes",
        (),
        {"__doc__": "One row per value: every kind of column, over every type.", "value_id": stream_id()}
        | {
            f"{kind.__name__.rstrip('_')}_{name}": kind(f"data.{name}", type=type_)
            for name, type_ in TYPES.items()
            for kind in (first, last, min_, max_)
            if name != "boolean" or kind in (first, last)
        }
        | {f"sum_{name}": sum_(f"data.{name}", type=TYPES[name]) for name in ("bigint", "money", "tiny")}
        | {"mean_money": avg("data.money", type=MONEY)}
        | {f"odd_key_{n}": last(f"data.{key}") for n, key in enumerate(ODD_KEYS)}
        | {"long_key": last(f"data.{LONG_KEY}.{LONG_KEY}")}
        | {
            "made": sum_("data.n", events=["made"]),
            "used": sum_("data.n", type=MONEY, events=["used"]),
            "texts": count("data.n"),
        },
    )
)
Refusing = read_model(view="refusing", deciders=[REFUSED_BY], key=["value_id"])(
    type(
        "Refusing",
        (),
        {"__doc__": "One row per value: the last of each type.", "value_id": stream_id()}
        | {f"last_{name}": last(f"data.{name}", type=type_) for name, type_ in TYPES.items()},
    )
)
# A field, its value in JSON, and the text of the value that Postgres must hold: the JSON's value, digit by digit.
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
    ("money", '"125e-1"', "12.50"),
    ("money", "9999999999999999.99", "9999999999999999.99"),
    ("tiny", "0.00000000000000000000000001", "0.00000000000000000000000001"),
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
    ("timestamp", '"2024-02-29 9:30Z"', "2024-02-29 09:30:00+00"),
    ("string", "12.340", "12.340"),
    ("string", '{"b": [1, null], "a": "\\u00e9"}', '{"a": "é", "b": [1, null]}'),
    ("string", '""', ""),
    ("string", "[" * 190 + "]" * 190, "[" * 190 + "]" * 190),
]
# a field, and a JSON value that its type refuses
REFUSED: list[tuple[str, str]] = [
    *(("int", value) for value in ("2147483648", "5.5", "5.0", '"five"', '""', "true")),
    *(("bigint", value) for value in ("9223372036854775808", "1e400", "[1]")),
    *(("money", value) for value in ("12.345", "0.001", '"1e-3"', "1e400", "10000000000000000", '"NaN"', '"12,50"')),
    *(("money", value) for value in ("true", '{"amount": 1}')),
    *(("tiny", value) for value in ("0.000000000000000000000000001", "100")),
    *(("double", value) for value in ("1e400", '"NaN"', '"Infinity"', '"1d"', "true")),
    *(("boolean", value) for value in ('"maybe"', "2")),
    *(("date", value) for value in ('"2024-02-30"', '"2024"', '"2024-02-29T10:00:00"', "20240229")),
    *(("timestamp", value) for value in ('"10:30"', '"T10:30:00"', '"now"', '"2024"', "1709200000")),
    *(("timestamp", value) for value in ('"17/06/09"', '"2024-02-29 10:00 BST"', '"0001-01-01T00:00:00+01:00"')),
    ("money", f'"1{".234".translate(ARABIC)}"'),
]
HIGH = {"int": 2, "bigint": 2, "money": "1.5", "tiny": "0.2", "double": 1.5, "boolean": True, "string": "b"}
HIGH |= {"date": "2024-01-02", "timestamp": "2024-01-02"}
LOW = {"int": 1, "bigint": 1, "money": "0.5", "tiny": "0.1", "double": 0.5, "boolean": False, "string": "a"}
LOW |= {"date": "2024-01-01", "timestamp": "2024-01-01"}
EXACT = ["0.10000000000000000000000001", "0.20000000000000000000000002"]


@dataclass(frozen=True)
class Rows:
    """The rows of a model built by a door: the public rows, unordered, and the stored ones as texts."""

    public: list[tuple[Any, ...]]
    stored: list[tuple[str]]


# random models; the last one counts the lines of events
SOME = ("model_0", "model_1", "model_2")
# the models that each door builds: a round takes a tenth of a drain's time
DOORS = {
    "rounds": ("everything", "crossing", "going", "going_across", "machines", "values_of_types", *SOME),
    "drain": ("everything", "crossing", "going_across", "machines", "uses", "values_of_types", *SOME[::2]),
    "rebuild": ("everything", "machines", "model_1"),
    "archive": ("machines", "uses", *SOME[::2]),
}
# drained in two parts: the second merges into the rows of the first
IN_PARTS = ("everything", "going_across", "machines", "values_of_types", "model_2")


@dataclass(frozen=True)
class Catalogue:
    """A log, and the rows built from it, by door and by name of the model."""

    store: PlatformStore
    rows: dict[str, dict[str, Rows]]


def build_catalogue(dsn: str, spark: "SparkSession", folder: Path, seed: int = 0) -> Catalogue:
    """Append to an empty store in parts, build each part by rounds and by drains, and then rebuild everything."""
    dice = random.Random(seed)
    store = PlatformStore(psycopg.connect(dsn, autocommit=True))
    for decider in (DECIDER, OTHER, ODD, REFUSED_BY):
        for event in EVENTS:
            store.register_decider_event(decider, event, f"it was {event}")
    some = [random_model(dice, number, [(OTHER,), (DECIDER, OTHER)]) for number in range(3)]
    some[2] = of_lines(some[2])
    every = [*TOGETHER, Values, cast("ReadModel", models.uses), *some]
    # copies of the models that share rounds
    alone = {model.name: replace(model, name=f"{model.name}_alone", view=f"{model.view}_alone") for model in every}
    rows: dict[str, dict[str, Rows]] = {door: {} for door in DOORS}

    def keep(door: str, name: str, model: ReadModel) -> None:
        public = store.connection.execute(f"select * from read_models.{model.name}".encode()).fetchall()
        rows[door][name] = Rows(public, state(store.connection, model))

    with Drain(dsn, every, lambda: spark, "rounds") as shared:
        for part, number in enumerate((1, dice.randint(41, 60), dice.randint(1, 60))):
            append_events(store, random_events(dice, number))
            append_events(store, random_documents(dice, 2 * number, [OTHER]))
            append_json(store, ODD, odd_values(part))
            shared.run(budget_s=patience(), idle_s=0)
            for name in DOORS["drain"]:
                if part == 2 or (part == 1 and name in IN_PARTS):
                    drain(dsn, spark, alone[name], "alone")
        assert set(why_away(shared).values()) == {None}
    for model in every:
        if model.name in DOORS["rounds"]:
            keep("rounds", model.name, model)
        if model.name in DOORS["drain"]:
            keep("drain", model.name, alone[model.name])
    append_json(store, REFUSED_BY, refused_values())
    drain(dsn, spark, Refusing, "alone")
    for partition in range(16):
        archive_partition(dsn, folder, partition, max_events=7, min_events=1, tail=True)
    for door, root in (("rebuild", None), ("archive", folder)):
        for name in DOORS[door]:
            # rows that are not rebuilt stay missing
            with ViewDrain(dsn, alone[name], lambda: spark, "rebuilder", archive=root) as consumer:
                empty(store, consumer.model)
                consumer.rebuild(*range(16))
            keep(door, name, alone[name])
    return Catalogue(store, rows)


def empty(store: PlatformStore, model: ReadModel) -> None:
    for table in (model.state_table, *([model.parts_table] if model.crosses_streams else [])):
        store.connection.execute(f"delete from read_models.{table}".encode())


def odd_values(part: int) -> list[tuple[str, str, str]]:
    if part == 0:
        return [(f"taken-{n:03}", "made", f'{{"{name}": {value}}}') for n, (name, value, _) in enumerate(TAKEN)]
    if part == 1:
        return [
            ("extremes", "made", json.dumps(HIGH)),
            ("keys", "made", json.dumps({key: f"value of {key}" for key in ODD_KEYS})),
            ("keys", "used", json.dumps({LONG_KEY: {LONG_KEY: "found"}})),
            ("events", "made", '{"n": 1}'),
            ("events", "used", '{"n": 2.5}'),
            *(("sums", "made", f'{{"tiny": {each}, "money": "0.10", "bigint": {2**53 + 1}}}') for each in EXACT),
        ]
    return [
        ("extremes", "made", json.dumps(LOW)),
        ("events", "broken", '{"n": "broken"}'),
        ("events", "made", '{"n": null}'),
    ]


def refused_values() -> list[tuple[str, str, str]]:
    """Return each refused value in its own stream, behind and beside good ones."""
    streams = [(f"refused-{n:03}", f'{{"{name}": {value}}}') for n, (name, value) in enumerate(REFUSED)]
    return [
        *((stream, "made", '{"string": "good"}') for stream, _ in streams),
        *((f"good-{n}", "made", '{"string": "good"}') for n in range(5)),
        *((stream, "used", data) for stream, data in streams),
        *((stream, "made", '{"string": "late"}') for stream, _ in streams),
    ]
