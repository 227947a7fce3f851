"""Spark sessions: a local one, one of a Spark Connect server, or of any cluster.

A Connect session that `SPARK_REMOTE` names (`sc://host:port/;session_id=<uuid>`) is shared and stays on the server, one
for each version of our code: a session never reloads modules that it has imported.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from millrace.errors import Unreachable
from millrace.patience import ASK_S
from millrace.settings import Settings
from millrace.spark import log_source as event_log_source
from millrace.spark.java import find_java
from millrace.spark.log_source import EventLogSource
from millrace.spark.shipped_code import shipped_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

# settings of every session, so that all give the same rows
SESSION_CONFIGURATION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",  # as are JSON's keys and Postgres' columns
}
# the number of events per task, where the number of cores does not decide it; our own name among Spark's settings
TASK_EVENTS = "spark.millrace.taskEvents"
# cores of a standalone master for each run; without a limit one run takes all, and the next one waits
STANDALONE_CORES = 4
# Settings for many small jobs a minute on one machine. A cluster keeps its own configuration.
ONE_MACHINE = {
    "spark.sql.shuffle.partitions": "2",
    # a task has an overhead of a tenth of a second, and some tasks run in parallel
    TASK_EVENTS: "125000",
}
# Spark writes plans and options into its event log, its UI and its errors: redact the passwords in them
REDACTION = {
    "spark.sql.redaction.options.regex": r"(?i)url|dsn|secret|password|token",
    "spark.sql.redaction.string.regex": r"(?i)(?<=://)[^\s/@]*@|password=('[^']*'|[^\s&;,\])]*)",
}
# further settings of a local Spark: it listens on loopback only, talks to itself only, writes only errors to the
# terminal, and survives a pause
LOCAL_CONFIGURATION = {
    "spark.authenticate": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # not `extraJavaOptions`, which are the user's and come after these
    "spark.driver.defaultJavaOptions": "-Dlog4j2.configurationFile=org/apache/spark/log4j2-defaults.properties,"
    + Path(__file__).resolve().with_name("log4j2.properties").as_uri(),
    # The executor is this process: it is silent only while the whole process is paused, as when a laptop sleeps. By
    # default Spark removes it for good after two minutes, and no job runs until the process ends.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "1d",
}
# These loggers write each exception of Spark's to stderr when it is raised, as a line of JSON with a Java stack trace.
# The code that catches the exception reports it once.
_LOGGERS_OF_EXCEPTIONS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# the condition before a sentence of Spark's, and the SQLSTATE after it: code gets both from methods of the error
_CODES = re.compile(r"^\[[A-Z0-9_.]+\] | SQLSTATE: [A-Z0-9]{5};?(?=( \(?line [\w, ]+[;)])?$)")
CONNECT_PORT = 15002
MASTER_PORT = 7077
# retries of a call to a Connect server that is away, about five seconds; Spark's default is ten minutes
CONNECT_TRIES = 4
# Spark's own variable for the token that a Connect server asks for
SPARK_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable


def holds_foreign_cores() -> bool:
    """Return whether an open session holds cores of a cluster that other programs may want: on a master of its own."""
    return "SPARK_REMOTE" not in os.environ and not os.environ.get("SPARK_MASTER", "local").startswith("local")


@contextmanager
def spark_session(configuration: dict[str, str] | None = None) -> "Iterator[SparkSession]":
    """Open the session that the environment names, with the source `event_log` registered; close it in the end.

    Raises:
        Unreachable: Nothing listens at `SPARK_REMOTE` or `SPARK_MASTER`, or the server there gives no session; or a
            local session does not start.
        JavaNotFound: A local session has no Java to run on.
        PackageMissing: The package of the declarations cannot be shipped to Spark's tasks.
    """
    spark = open_session(configuration or {})
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def spark_when_needed(configuration: dict[str, str] | None = None) -> "Iterator[Callable[[], SparkSession]]":
    """Yield a function that opens a session at its first call, and returns the same one later; close it in the end.

    The first call raises the errors of `spark_session`.
    """
    with ExitStack() as opened:
        yield cache(lambda: opened.enter_context(spark_session(configuration)))


def open_session(configuration: dict[str, str]) -> "SparkSession":
    """Open a session as `spark_session` does; the caller closes it."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for name in _LOGGERS_OF_EXCEPTIONS:
        # made by Spark's own class: Spark logs with arguments that a plain logger of the same name refuses
        PySparkLogger.getLogger(name).disabled = True
    settings = Settings()
    remote = os.environ.get("SPARK_REMOTE")
    if remote:
        return _open_remote(remote, configuration, settings)
    master = os.environ.get("SPARK_MASTER") or local_master(settings)
    require_master(master)
    # executors on other machines must reach the driver
    defaults = SESSION_CONFIGURATION | REDACTION | (LOCAL_CONFIGURATION if master.startswith("local") else {})
    if _runs_here(master):
        defaults |= ONE_MACHINE
    defaults |= share_of(master, settings)
    builder = SparkSession.builder.appName("millrace").master(master)
    _configure(builder, defaults | configuration)
    spark = _started(builder, master, settings)
    with _closed_on_failure(spark):
        if _runs_here(master):
            spark.dataSource.register(EventLogSource)
        else:
            code = shipped_code(settings.declared_package)
            spark.sparkContext.addPyFile(str(code))
            # Spark puts the file on this process's path, too, but here the modules themselves can be imported
            sys.path[:] = [entry for entry in sys.path if Path(entry).name != code.name]
            _register_source(spark)
    return spark


def _open_remote(remote: str, configuration: dict[str, str], settings: Settings) -> "SparkSession":
    _require_listener(
        f"No Spark Connect server answers at {remote}.",
        [urlsplit(remote).netloc],
        CONNECT_PORT,
        hint="Start it (`make run` does), or unset SPARK_REMOTE to use a local Spark.",
    )
    if (
        os.environ.get(SPARK_TOKEN)
        and urlsplit(remote).hostname in {"127.0.0.1", "::1"}
        and "use_ssl=true" not in remote
    ):
        # Spark's client would retry for minutes
        raise Unreachable(
            f"Spark's client sends a token without TLS to localhost only, and not to {remote}.",
            hint=f"Name the server localhost in SPARK_REMOTE, add ;use_ssl=true if it has TLS, or unset {SPARK_TOKEN}.",
        )
    code = shipped_code(settings.declared_package)
    # the server never reopens a closed session; all processes that share it move on to the same next one
    turns = (_created(session_for(code, remote, configuration, turn), configuration) for turn in count())
    spark = next(session for session in turns if session is not None)
    with _closed_on_failure(spark):
        client = spark.client
        retried = client.get_retry_policies()
        client.set_retry_policies([type(policy)(max_retries=CONNECT_TRIES) for policy in retried])
        # Spark 4.3 keeps the Python processes of every session it ever had (SPARK-54055), half a gigabyte each. A
        # session that SPARK_REMOTE names stays on the server, warm, for the next process that names it.
        cast("ConnectSession", spark).release_session_on_close = ";session_id=" not in remote
        # before the registration: the source's Python processes get the files that the session has at that time
        spark.addArtifacts(str(code), pyfile=True)
        _register_source(spark)
    return spark


def _created(address: str, configuration: Mapping[str, str]) -> "SparkSession | None":
    """Create a session at a Connect server; return None if the server has closed the session of that id."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    builder = SparkSession.builder.appName("millrace").remote(address)
    _configure(builder, {**SESSION_CONFIGURATION, **REDACTION, **configuration})
    try:
        # not `getOrCreate`: other code in this process opened that session, and will close it
        return type(builder).create(builder)
    except SparkConnectGrpcException as error:
        if not is_closed(error):
            raise
        stale = ConnectSession.getActiveSession()
        if stale is not None and stale.session_id in address:
            stale.release_session_on_close = False
            stale.stop()  # it would stay Spark's current session
        return None


def is_closed(error: Exception) -> bool:
    """Return whether an error says that a Connect server has closed the requested session."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return isinstance(error, SparkConnectGrpcException) and (error.getCondition() or "").startswith(
        "INVALID_HANDLE.SESSION"
    )


def session_for(code: Path, remote: str, configuration: Mapping[str, str], turn: int = 0) -> str:
    """Return the address of a Connect session for the shipped code: other code gets another session.

    So do other settings: in a shared session they would affect all its users. `turn` numbers successive sessions.

    The session id in the address is replaced by one that is derived from it and from the code. An address without an id
    stays as it is, and so does an id that is no UUID, which Spark refuses with a reason.
    """
    uuid = r"(?<=;session_id=)[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?=;|$)"
    identity = code.name + "".join(f" {name}={value}" for name, value in sorted(configuration.items()))
    identity += f" {turn}" if turn else ""
    return re.sub(uuid, lambda named: str(uuid5(UUID(named[0]), identity)), remote)


def local_master(settings: Settings) -> str:
    """Return the master for this machine only."""
    return f"local[{settings.cores or '*'}]"


def share_of(master: str, settings: Settings) -> dict[str, str]:
    """Return a run's share of a standalone master; other clusters share by themselves."""
    if not master.startswith("spark://"):
        return {}
    return {"spark.cores.max": str(settings.cores or STANDALONE_CORES)}


def _configure(builder: "SparkSession.Builder", configuration: Mapping[str, str]) -> None:
    for name, value in configuration.items():
        builder.config(name, value)


def _started(builder: "SparkSession.Builder", master: str, settings: Settings) -> "SparkSession":
    """Start Spark's JVM and the session.

    Raises:
        Unreachable: Java does not start, or the master gives no session.
    """
    import psutil
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    here, python = _runs_here(master), os.environ.get("PYSPARK_PYTHON", sys.executable)
    # Spark looks up the machine's own name, which may not resolve
    name = {"SPARK_LOCAL_HOSTNAME": os.environ.get("SPARK_LOCAL_HOSTNAME", "localhost")} if here else {}
    with _environment(PYSPARK_PYTHON=python, JAVA_HOME=str(find_java(settings.home / "java").home), **name):
        children = {*psutil.Process().children()}
        try:
            return builder.getOrCreate()
        except KeyboardInterrupt:
            # PySpark has removed the file for the handshake: its JVM, which ignores Ctrl-C, would stay for ever
            if SparkContext._gateway is None:
                for child in {*psutil.Process().children()} - children:
                    child.kill()
            raise
        except (Py4JError, PySparkRuntimeError) as error:
            log = "What Java wrote before it ended" if here else "The master's log"
            raise Unreachable(
                "Spark does not start here." if here else f"The Spark master {master} gives no session.",
                # Java's first line says which call failed, the second one why
                detail=without_codes(
                    " ".join(str(error).splitlines()[isinstance(error, Py4JError) :][:1]).lstrip(": ")
                ),
                hint=f"{log} says why. A master must run the same version of Spark, and accept applications from here.",
            ) from error


def without_codes(line: str) -> str:
    """Return a line of Spark's without its condition and SQLSTATE."""
    return _CODES.sub("", line)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables of this process until the `with` ends: Spark's launcher takes its environment only from here."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _closed_on_failure(spark: "SparkSession") -> Iterator[None]:
    try:
        yield
    except BaseException:
        # it would stay Spark's current session for all code in this process
        spark.stop()
        raise


def _runs_here(master: str) -> bool:
    """Return whether tasks run on this machine under our own Python, which imports our code from the same files."""
    return master == "local" or master.startswith("local[")


def _register_source(spark: "SparkSession") -> None:
    """Register `event_log` so that pickles contain the code of the source.

    Spark 4.3 plans streams in Python processes that do not get the session's files.
    """
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(event_log_source)  # type: ignore[no-untyped-call]
    spark.dataSource.register(EventLogSource)


def require_master(master: str) -> None:
    """Refuse a master's address without a listener. A master without an address, such as `yarn`, is left to Spark.

    Raises:
        Unreachable: Nothing listens there.
    """
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
    """Refuse at once if nothing listens at any of the addresses; Spark's clients would retry for minutes.

    Raises:
        Unreachable: Nothing listens; the detail has the error of each address.
    """
    refusals = []
    for address in addresses:
        try:
            url = urlsplit(f"//{address}")
            socket.create_connection((url.hostname or "", url.port or default_port), ASK_S).close()
        except (OSError, ValueError) as error:
            refusals.append(f"{address}: {error}")
        else:
            return
    raise Unreachable(message, detail="\n".join(refusals), hint=hint)
