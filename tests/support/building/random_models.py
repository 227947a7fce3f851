"""Random read models of columns, and events with values of every type that their columns read exactly."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from millrace import all_, any_, avg, count, field, first, last, max_, min_, set_union, stream_id, sum_
from millrace.read_models.declared.columns import Column, KeyColumn, RankedColumn
from millrace.read_models.declared.declaration import ReadModel
from tests.support.building.read_models import DECIDER, EVENTS
from tests.support.sql_calls import BatchEvent

OTHER = "widget"
# a field of data: its type, and values that the type holds exactly
FIELDS: dict[str, tuple[str, list[object]]] = {
    "text": ("string", ["a", "B", "ä", "", "\U0001f600", "a'b\"c\\", "{1,2}", "null", "10", "9"]),
    "units": ("bigint", [0, -5, 2**40, -(2**62), 7]),
    "small": ("int", [0, 1, -(2**31), 2**31 - 1]),
    "worth": ("decimal(18,2)", [0, -12.34, 99999.99, 5]),
    "exactly": ("decimal(28,18)", ["0.000000000000000001", "1234567890.5"]),
    "ratio": ("double", [0.1, -1e300, 5, 1e-300]),
    "good": ("boolean", [True, False]),
    "day": ("date", ["2024-02-29", "0001-01-01", "9999-12-31"]),
    "moment": ("timestamp", ["2024-02-29T12:00:00.000001Z", "1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z"]),
    "nested": ("string", [{"cause": "rust"}, {"cause": None}, {"cause": ["x"]}]),
}
KEYS: dict[str, KeyColumn] = {
    "by_stream": stream_id(), "by_text": field("data.text"), "by_units": field("data.units", type="bigint"),
    "by_worth": field("data.worth", type="decimal(18,2)"), "by_good": field("data.good", type="boolean"),
    "by_day": field("data.day", type="date"), "by_moment": field("data.moment", type="timestamp"),
    "by_event": field("event"), "by_created": field("created_at"), "by_final": field("final"),
}  # fmt: skip
# some conditions of each kind, over columns of events and over their data
CONDITIONS: list[dict[str, object]] = [
    {"data.text": ["a", "9", ""]},
    {"data.units": {">": -5, "<": 2**40}},
    {"data.worth": {"!=": [5, -12.34]}, "data.good": True},
    {"data.moment": {">=": datetime(1970, 1, 1, tzinfo=UTC)}},
    {"data.ratio": None, "event": {"!=": "used"}},
    {"offset": {">": 10}},
]


def random_column(dice: random.Random) -> Column:
    only = dice.choice([None, None, [dice.choice(EVENTS)], ["made", "used"]])
    looks: dict[str, Any] = {"events": only, "where": dice.choice([None, None, *CONDITIONS])}
    name = dice.choice([*FIELDS])
    type_, source = FIELDS[name][0], f"data.{name}"
    rank, rank_type = dice.choice([(f"data.{ranking}", FIELDS[ranking][0]) for ranking in FIELDS if ranking != "good"])
    kinds = [
        lambda: count(**looks), lambda: count(source, **looks), lambda: first(source, type=type_, **looks),
        lambda: last(source, type=type_, **looks), lambda: last("event", **looks),
        lambda: first(source, type=type_, by=rank, by_type=rank_type, **looks),
        lambda: last(source, type=type_, by=rank, by_type=rank_type, **looks),
        lambda: last("event", by="created_at", **looks), lambda: max_("created_at", **looks),
        lambda: min_("offset", **looks), lambda: last("decider_id", **looks), lambda: any_("final", **looks),
        lambda: last("event_version", **looks),
    ]  # fmt: skip
    if type_ != "boolean":
        kinds += [lambda: min_(source, type=type_, **looks), lambda: max_(source, type=type_, **looks)]
    if type_ != "double":
        kinds += [lambda: set_union(source, type=type_, **looks)]
    if name in ("small", "worth", "exactly"):
        exact = "bigint" if type_ == "int" else type_
        kinds += [lambda: sum_(source, type=exact, **looks), lambda: avg(source, type=exact, **looks)]
    if type_ == "boolean":
        kinds += [lambda: any_(source, **looks), lambda: all_(source, **looks)]
    return dice.choice(kinds)()


def random_model(
    dice: random.Random, number: int, deciders: Sequence[tuple[str, ...] | None] = (None, (DECIDER,), (DECIDER, OTHER))
) -> ReadModel:
    """Return a model of random columns and keys over the events of one of these sets of deciders."""
    keys = dice.sample([*KEYS], dice.choice([1, 1, 2, 3]))
    name = f"model_{number}"
    return ReadModel(
        name=name, view=name, description="Some rows.", keys={key: KEYS[key] for key in keys},
        columns={f"c{n}": random_column(dice) for n in range(dice.randint(1, 9))}, deciders=dice.choice(deciders),
        events=dice.choice([None, None, ("made", "used")]), deletes=dice.choice([(), (), ("used",)]),
    )  # fmt: skip


def of_lines(model: ReadModel) -> ReadModel:
    """Return a model that reads each line of an event as the given model reads the data."""

    def of_line(source: str | None) -> str | None:
        return source and source.replace("data.", "item.")

    columns: dict[str, Column] = {}
    for name, column in model.columns.items():
        columns[name] = read = replace(column, source=of_line(column.source))
        if isinstance(read, RankedColumn):
            columns[name] = replace(read, by=replace(read.by, source=of_line(read.by.source)))
    keys = {name: replace(key, source=key.source.replace("data.", "item.")) for name, key in model.keys.items()}
    return replace(model, keys=keys, columns=columns, each="data.lines")


def random_documents(
    dice: random.Random, number: int, deciders: Sequence[str] = (DECIDER, DECIDER, OTHER)
) -> list[BatchEvent]:
    """Return events of these deciders with any of the fields, and maybe with lines that have any of them."""

    def fields() -> dict[str, object]:
        return {
            name: None if dice.random() < 0.1 else dice.choice(values)
            for name, (_, values) in FIELDS.items()
            if dice.random() < 0.8
        }

    return [
        BatchEvent(
            dice.choice(deciders),
            f"id-{dice.randrange(15)}",
            dice.choice(EVENTS),
            UUID(int=dice.getrandbits(128)),
            fields() | {"lines": dice.choice([[], None, *([fields() for _ in range(n)] for n in (1, 3, 5))])},
            UUID(int=dice.getrandbits(128)),
        )
        for _ in range(number)
    ]


def state(connection: psycopg.Connection, model: ReadModel) -> list[tuple[str]]:
    return connection.execute(f"select s::text from read_models.{model.state_table} s order by 1".encode()).fetchall()
