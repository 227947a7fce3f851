"""Shared drains in tests: models, a run of one, and what a drain of each view's own would have built.

Belongs here: what several tests of rounds share. Not here: what a test asserts by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import psycopg

from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declaration import ReadModel
from tests.support.building import read_models as models
from tests.support.building.drains import Crossing, Everything, drain, machines
from tests.support.factories import value
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = [Everything, Crossing, machines]
NAMES = ("Everything", "Crossing", "Going", "GoingAcross", "machines")
TOGETHER = [cast("ReadModel", getattr(models, name)) for name in NAMES]
# what `why_away` says where all take part
ALL_WELL: dict[str, str | None] = {model.view: None for model in FEW}


def share(
    dsn: str, spark: "SparkSession", declared: Sequence[ReadModel] = TOGETHER, owner: str = "rounds"
) -> dict[str, str | None]:
    """Drain views together until nothing is left; return by view why it left."""
    with SharedDrain(dsn, declared, lambda: spark, owner) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        return why_away(shared)


def why_away(shared: SharedDrain) -> dict[str, str | None]:
    return {member.declared.view: member.away for member in shared.members}


def consumers(store: EventStore, view: str) -> int:
    """Return how many live consumers are attached to a view."""
    return next(poll.consumers for poll in store.poll_views([view]))


def positions(connection: psycopg.Connection, view: str) -> int:
    """Return how many positions a view has passed, in all log partitions."""
    found = value(connection, "select coalesce(sum(position), 0) from event_store.checkpoints where view = %s", view)
    return int(found)


def state(connection: psycopg.Connection, model: ReadModel) -> list[tuple[str]]:
    """Return the stored rows as texts."""
    return connection.execute(f"select s::text from read_models.{model.state_table} s order by 1".encode()).fetchall()


def assert_as_alone(
    store: EventStore, dsn: str, spark: "SparkSession", declared: Sequence[ReadModel] = TOGETHER
) -> None:
    """Assert that each model is up to date and has the state that a drain of its own makes of all events."""
    for model in declared:
        alone = replace(model, name=f"{model.name}_alone", view=f"{model.view}_alone")
        drain(dsn, spark, alone, "alone")
        assert state(store.connection, model) == state(store.connection, alone), model
        assert sum(lag.lag for lag in store.view_lag(model.view)) == 0
