"""Spark as a Dagster resource.

It has no field. A field is run config, and Spark's settings start programs and decide where the connection string goes.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from millrace.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkResource(LazyPySparkResource):
    """A session that is opened when a run first needs it and closed when the run ends."""

    # a class variable, so that it is no field
    spark_config: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    _spark_session: "SparkSession | None" = PrivateAttr(default=None)

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session({})

    def teardown_after_execution(self, context: InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Close the session if the run opened it."""
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None
