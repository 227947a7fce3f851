"""An event store of things, with the Spark that builds its read models."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from millrace.drain.commit import Commit
from millrace.drain.loop import Drain
from millrace.drain.report import DrainReport
from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from tests.support.building import drains, poison, shared_drains
from tests.support.building.drains import Everything
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lab(PlatformStore):
    """A store, its connection string, and a session of Spark."""

    def __init__(self, connection: psycopg.Connection, dsn: str, spark: "SparkSession") -> None:
        super().__init__(connection)
        self.dsn = dsn
        self.spark = spark

    def session(self) -> "SparkSession":
        return self.spark

    def once(self, act: Callable[[], object]) -> "Callable[[], SparkSession]":
        """Return a function that gives Spark, and first calls `act` once: between a claim and its read."""
        acts = [act]

        def give() -> "SparkSession":
            while acts:
                acts.pop()()
            return self.spark

        return give

    def at(self, seconds: int) -> "Lab":
        """Return the same store, with its clock at `seconds` after a fixed beginning."""
        return Lab(self.connection, poison.at(self.dsn, seconds), self.spark)

    def later(self) -> "Lab":
        """Return the same store some days later: every lease of today has expired."""
        return Lab(self.connection, drains.later(self.dsn), self.spark)

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> psycopg.Cursor:
        return self.connection.execute(statement.encode(), arguments)

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self.execute(query, arguments).fetchall()

    def value(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - the query decides
        ((only,),) = self.rows(query, *arguments)
        return only

    def rows_of(self, model: ReadModel) -> list[tuple[Any, ...]]:
        return drains.rows_of(self.connection, model)

    def fill(self, number: int, seed: int = 1) -> "Lab":
        """Append `number` random events."""
        drains.fill(self, number, seed)
        return self

    def rebuild(self, model: ReadModel, *partitions: int, owner: str = "rebuilder", **options: Any) -> Commit:  # noqa: ANN401
        """Rebuild some log partitions, or all."""
        with self.consumer(model, owner, **options) as consumer:
            return consumer.rebuild(*(partitions or range(16)), wait_s=patience())

    def consumer(self, model: ReadModel, owner: str = "next", **options: Any) -> ViewDrain:  # noqa: ANN401 - passed on
        return ViewDrain(self.dsn, model, self.session, owner, **options)

    def drain(self, model: ReadModel = Everything, owner: str = "next") -> DrainReport:
        return drains.drain(self.dsn, self.spark, model, owner)

    def together(self, models: Sequence[ReadModel], owner: str = "rounds", **options: Any) -> Drain:  # noqa: ANN401
        return Drain(self.dsn, models, self.session, owner, **options)

    def share(
        self, models: Sequence[ReadModel] = shared_drains.TOGETHER, owner: str = "rounds"
    ) -> dict[str, str | None]:
        return shared_drains.share(self.dsn, self.spark, models, owner)

    def is_clean(self, *models: ReadModel) -> None:
        """Assert that read models, or `Everything`, equal a clean run."""
        drains.assert_equals_a_clean_run(self, *models)


@pytest.fixture
def lab(things: PlatformStore, dsn: str, spark: "SparkSession") -> Lab:
    return Lab(things.connection, dsn, spark)
