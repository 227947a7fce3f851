"""Functions of whole streams: what a declaration refuses, what a wrong result says, which rows are replaced."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace import recompute
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.limits import Limits
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declaration import InvalidReadModel, ReadModel
from millrace.resources.read_models.plans import FunctionFailed
from millrace.resources.read_models.recompute import Recompute
from tests.support.building.drains import busiest, thing, things
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = ["things"]


def build(dsn: str, spark: "SparkSession", model: ReadModel) -> None:
    with Consumer.open(dsn, model, lambda: spark, "test") as consumer:
        consumer.drain(budget_s=60, idle_s=0)


def last_texts(events: "DataFrame") -> "DataFrame":
    """One row per thing and number that is not taken back."""
    from pyspark.sql import functions as f

    number = f.get_json_object("data", "$.number").cast("int").alias("number")
    text = f.max_by(f.get_json_object("data", "$.text"), "offset").alias("text")
    return events.groupBy("decider_id", number).agg(text).where("text <> 'gone' or text is null")


def undocumented(events: "DataFrame") -> "DataFrame":
    return events


def declare(function: Callable[["DataFrame"], "DataFrame"] = last_texts, **options: Any) -> Recompute:  # noqa: ANN401 - also what is refused
    columns = {"number": "int", "text": "string"}
    return recompute(
        **{"view": "texts", "deciders": [DECIDER], "key": ["thing_id", "number"], "columns": columns} | options
    )(function)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"key": "thing_id"},
            "read model last_texts: 'key' is no list: begin with what the stream's decider_id is called",
        ),
        ({"key": []}, "'key' is no list"),
        ({"key": ["thing_id", "line"]}, "'line' is named in key= but not in columns="),
        ({"key": ["number"]}, "'number' is a column and in the key: rename one"),
        ({"columns": {}}, "'columns' is empty: name at least one public column and its type"),
        ({"columns": {"number": "float"}}, "'number' has type 'float'; allowed: bigint"),
        ({"columns": {"number": "int", "batch": "int"}}, "'batch' is taken"),
        ({"deciders": []}, "'deciders' is an empty list"),
        ({"function": undocumented}, "'undocumented' has no docstring"),
    ],
)
def test_a_function_that_cannot_work_is_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidReadModel) as refused:
        declare(**options)
    assert sentence in str(refused.value)


def test_the_public_columns_are_the_stream_and_those_declared() -> None:
    assert declare().public_columns() == {"thing_id": "text", "number": "int", "text": "text"}
    assert list(declare(deciders=None).public_columns()) == ["decider", "thing_id", "number", "text"]


def test_rows_that_the_function_returns_no_more_are_gone_and_other_streams_are_not_touched(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    model, public = declare(), "select * from read_models.last_texts order by thing_id, number"
    a, b = ids_of_one_partition(things.connection, 2, partition=7)
    things.append_events([thing(a, number=1, text="x"), thing(a, number=2, text=None), thing(b, number=1, text="ä")])
    build(dsn, spark, model)
    assert rows(things.connection, public) == sorted([(a, 1, "x"), (a, 2, None), (b, 1, "ä")])
    (untouched,) = rows(things.connection, "select xmin from read_models.last_texts_state where thing_id = %s", b)
    things.append_events([thing(a, number=1, text="gone")])
    build(dsn, spark, model)
    assert rows(things.connection, public) == sorted([(a, 2, None), (b, 1, "ä")])
    assert rows(things.connection, "select xmin from read_models.last_texts_state where thing_id = %s", b) == [
        untouched
    ]
    with Consumer.open(dsn, model, lambda: spark, "rebuilder") as consumer:
        assert consumer.rebuild(busiest(things)).rows == 2
    assert rows(things.connection, public) == sorted([(a, 2, None), (b, 1, "ä")])


def test_streams_of_several_deciders_that_share_an_id_are_told_apart(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    def kinds(events: "DataFrame") -> "DataFrame":
        """One row per stream: how many events it has."""
        return events.groupBy("decider", "decider_id").count().withColumnRenamed("count", "events")

    model = declare(kinds, deciders=None, key=["id"], columns={"events": "bigint"})
    things.register_decider_event("other", "made", "another thing was made")
    other = thing("a")
    other = type(other)(
        "other", *(getattr(other, n) for n in ("decider_id", "event", "event_id", "data", "command_id"))
    )
    things.append_events([thing("a"), thing("a"), other])
    build(dsn, spark, model)
    things.append_events([thing("a")])
    build(dsn, spark, model)
    assert rows(things.connection, "select * from read_models.kinds order by 1") == [
        ("other", "a", 1),
        (DECIDER, "a", 3),
    ]


def test_two_rows_of_one_key_or_a_stream_that_nobody_has_fail_the_stream_and_say_so(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    def twice(events: "DataFrame") -> "DataFrame":
        """One row per event, although the key says per thing."""
        return events.select("decider_id", "event")

    def made_up(events: "DataFrame") -> "DataFrame":
        """One row per thing, of which one is invented."""
        from pyspark.sql import functions as f

        return events.select(f.lit("nobody").alias("decider_id"), "event").limit(1)

    things.append_events([thing("a"), thing("a"), thing("b")])
    errors = []
    for function in (twice, made_up):
        model = declare(function, view=function.__name__, key=["thing_id"], columns={"event": "string"})
        build(dsn, spark, model)
        errors += rows(
            things.connection, "select last_error from event_store.stream_locks where view = %s limit 1", model.view
        )
    assert "its function returned stream 'a', which has two rows of one key" in errors[0][0]
    assert "its function returned stream 'nobody', which it was given no event of" in errors[1][0]
    # what came before the event that made it two is there
    assert rows(things.connection, "select * from read_models.twice order by 1") == [("a", "made"), ("b", "made")]


def missing(events: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return events.select("decider_id", "event")


def other_type(events: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return events.selectExpr("decider_id", "'1' number", "event text")


def no_frame(_: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return cast("DataFrame", None)


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        (missing, "number is missing, text is missing"),
        (other_type, "number is string"),
        (no_frame, "AttributeError: 'NoneType' object has no attribute 'schema'"),
    ],
)
def test_a_function_that_fails_or_returns_other_columns_ends_the_drain_and_nothing_moves(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    function: Callable[["DataFrame"], "DataFrame"],
    detail: str,
) -> None:
    things.append_events([thing("a")])
    with pytest.raises(FunctionFailed) as failed:
        build(dsn, spark, declare(function, view="wrong"))
    assert detail in (failed.value.detail or "")
    assert failed.value.message.startswith(f"Read model {function.__name__}: its function")
    assert sum(lag.behind for lag in things.view_lag("wrong")) == 1


def endless(_: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    while True:
        # what it catches by itself ends nothing
        with suppress(Exception):
            time.sleep(3600)


def test_a_function_that_does_not_return_a_plan_is_ended_and_named_and_its_leases_are_free(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "plan_s", 0.2)
    things.append_events([thing("a")])
    with pytest.raises(FunctionFailed, match="Read model endless: its function failed") as failed:
        build(dsn, spark, declare(endless, view="wrong"))
    assert failed.value.detail == "TimeoutError: the function had not returned after 0.2 s"
    assert things.lease_owners("wrong") == []
    assert sum(lag.behind for lag in things.view_lag("wrong")) == 1
