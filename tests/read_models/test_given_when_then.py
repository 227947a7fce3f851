"""Given events, when built in any way, then these rows."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from millrace import testing
from millrace.assets.declarations import declared
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore, RecordedEvent
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import reset_model
from tests.long import seeds
from tests.support.building.drains import all_events, close
from tests.support.building.read_models import (
    Crossing,
    Everything,
    Going,
    GoingAcross,
    expected_crossing,
    expected_everything,
    expected_going,
    expected_going_across,
    expected_machines,
    expected_uses,
    machines,
    random_events,
    uses,
)
from tests.support.factories import Connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = declared("millrace.examples.shop").models
ORDERS = SHOP["orders"]
Expected = Callable[[list[RecordedEvent]], list[tuple[Any, ...]]]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Everything, expected_everything),
        (Crossing, expected_crossing),
        (Going, expected_going),
        (GoingAcross, expected_going_across),
        (machines, expected_machines),
        (uses, expected_uses),
    ],
)
def test_increments_over_any_split_of_the_log_equal_a_rebuild_and_an_independent_computation(
    store: EventStore, dsn: str, spark: "SparkSession", model: ReadModel, expected: Expected, seed: int
) -> None:
    log = testing.given(dsn=dsn, spark=spark)
    dice = random.Random(seed)
    # one event, more than one batch, and others
    for part in (1, dice.randint(41, 60), *(dice.randint(1, 60) for _ in range(dice.randint(1, 2)))):
        built = log.given(*random_events(dice, part)).when(model, batch_events=40)
    rows = tuples(built)
    assert close(rows) == close(expected(all_events(store)))
    built.rebuilt(*dice.sample(range(16), 6))
    assert sorted(tuples(built), key=repr) == sorted(rows, key=repr)
    before = sorted(tuples(log.when(model)), key=repr)
    reset_model(store.connection, model)
    assert sorted(tuples(log.when(model)), key=repr) == before


def tuples(built: testing.Built) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in built.rows]


def test_a_model_without_events_has_no_rows_and_its_public_columns_are_those_declared(
    dsn: str, spark: "SparkSession", connect: Connect
) -> None:
    with Consumer.open(dsn, ORDERS, lambda: spark, "test") as consumer:
        assert consumer.drain(budget_s=10, idle_s=0).events == 0
    columns = connect().execute("select * from read_models.orders").description or []
    assert [column.name for column in columns] == list(ORDERS.public_columns())


def test_every_declared_read_model_gets_its_tables(dsn: str, spark: "SparkSession", connect: Connect) -> None:
    for model in SHOP.values():
        with Consumer.open(dsn, model, lambda: spark, "test"):
            pass
        assert connect().execute(f"select count(*) from read_models.{model.name}".encode()).fetchone() == (0,)
