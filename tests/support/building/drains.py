"""Helpers for tests of drains and rebuilds: events, a drain, a clean run to compare with, blocked sessions."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import psycopg
import pytest

from millrace.drain.report import DrainReport
from millrace.drain.view_drain import ViewDrain
from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from tests.support.building import read_models as models
from tests.support.building.oracle import expected_rows
from tests.support.building.read_models import DECIDER, EVENTS, random_events
from tests.support.factories import Connect, rows, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events, get_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# mypy takes a decorated class for a class
Everything = cast("ReadModel", models.Everything)
Counted = cast("ReadModel", models.Counted)
Crossing = cast("ReadModel", models.Crossing)
machines = cast("ReadModel", models.machines)


@pytest.fixture
def things(store: PlatformStore) -> PlatformStore:
    for event in EVENTS:
        store.register_decider_event(DECIDER, event, f"a thing was {event}")
    return store


@pytest.fixture
def observer(connect: Connect) -> psycopg.Connection:
    return connect()


def fill(store: PlatformStore, number: int, seed: int = 1) -> None:
    append_events(store, random_events(random.Random(seed), number))


def thing(decider_id: str, **data: object) -> BatchEvent:
    return BatchEvent(DECIDER, decider_id, "made", uuid4(), data, uuid4())


def all_events(store: PlatformStore) -> list[Event]:
    streams = store.connection.execute("select distinct decider, decider_id from event_store.events").fetchall()
    events = [event for decider, decider_id in streams for event in get_events(store, decider_id, decider)]
    return sorted(events, key=lambda event: event.offset)


def rows_of(connection: psycopg.Connection, model: ReadModel) -> list[tuple[Any, ...]]:
    keys = ", ".join(f'"{key}" collate "C"' for key in model.keys)
    return [
        tuple(row)
        for row in connection.execute(f"select * from read_models.{model.name} order by {keys}".encode()).fetchall()
    ]


def close(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Round means, which are quotients, to the digits that Postgres keeps of a large one."""
    with localcontext(prec=80):
        return sorted((tuple(round(v, 6) if isinstance(v, Decimal) else v for v in row) for row in rows), key=repr)


def no_spark() -> Any:  # noqa: ANN401 - it never returns
    """Stand for the function that returns Spark, where nothing must be built."""
    raise AssertionError("nothing is to be built")


def drain(dsn: str, spark: "SparkSession", model: ReadModel = Everything, owner: str = "next") -> DrainReport:
    with ViewDrain(dsn, model, lambda: spark, owner) as consumer:
        return consumer.drain(budget_s=patience(), idle_s=0)


def staged(consumer: ViewDrain) -> ViewDrain:
    """Make a consumer stage the rows of its first batch, however few."""
    consumer._rounds.collects = False
    return consumer


def assert_equals_a_clean_run(store: PlatformStore, *models: ReadModel) -> None:
    """Assert that read models, or `Everything`, have all events, and the same rows as a loop in Python."""
    events = all_events(store)
    for model in models or [Everything]:
        found = store.connection.execute(f"select * from read_models.{model.name}".encode()).fetchall()
        built, wanted = close(found), close(expected_rows(model, events))
        assert built == wanted, (model, [pair for pair in zip(built, wanted, strict=False) if pair[0] != pair[1]][:3])
        assert sum(lag.lag for lag in store.view_lag(model.view)) == 0, model.name


def later(dsn: str) -> str:
    """Return the connection string of the same database some days later: every lease of today has expired."""
    return f"{dsn}&options=-c%20event_store.clock%3D2099-01-01"


def all_blocked(observer: psycopg.Connection, statement: str) -> list[int]:
    found = rows(
        observer,
        "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and query ilike %s",
        f"%{statement}%",
    )
    return [pid for (pid,) in found]


def wait_blocked_in(observer: psycopg.Connection, statement: str) -> int:
    wait_until(lambda: all_blocked(observer, statement), f"a session waits for a lock: {statement}")
    return all_blocked(observer, statement)[0]


@contextmanager
def held(connection: psycopg.Connection, statement: str) -> Iterator[None]:
    with connection.transaction():
        connection.execute(statement.encode())
        yield


def busiest(store: PlatformStore) -> int:
    return int(
        value(store.connection, "select partition from event_store.event_log group by 1 order by count(*) desc limit 1")
    )
