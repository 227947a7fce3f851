"""Functions of whole streams: refused declarations, messages for wrong results, replaced rows."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, LiteralString, cast

import pytest

from millrace.drain.limits import Limits
from millrace.errors import InvalidReadModel
from millrace.read_models import recompute
from millrace.read_models.built.plans import FunctionFailed
from millrace.read_models.declared.recompute import Recompute
from tests.support.building.drains import thing
from tests.support.building.lab import Lab
from tests.support.building.read_models import DECIDER
from tests.support.factories import ids_of_one_partition
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def last_texts(events: "DataFrame") -> "DataFrame":
    """One row per stream and number that is not taken back."""
    from pyspark.sql import functions as f

    number = f.get_json_object("data", "$.number").cast("int").alias("number")
    text = f.max_by(f.get_json_object("data", "$.text"), "offset").alias("text")
    return events.groupBy("decider", "decider_id", number).agg(text).where("text <> 'gone' or text is null")


def undocumented(events: "DataFrame") -> "DataFrame":
    return events


def declare(function: Callable[["DataFrame"], "DataFrame"] = last_texts, **options: Any) -> Recompute:  # noqa: ANN401 - also what is refused
    columns = {"number": "int", "text": "string"}
    given = {"view": "texts", "deciders": [DECIDER], "key": ["thing_id", "number"], "columns": columns}
    return recompute(**given | options)(function)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"key": "thing_id"}, "read model last_texts: 'key' is no list: begin with what the stream's decider_id is called"),
    ({"key": []}, "'key' is no list"), ({"key": ["thing_id", "line"]}, "'line' is named in key= but not in columns="),
    ({"key": ["number"]}, "'number' is a column and in the key: rename one"),
    ({"columns": {}}, "'columns' is empty: name at least one public column and its type"),
    ({"columns": {"number": "float"}}, "'number' has type 'float'; allowed: bigint"),
    ({"columns": {"number": "int", "batch": "int"}}, "'batch' is taken"),
    ({"deciders": []}, "'deciders' is an empty list"), ({"function": undocumented}, "'undocumented' has no docstring"),
]  # fmt: skip


def test_a_function_that_cannot_work_is_refused_in_a_sentence() -> None:
    for options, sentence in REFUSED:
        with pytest.raises(InvalidReadModel) as refused:
            declare(**options)
        assert sentence in str(refused.value)


def test_the_public_columns_are_the_stream_and_those_declared() -> None:
    assert declare().public_columns() == {"thing_id": "text", "number": "int", "text": "text"}
    assert list(declare(deciders=None).public_columns()) == ["decider", "thing_id", "number", "text"]


def test_rows_that_the_function_returns_no_more_are_gone_and_no_others(lab: Lab) -> None:
    model = declare(deciders=None, key=["id", "number"])
    public: LiteralString = "select * from read_models.last_texts order by decider, id, number"
    stored = "select xmin from read_models.last_texts_state where (decider, id) <> (%s, %s) order by decider, id"
    lab.register_decider_event("other", "made", "another thing was made")
    a, b = ids_of_one_partition(lab.connection, 2, partition=7)
    append_events(lab, [thing(a, number=1, text="x"), thing(a, number=2, text=None), thing(b, number=1, text="ä")])
    append_events(lab, [replace(thing(a, number=1, text="y"), decider="other")])
    lab.drain(model)
    others = sorted([("other", a, 1, "y"), (DECIDER, a, 2, None), (DECIDER, b, 1, "ä")])
    assert lab.rows(public) == sorted([*others, (DECIDER, a, 1, "x")])
    untouched = lab.rows(stored, DECIDER, a)
    assert len(untouched) == 2
    append_events(lab, [thing(a, number=1, text="gone")])
    lab.drain(model)
    assert lab.rows(public) == others
    assert lab.rows(stored, DECIDER, a) == untouched
    assert lab.rebuild(model, 7).rows_of == {7: 3}
    assert lab.rows(public) == others


def test_two_rows_of_one_key_or_an_unknown_stream_fail_their_stream(lab: Lab) -> None:
    def twice(events: "DataFrame") -> "DataFrame":
        """One row per event, although the key says per thing."""
        return events.select("decider_id", "event")

    def made_up(events: "DataFrame") -> "DataFrame":
        """One row per thing, of which one is invented."""
        from pyspark.sql import functions as f

        return events.select(f.lit("nobody").alias("decider_id"), "event").limit(1)

    append_events(lab, [thing("a"), thing("a")])
    for function, sentence in (
        (twice, "its function returned stream 'a', which has two rows of one key"),
        (made_up, "its function returned stream 'nobody', which it was given no event of"),
    ):
        model = declare(function, view=function.__name__, key=["thing_id"], columns={"event": "string"})
        lab.drain(model)
        query: LiteralString = "select last_error from event_store.stream_locks where view = %s"
        assert sentence in lab.value(query, model.view)
    # the row from before the second event is there
    assert lab.rows("select * from read_models.twice order by 1") == [("a", "made")]


def missing(events: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return events.select("decider_id", "event")


def other_type(events: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return events.selectExpr("decider_id", "'1' number", "event text")


def no_frame(_: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    return cast("DataFrame", None)


def test_a_function_that_fails_or_has_other_columns_ends_the_drain(lab: Lab) -> None:
    append_events(lab, [thing("a")])
    for function, detail in (
        (missing, "number is missing, text is missing"),
        (other_type, "number is string"),
        (no_frame, "AttributeError: 'NoneType' object has no attribute 'schema'"),
    ):
        with pytest.raises(FunctionFailed) as failed:
            lab.drain(declare(function, view=function.__name__))
        assert detail in (failed.value.detail or "")
        assert failed.value.message.startswith(f"Read model {function.__name__}: its function")
        assert sum(lag.behind for lag in lab.view_lag(function.__name__)) == 1


def endless(_: "DataFrame") -> "DataFrame":
    """One row per thing and number."""
    while True:
        # an exception that the function catches does not end it
        with suppress(Exception):
            time.sleep(3600)


def test_a_function_that_returns_no_plan_is_ended_and_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "plan_s", 0.2)
    append_events(lab, [thing("a")])
    with pytest.raises(FunctionFailed, match="Read model endless: its function failed") as failed:
        lab.drain(declare(endless, view="wrong"))
    assert failed.value.detail == "TimeoutError: the function had not returned after 0.2 s"
    assert lab.lease_owners("wrong") == []
    assert sum(lag.behind for lag in lab.view_lag("wrong")) == 1
