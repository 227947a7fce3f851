"""The servers of tests: a Postgres and a Spark for each process, which end with it.

The first store of a process starts a Postgres in a temporary folder. The first model opens a Spark session: a local
one, or where `SPARK_REMOTE` or `SPARK_MASTER` say.
"""

import atexit
import os
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from millrace.event_store.migrations import migrate
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.spark import spark_session
from millrace.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# enough that streams lie apart; each model has a table for each
LOG_PARTITIONS = 4
TEMPLATE = "template_millrace"
# a Java that lives for a minute: no compiler that pays after ten, no threads that collect garbage beside few cores
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# what ends with this process: the session last, for that takes longest, and Spark's server ends with us in any case
_POSTGRES, _SPARK = ExitStack(), ExitStack()


@atexit.register
def _end() -> None:
    _POSTGRES.close()
    _SPARK.close()


@cache
def _folder() -> Path:
    # no TemporaryDirectory: at the end of the process that would go before the server that is in it
    folder = Path(tempfile.mkdtemp(prefix="millrace-testing-"))
    _POSTGRES.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _server() -> EmbeddedPostgres:
    """Return the Postgres of this process, with a database to copy stores from."""
    server = _POSTGRES.enter_context(EmbeddedPostgres(_folder() / "postgres"))
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        # a test may lose its data with the machine; stores that come and go would wait for the disk
        admin.execute("alter system set fsync = off")
        admin.execute("select pg_reload_conf()")
    server.create_database(TEMPLATE)
    migrate(server.dsn(TEMPLATE), log_partitions=LOG_PARTITIONS)
    return server


def new_store(name: str) -> str:
    """Make an event store of that name; return where it is."""
    server = _server()
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    return server.dsn(name)


def drop_store(name: str) -> None:
    """Drop an event store of `new_store`."""
    with psycopg.connect(_server().dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@cache
def shared_spark() -> "SparkSession":
    """Return the session that all tests of this process share."""
    if "SPARK_REMOTE" in os.environ:
        return _SPARK.enter_context(spark_session())
    # where a Java has to be made first, it goes with this process and not into the user's folders
    os.environ["JAVA_HOME"] = str(find_java(_folder() / "java").home)
    return _SPARK.enter_context(spark_session({"spark.driver.extraJavaOptions": JAVA_OPTIONS}))
