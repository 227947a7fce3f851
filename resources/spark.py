"""Spark sessions: one resource for a local session, a Spark Connect server, or any cluster.

Belongs here: how a session is made and closed. Not here: what it computes.

`SPARK_REMOTE=sc://…` uses a Spark Connect server, which stays warm across runs; `SPARK_MASTER=…` any master; neither a
local session. Every session is closed by whoever opened it, also when it fails; a Connect session that `SPARK_REMOTE` names
(`sc://host:port/;session_id=<uuid>`) is shared and stays on the server.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from resources.errors import Unreachable
from resources.event_log_source import EventLogSource
from resources.java import find_java
from resources.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

# what every session needs for the same rows everywhere, and small jobs many times a minute
SESSION_CONFIGURATION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",  # JSON's keys and Postgres' columns are
    "spark.sql.shuffle.partitions": "2",
}
# what a Spark inside this process or machine needs besides: loopback only, nothing that a terminal does not want
LOCAL_CONFIGURATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def spark_session(configuration: dict[str, str] | None = None) -> "Iterator[SparkSession]":
    """Open a session where the environment says, with the source `event_log` registered; close it in the end.

    Raises:
        Unreachable: Nothing listens at `SPARK_REMOTE`.
        JavaNotFound: A local session has no Java to run on.
    """
    spark = _open(configuration or {})
    try:
        yield spark
    finally:
        spark.stop()


class SparkResource(LazyPySparkResource):
    """A session that is opened when a run first needs it and closed when the run ends."""

    spark_config: dict[str, str] = Field(default_factory=dict, description="Spark settings for this session.")
    _spark_session: "SparkSession | None" = PrivateAttr(default=None)

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = _open(self.spark_config)

    def teardown_after_execution(self, context: InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Close the session if the run opened it."""
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None


def _open(configuration: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("millrace")
    remote = os.environ.get("SPARK_REMOTE")
    if remote:
        _require_listener(remote)
        builder = builder.remote(remote)
        settings = SESSION_CONFIGURATION
        # a session of our own: the one that somebody else in this process opened is closed by them
        opened = type(builder).create
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["JAVA_HOME"] = str(find_java(Settings().home / "java").home)
        master = os.environ.get("SPARK_MASTER", "local[*]")
        builder = builder.master(master)
        # executors on other machines must reach the driver
        settings = SESSION_CONFIGURATION | (LOCAL_CONFIGURATION if master.startswith("local") else {})
        opened = type(builder).getOrCreate
    for name, value in (settings | configuration).items():
        builder = builder.config(name, value)
    spark = opened(builder)
    try:
        _prepare(spark, remote)
    except BaseException:
        # it would stay Spark's current session for everybody in this process
        spark.stop()
        raise
    return spark


def _prepare(spark: "SparkSession", remote: str | None) -> None:
    if remote:
        _give_up_soon(spark)
        # Spark 4.3 keeps the Python processes of every session it ever had (SPARK-54055), half a gigabyte each: who names a
        # session in SPARK_REMOTE shares it, and leaves it, warm, to the next one.
        cast("ConnectSession", spark).release_session_on_close = ";session_id=" not in remote
    spark.dataSource.register(EventLogSource)


def _give_up_soon(spark: "SparkSession") -> None:
    """Let calls to a server that went away fail after about five seconds, not after Spark's ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=4)])


def _require_listener(remote: str) -> None:
    """Find out at once what Spark's client finds out after minutes of retries."""
    url = urlsplit(remote)
    try:
        socket.create_connection((url.hostname or "", url.port or 15002), timeout=5).close()
    except OSError as error:
        raise Unreachable(
            f"No Spark Connect server answers at {remote}.",
            detail=str(error),
            hint="Start it (`make run` does), or unset SPARK_REMOTE to use a local Spark.",
        ) from error
