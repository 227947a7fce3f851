"""The servers of tests: a Postgres and a Spark for each process, which end with it.

The first store of a process starts a Postgres in a temporary folder. The first model opens a Spark session: a local
one, or one at the server that `SPARK_REMOTE` or `SPARK_MASTER` names.
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

from millrace.event_store.key_rotation import KeyStore
from millrace.event_store.migrations import migrate
from millrace.personal.folder import begun_folder
from millrace.personal.sealer import Sealer
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.spark import spark_session
from millrace.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# enough to spread streams; each model has a table for each log partition
LOG_PARTITIONS = 4
TEMPLATE = "template_millrace"
# for a Java that lives for a minute: no compiler that pays off after ten, no parallel garbage collection on few cores
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# closed at the end of this process: the session last, because it takes longest, and Spark's server ends with us anyway
_POSTGRES, _SPARK = ExitStack(), ExitStack()


@atexit.register
def _end() -> None:
    _POSTGRES.close()
    _SPARK.close()


@cache
def _folder() -> Path:
    # no TemporaryDirectory: at the end of the process it would be removed before the server in it ends
    folder = Path(tempfile.mkdtemp(prefix="millrace-testing-"))
    _POSTGRES.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _server() -> EmbeddedPostgres:
    """Return the Postgres of this process, with a template database for stores."""
    server = _POSTGRES.enter_context(EmbeddedPostgres(_folder() / "postgres"))
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
        # a test may lose its data in a crash of the machine; with fsync new and dropped stores would wait for the disk
        admin.execute("alter system set fsync = off")
        admin.execute("select pg_reload_conf()")
    server.create_database(TEMPLATE)
    migrate(server.dsn(TEMPLATE), log_partitions=LOG_PARTITIONS)
    with psycopg.connect(server.dsn(TEMPLATE), autocommit=True) as template:
        keys = sealer().folder
        KeyStore(template).begin_key_epoch(keys.epoch, keys.fingerprint)
    return server


@cache
def sealer() -> Sealer:
    """Return the sealer of all stores of this process."""
    return Sealer(begun_folder(_folder() / "keys"))


def new_store(name: str) -> str:
    """Make an event store of that name; return its DSN."""
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
    # a Java home that must be made first goes into this process's folder, not into the user's
    os.environ["JAVA_HOME"] = str(find_java(_folder() / "java").home)
    return _SPARK.enter_context(spark_session({"spark.driver.extraJavaOptions": JAVA_OPTIONS}))
