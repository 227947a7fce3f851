"""Spark sessions: a local one, one of a Spark Connect server, or of any cluster.

Belongs here: how a session is made and closed. Not here: what it computes; Dagster (`resource`).

`SPARK_REMOTE=sc://…` uses a Spark Connect server, which stays warm across runs; `SPARK_MASTER=…` any master; neither a
local session. Every session is closed by whoever opened it, also when it fails; a Connect session that `SPARK_REMOTE` names
(`sc://host:port/;session_id=<uuid>`) is shared and stays on the server.

Where tasks run in other processes than ours, a session brings our code along (`shipped_code`). What else a cluster wants to be
told, such as the memory of its executors, is Spark's own configuration: `spark-defaults.conf` in `SPARK_CONF_DIR`.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from millrace.resources import event_log_source
from millrace.resources.errors import Unreachable
from millrace.resources.event_log_source import EventLogSource
from millrace.resources.settings import Settings
from millrace.resources.spark.java import find_java
from millrace.resources.spark.shipped_code import shipped_code

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
# they write an exception of Spark's, as it is raised, to stderr: a line of JSON with a stack of Java. It says all that itself
_LOGGERS_OF_EXCEPTIONS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
CONNECT_SECONDS = 5
CONNECT_PORT = 15002
MASTER_PORT = 7077


@contextmanager
def spark_session(configuration: dict[str, str] | None = None) -> "Iterator[SparkSession]":
    """Open a session where the environment says, with the source `event_log` registered; close it in the end.

    Raises:
        Unreachable: Nothing listens at `SPARK_REMOTE` or `SPARK_MASTER`, or what listens there gives no session.
        JavaNotFound: A local session has no Java to run on.
    """
    spark = open_session(configuration or {})
    try:
        yield spark
    finally:
        spark.stop()


def open_session(configuration: dict[str, str]) -> "SparkSession":
    """Open a session as `spark_session` does; whoever calls this closes it."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_EXCEPTIONS:
        # made here by Spark's own class: what it logs has arguments that other loggers refuse
        PySparkLogger.getLogger(name).disabled = True
    remote = os.environ.get("SPARK_REMOTE")
    if remote:
        return _open_remote(remote, configuration)
    return _open_master(os.environ.get("SPARK_MASTER") or "local[*]", configuration)


def _open_remote(remote: str, configuration: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    _require_listener(
        f"No Spark Connect server answers at {remote}.",
        [urlsplit(remote).netloc],
        CONNECT_PORT,
        hint="Start it (`make run` does), or unset SPARK_REMOTE to use a local Spark.",
    )
    builder = SparkSession.builder.appName("millrace").remote(remote)
    for name, value in (SESSION_CONFIGURATION | configuration).items():
        builder = builder.config(name, value)
    # a session of our own: the one that somebody else in this process opened is closed by them
    spark = type(builder).create(builder)
    with _closed_on_failure(spark):
        _give_up_soon(spark)
        # Spark 4.3 keeps the Python processes of every session it ever had (SPARK-54055), half a gigabyte each: who names a
        # session in SPARK_REMOTE shares it, and leaves it, warm, to the next one.
        cast("ConnectSession", spark).release_session_on_close = ";session_id=" not in remote
        # before the source is registered: its Python processes get the files that the session had then
        spark.addArtifacts(str(shipped_code()), pyfile=True)
        _pickle_source()
        spark.dataSource.register(EventLogSource)
    return spark


def _open_master(master: str, configuration: dict[str, str]) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    require_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java(Settings().home / "java").home)
    builder = SparkSession.builder.appName("millrace").master(master)
    # executors on other machines must reach the driver
    settings = SESSION_CONFIGURATION | (LOCAL_CONFIGURATION if master.startswith("local") else {})
    for name, value in (settings | configuration).items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Py4JError as error:
        if _runs_here(master):
            raise
        raise Unreachable(
            f"The Spark master {master} gives no session.",
            # the first line says which call failed, the second one why
            detail=" ".join(str(error).splitlines()[1:2]).lstrip(": "),
            hint="Look at the master's log. It must run Spark's version of here, and accept applications from this machine.",
        ) from error
    with _closed_on_failure(spark):
        if not _runs_here(master):
            _ship(spark)
        spark.dataSource.register(EventLogSource)
    return spark


@contextmanager
def _closed_on_failure(spark: "SparkSession") -> Iterator[None]:
    try:
        yield
    except BaseException:
        # it would stay Spark's current session for everybody in this process
        spark.stop()
        raise


def _runs_here(master: str) -> bool:
    """Whether tasks run on this machine under our own Python, which imports our code from where we did."""
    return master == "local" or master.startswith("local[")


def _ship(spark: "SparkSession") -> None:
    code = shipped_code()
    spark.sparkContext.addPyFile(str(code))
    # Spark lets this process import from the file, too: it has the modules themselves
    sys.path[:] = [entry for entry in sys.path if Path(entry).name != code.name]
    _pickle_source()


def _pickle_source() -> None:
    """Let the source travel in what is pickled: Spark 4.3 plans streams in Python processes that do not get the session's files."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(event_log_source)  # type: ignore[no-untyped-call]


def _give_up_soon(spark: "SparkSession") -> None:
    """Let calls to a server that went away fail after about five seconds, not after Spark's ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=4)])


def require_master(master: str) -> None:
    """Refuse a master's address where nobody listens; masters without one, such as `yarn`, are found by Spark."""
    _, scheme, addresses = master.removeprefix("k8s://").rpartition("://")
    if not scheme:
        return
    _require_listener(
        f"No Spark master answers at {master}.",
        [address.partition("/")[0] for address in addresses.split(",")],
        443 if master.startswith("k8s://") else MASTER_PORT,
        hint="Start it or correct SPARK_MASTER; without SPARK_MASTER a local Spark is used.",
    )


def _require_listener(message: str, addresses: Sequence[str], default_port: int, *, hint: str) -> None:
    """Find out at once what Spark's clients find out after minutes of retries: whether somebody listens at one address."""
    refusals = []
    for address in addresses:
        try:
            url = urlsplit(f"//{address}")
            socket.create_connection((url.hostname or "", url.port or default_port), CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            refusals.append(f"{address}: {error}")
        else:
            return
    raise Unreachable(message, detail="\n".join(refusals), hint=hint)
