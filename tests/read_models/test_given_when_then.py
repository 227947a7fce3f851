"""Given events, when built in any way, then these rows."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.assets.declarations import declared
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore, RecordedEvent
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.versions import reset_model
from tests.support.factories import Connect
from tests.support.read_models import (
    DECIDER,
    EVENTS,
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = declared("millrace.examples.shop").models
ORDERS = SHOP["orders"]
Expected = Callable[[list[RecordedEvent]], list[tuple[Any, ...]]]


@pytest.fixture
def things(store: EventStore) -> EventStore:
    for event in EVENTS:
        store.register_decider_event(DECIDER, event, f"a thing was {event}")
    return store


def all_events(store: EventStore) -> list[RecordedEvent]:
    ids = store.connection.execute("select distinct decider_id from event_store.events").fetchall()
    events = [event for (decider_id,) in ids for event in store.get_events(decider_id, DECIDER)]
    return sorted(events, key=lambda event: event.offset)


def rows_of(connection: psycopg.Connection, model: ReadModel) -> list[tuple[Any, ...]]:
    keys = ", ".join(f'"{key}" collate "C"' for key in model.keys)
    return [
        tuple(row)
        for row in connection.execute(f"select * from read_models.{model.name} order by {keys}".encode()).fetchall()
    ]


def close(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Means are quotients: compare them to ten digits."""
    return sorted((tuple(round(v, 10) if type(v).__name__ == "Decimal" else v for v in row) for row in rows), key=repr)


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
    things: EventStore, dsn: str, spark: "SparkSession", model: ReadModel, expected: Expected
) -> None:
    connection = things.connection

    # each example runs Spark several times: shrinking would take an hour
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(seed=st.integers(0, 2**32), parts=st.lists(st.integers(1, 60), min_size=2, max_size=4))
    def holds(seed: int, parts: list[int]) -> None:
        dice = random.Random(seed)
        with Consumer.open(dsn, model, lambda: spark, "test") as consumer:
            for part in parts:
                things.append_events(random_events(dice, part))
                consumer.drain(budget_s=120, idle_s=0, batch_events=40)
            built = rows_of(connection, model)
            assert close(built) == close(expected(all_events(things)))
            for partition in range(16):
                if dice.random() < 0.3:
                    consumer.rebuild(partition)
            assert sorted(rows_of(connection, model), key=repr) == sorted(built, key=repr)

    holds()
    before = sorted(rows_of(connection, model), key=repr)
    reset_model(connection, model)
    with Consumer.open(dsn, model, lambda: spark, "test") as consumer:
        consumer.drain(budget_s=120, idle_s=0)
    assert sorted(rows_of(connection, model), key=repr) == before


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
