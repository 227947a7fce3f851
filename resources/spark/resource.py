"""Spark as a Dagster resource.

Belongs here: when a run opens and closes its session. Not here: how (`session`).

The resource has no field: a field is run config, and settings of Spark start programs and choose the server that gets
the connection string. What a session needs besides stands in `spark-defaults.conf`.
"""

from typing import TYPE_CHECKING

from dagster import ConfigurableResource, InitResourceContext
from pydantic import PrivateAttr

from millrace.resources.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkResource(ConfigurableResource["SparkResource"]):
    """A session that is opened when a run first needs it and closed when the run ends."""

    _spark_session: "SparkSession | None" = PrivateAttr(default=None)

    @property
    def spark_session(self) -> "SparkSession":
        """The run's session."""
        if self._spark_session is None:
            self._spark_session = open_session({})
        return self._spark_session

    def teardown_after_execution(self, context: InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Close the session if the run opened it."""
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None
