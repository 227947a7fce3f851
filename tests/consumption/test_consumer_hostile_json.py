"""Whatever JSON Postgres holds: a drain takes it as the column says, or fails that stream alone."""

import json
from typing import TYPE_CHECKING, cast

import pytest

from millrace import Event, State, count, fold, last, max_, min_, read_model, recompute, set_union, stream_id
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declaration import ReadModel
from tests.support.building.drains import drain, thing, things
from tests.support.building.poison import locks
from tests.support.building.read_models import DECIDER
from tests.support.factories import rows
from tests.support.hostile_json import NUMBERS, UNREADABLE, WORDS, append_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["things"]

LONG = "k" * 64


@read_model(view="texts", deciders=[DECIDER], key=["thing_id"])
class Texts:
    """One row per thing: texts take every value."""

    thing_id = stream_id()
    events = count()
    value = last("data.v")
    long = last(f"data.{LONG}")
    deep = last("data.v.v.v")
    smallest = min_("data.v")
    largest = max_("data.v")
    all = set_union("data.v")


@read_model(view="times", deciders=[DECIDER], key=["thing_id"])
class Times:
    """One row per thing."""

    thing_id = stream_id()
    at = last("data.at", type="timestamp")
    amount = last("data.amount", type="decimal(18,2)")


@fold(view="kept", deciders=[DECIDER], key="thing_id", columns={"n": "int"})
def kept(state: State | None, event: Event) -> State | None:
    """One row per thing: the whole of its data."""
    return {"n": (state or {"n": 0})["n"] + 1, "data": event.data}


@recompute(view="lengths", deciders=[DECIDER], key=["thing_id"], columns={"length": "int"})
def lengths(events: "DataFrame") -> "DataFrame":
    """One row per thing: how long its data are."""
    from pyspark.sql import functions as f

    return events.groupBy("decider_id").agg(f.sum(f.length("data")).cast("int").alias("length"))


@recompute(view="moments", deciders=[DECIDER], key=["thing_id"], columns={"at": "timestamp"})
def moments(events: "DataFrame") -> "DataFrame":
    """One row per thing: a time that Spark has, and Postgres maybe not."""
    from pyspark.sql import functions as f

    micros = f.get_json_object("data", "$.micros").cast("bigint")
    return events.groupBy("decider_id").agg(f.max(f.timestamp_micros(micros)).alias("at"))


def store(things: EventStore, documents: list[str]) -> None:
    """Append each document to a stream of its own, with an innocent stream beside it."""
    things.append_events([thing(f"good-{n}", v="1", at="2024-01-01", amount=1) for n in range(len(documents))])
    for n, document in enumerate(documents):
        append_text(things, f"evil-{n}", document, event="made", decider=DECIDER)


def everything() -> list[str]:
    words = [json.dumps(word) for word in WORDS]
    values = [*words, *NUMBERS, "{}", "[]", "[null]", *UNREADABLE.values()]
    return [*values, *(f'{{"v": {value}, "{LONG}": {value}}}' for value in values)]


def test_columns_of_texts_and_a_recompute_take_every_json(things: EventStore, dsn: str, spark: "SparkSession") -> None:
    documents = everything()
    store(things, documents)
    report = drain(dsn, spark, cast("ReadModel", Texts))
    assert (report.failed, report.failed_streams) == ({}, 0)
    wanted = rows(
        things.connection,
        "select decider_id, data #>> '{v}', data #>> array[%s], data #>> '{v,v,v}' from event_store.events order by 1",
        LONG,
    )
    found = "select thing_id, value, long, deep from read_models.texts order by 1"
    assert rows(things.connection, found) == wanted
    report = drain(dsn, spark, lengths)
    assert (report.failed, report.failed_streams) == ({}, 0)
    wanted = rows(things.connection, "select decider_id, length(data::text) from event_store.events order by 1")
    assert rows(things.connection, "select thing_id, length from read_models.lengths order by 1") == wanted


def test_a_fold_fails_at_what_python_cannot_read_and_names_it(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    documents = [json.dumps(word) for word in WORDS] + list(UNREADABLE.values())[:2]
    store(things, documents)
    report = drain(dsn, spark, kept)
    assert (report.failed, report.failed_streams) == ({}, 2)
    evil = [f"evil-{n}" for n, text in enumerate(documents) if text in UNREADABLE.values()]
    assert [name for name, _ in locks(things)] == sorted(evil)
    errors = rows(things.connection, "select last_error from event_store.stream_locks")
    assert all("read model kept failed at thing 'evil-" in error for (error,) in errors)
    ((built,),) = rows(things.connection, "select count(*) from read_models.kept")
    assert built == 2 * len(documents) - 2


def test_events_as_large_as_the_store_takes_them_pass_a_fold_and_columns(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    largest = "x" * (2**20 - 20)
    things.append_events([thing(f"large-{n}", v=largest) for n in range(30)])
    for model in (cast("ReadModel", Texts), kept):
        report = drain(dsn, spark, model)
        assert (report.failed, report.failed_streams, report.events) == ({}, 0, 30)
    ((texts, states),) = rows(
        things.connection,
        "select (select min(length(value)) from read_models.texts), (select count(*) from read_models.kept)",
    )
    assert (texts, states) == (len(largest), 30)
    assert [len(event.data["v"]) for event in things.get_events("large-7", DECIDER)] == [len(largest)]


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("at", ["294276-12-31T23:59:59Z", "-infinity", "event_log: No space left on device"]),
        ("amount", ["1e5000", "1e-16000", "Infinity"]),
    ],
)
def test_a_value_that_its_column_does_not_hold_fails_its_stream_alone(
    things: EventStore, dsn: str, spark: "SparkSession", member: str, values: list[str]
) -> None:
    store(things, [f'{{"{member}": "{value}"}}' for value in values])
    report = drain(dsn, spark, cast("ReadModel", Times))
    assert (report.failed, report.failed_streams) == ({}, len(values))
    assert [name for name, _ in locks(things)] == [f"evil-{n}" for n in range(len(values))]
    assert rows(things.connection, "select thing_id from read_models.times order by 1") == [
        (f"good-{n}",) for n in range(len(values))
    ]


@pytest.mark.parametrize("micros", [-(2**63) + 5, -(2**62)])
def test_a_time_that_postgres_does_not_hold_fails_its_stream_alone(
    things: EventStore, dsn: str, spark: "SparkSession", micros: int
) -> None:
    things.append_events([thing("good", micros=0), thing("evil", micros=micros), thing("other", micros=1)])
    report = drain(dsn, spark, moments)
    assert (report.failed, report.failed_streams) == ({}, 1)
    assert locks(things) == [("evil", 1)]
    assert rows(things.connection, "select thing_id from read_models.moments order by 1") == [("good",), ("other",)]
