"""The users' tools for testing read models: a failure names the differences, and a store ends with its test.

Not here: the example runs by itself (`processes/test_example_of_testing.py`).
"""

import gc
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count as count_from
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from millrace import (
    Decider,
    Delivery,
    Emit,
    count,
    fold,
    last,
    on,
    read_model,
    rollup,
    row,
    stream_id,
    subscription,
    sum_,
)
from millrace.personal import Forgotten, Plain
from millrace.rows import FoldEvent, State
from millrace.spark import java
from millrace.spark.java import JavaNotFound
from millrace.testing import StreamsFailed, event, given
from tests.support.customers import ANNA, SECRET, CustomerMoved
from tests.support.factories import value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@read_model(view="orders", deciders=["order"], key=["order_id"])
class Orders:
    """One row per order."""

    order_id = stream_id()
    status = last("event")
    lines = count(events=["line_added"])
    total = sum_("data.amount", type="decimal(18,2)")


@fold(view="carts", deciders=["cart"], key="cart_id", columns={"items": "int"})
def carts(state: State | None, happened: FoldEvent) -> State | None:
    """One row per cart."""
    if happened.data["items"] < 0:
        raise ValueError("fewer than none")
    return {"items": (state or {"items": 0})["items"] + happened.data["items"]}


PLACED = event("order", "o-1", "placed")
LINE = event("order", "o-1", "line_added", product="whisk", amount=9.95)


def test_later_events_are_added_and_differences_named(dsn: str, spark: "SparkSession") -> None:
    built = given(PLACED, LINE, dsn=dsn, spark=spark).when(Orders)
    assert built.rows == [{"order_id": "o-1", "status": "line_added", "lines": 1, "total": Decimal("9.95")}]
    for wrong in ([{"lines": 2}], [{"lines": 1}, {"lines": 1}], []):
        with pytest.raises(AssertionError, match="The rows of read model orders are others"):
            built.then(wrong)
    with pytest.raises(AssertionError) as failed:
        built.then([{"order_id": "o-2", "lines": 1}])
    assert str(failed.value).splitlines()[1:] == [
        "  missing:      {'order_id': 'o-2', 'lines': 1}",
        "  not expected: {'order_id': 'o-1', 'lines': 1}",
    ]
    with pytest.raises(ValueError, match="has no column 'line'; it has order_id, status, lines, total"):
        built.then([{"line": 1}])
    with pytest.raises(ValueError, match="the same columns"):
        built.then([{"lines": 1}, {"status": "placed"}])

    more = event("order", "o-1", "line_added", product="kettle", amount=1)
    later = built.given(more, event("order", "a-2", "placed")).when(Orders, batch_events=1)
    assert [row["order_id"] for row in later.rows] == ["a-2", "o-1"]
    # rows in any order, some columns, a decimal as written
    later.then([{"lines": 2, "total": 10.95}, {"lines": 0, "total": 0}])
    later.rebuilt().then([{"order_id": "o-1", "total": Decimal("10.95")}, {"order_id": "a-2", "total": 0}])


@rollup(of=Orders, key=["status"])
class OrdersByStatus:
    """One row per status."""

    status = row("status")
    orders = count()
    total = sum_("total", type="decimal(18,2)")


def test_a_rollup_is_built_with_its_read_model(dsn: str, spark: "SparkSession") -> None:
    other = event("order", "o-2", "placed")
    built = given(PLACED, LINE, other, dsn=dsn, spark=spark).when(OrdersByStatus)
    built.then([{"status": "line_added", "orders": 1, "total": 9.95}, {"status": "placed", "orders": 1, "total": 0}])
    later = built.given(event("order", "o-2", "line_added", amount=1)).when(OrdersByStatus, batch_events=1)
    assert later.rows == [{"status": "line_added", "orders": 2, "total": Decimal("10.95")}]


def test_a_stream_that_cannot_be_built_is_named_with_the_reason(dsn: str, spark: "SparkSession") -> None:
    good, bad = event("cart", "c-1", "filled", items=2), event("cart", "c-2", "filled", items=-1)
    carted = given(good, bad, dsn=dsn, spark=spark)
    with pytest.raises(StreamsFailed, match=r"cart 'c-2', offset \d+: .*ValueError: fewer than none"):
        carted.when(carts)
    # the other streams are built, as in a drain
    given(dsn=dsn, spark=spark).when(carts).then([{"cart_id": "c-1", "items": 2}])


_CALLS = count_from(1)


@fold(view="called", deciders=["cart"], key="cart_id", columns={"calls": "bigint"})
def called(_state: State | None, _happened: FoldEvent) -> State | None:
    """One row per cart: how often this process called the function."""
    return {"calls": next(_CALLS)}


def test_rows_that_differ_by_batch_are_named(dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.testing.random.randint", lambda least, _: least)
    carted = given(*(event("cart", "c-1", "filled") for _ in range(6)), dsn=dsn, spark=spark)
    with pytest.raises(AssertionError, match="depend on how its events are split into batches") as failed:
        carted.when(called)
    assert "in batches of 2 events: [{'cart_id': 'c-1', 'calls': " in str(failed.value)
    # a batch of a stated size is built once
    given(event("cart", "c-1", "filled"), dsn=dsn, spark=spark).when(called, batch_events=2)


def test_what_is_no_read_model_is_refused(dsn: str) -> None:
    with pytest.raises(TypeError, match="is no read model"):
        given(dsn=dsn).when(Path)


def test_without_a_java_it_says_what_to_do(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    monkeypatch.setenv("PATH", "")
    for name in ("JAVA_HOME", "SPARK_REMOTE", "SPARK_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JavaNotFound, match="Install Java 17 or 21"):
        given(PLACED, dsn=dsn).when(Orders)


def test_a_store_of_the_tests_own_is_empty_and_goes_with_the_test() -> None:
    before = datetime.now(UTC)
    stores = [given(PLACED), given()]
    assert len({store.dsn for store in stores}) == 2
    for store, events in zip(stores, (1, 0), strict=True):
        with psycopg.connect(store.dsn) as connection:
            assert value(connection, "select count(*) from event_store.events where created_at >= %s", before) == events
    dsn = stores[0].dsn
    del stores, store
    gc.collect()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_personal_values_are_given_and_decided_on_as_in_production() -> None:
    moved = on("customer", "c-7", CustomerMoved(customer_id="anna", email=SECRET))
    forgotten = Forgotten({"$sealed": f"1.{'A' * 22}.0.0"})
    gone = event("customer", "c-7", "customer_moved", customer_id="anna", email=forgotten)
    seen = list[object]()
    given(moved, gone).when(subscription(view="v")(lambda happened: seen.append(happened.data["email"])))
    assert seen == [SECRET, forgotten]
    assert isinstance(seen[1], Forgotten)

    def decide(command: str, state: list[object]) -> list[Emit]:
        return [Emit("customer_moved", {"customer_id": "anna", "email": Plain(ANNA, f"{command} {state[-1]}")})]

    decider = Decider(
        name="customer",
        initial=list[object](),
        decide=decide,
        evolve=lambda state, happened: [*state, happened.data["email"]],
    )
    expected = Emit("customer_moved", {"customer_id": "anna", "email": f"not {SECRET}"})
    assert given(moved).when(decider, "c-7", "not").then(expected).state[0] != SECRET

    def fail(_: Delivery) -> None:
        raise ValueError("no value was opened for it")

    with pytest.raises(StreamsFailed) as failed:
        given(PLACED).when(subscription(view="other")(fail))
    assert "no value was opened for it" in (failed.value.detail or "")
