"""Shared drains in tests: models, and a run of one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import psycopg

from millrace.drain.loop import Drain
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from tests.support.building import read_models as models
from tests.support.building.drains import Crossing, Everything, machines
from tests.support.factories import value
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = [Everything, Crossing, machines]
NAMES = ("Everything", "Crossing", "Going", "GoingAcross", "machines")
TOGETHER = [cast("ReadModel", getattr(models, name)) for name in NAMES]
# the result of `why_away` if all views take part
ALL_WELL: dict[str, str | None] = {model.view: None for model in FEW}


def share(
    dsn: str, spark: "SparkSession", declared: Sequence[ReadModel] = TOGETHER, owner: str = "rounds"
) -> dict[str, str | None]:
    """Drain views together until nothing is left; return by view why it left (None: it stayed)."""
    with Drain(dsn, declared, lambda: spark, owner) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        return why_away(shared)


def locking_events(spark: "SparkSession", holder: psycopg.Connection) -> "Callable[[], SparkSession]":
    """Return a function that gives Spark, and locks the events the first time: between a round's claim and its read."""
    locked: list[int] = []

    def give() -> "SparkSession":
        # only once: another plan calls this again
        if not locked:
            locked.append(1)
            holder.execute("lock table event_store.events in access exclusive mode")
        return spark

    return give


def why_away(shared: Drain) -> dict[str, str | None]:
    return {member.declared.view: member.away for member in shared.members}


def consumers(store: PlatformStore, view: str) -> int:
    return next(poll.consumers for poll in store.poll_views([view]))


def positions(connection: psycopg.Connection, view: str) -> int:
    found = value(connection, "select coalesce(sum(position), 0) from event_store.checkpoints where view = %s", view)
    return int(found)
