"""One Spark Connect server for all processes of a test run."""

import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from millrace.platform_defs.local.services import free_port, spark_service
from millrace.platform_defs.local.supervisor import LONGEST_READY_S, Supervisor
from millrace.processes import only_one
from millrace.settings import Settings
from millrace.spark.java import find_java
from millrace.spark.session import SPARK_TOKEN
from tests.support.project import PROJECT

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# the folder of the module that its Python processes import first
PYTHON = Path(__file__).with_name("python_of_spark")


@contextmanager
def shared_spark_server(folder: Path, started: Callable[[psutil.Process], None]) -> Iterator[tuple[int, str]]:
    """Yield the server's port and its token; the first process starts it, and ends it when the last has left."""
    found, entering = folder / "spark.port", folder / "spark.lock"
    with ExitStack() as stack:
        with only_one(entering):
            if not found.exists():
                stack.enter_context(_server(folder, found, entering, started))
            port, token = found.read_text().split()
            # the kernel releases a killed guest's lock
            fcntl.flock(stack.enter_context(_guests(folder, port).open("a")), fcntl.LOCK_SH)
        yield int(port), token


@contextmanager
def _server(folder: Path, found: Path, entering: Path, started: Callable[[psutil.Process], None]) -> Iterator[None]:
    settings, port = Settings(home=folder / "spark"), free_port()
    env = {
        **os.environ,
        "JAVA_HOME": str(find_java(settings.home / "java").home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{PYTHON}{os.pathsep}{PROJECT}",
        # a test's plan runs a few times over a few rows: compiling it costs a fifth of the time and never pays
        "JAVA_TOOL_OPTIONS": f"{os.environ['JAVA_TOOL_OPTIONS']} {INTERPRETED}",
        # a process that forks has one thread
        "OPENBLAS_NUM_THREADS": "1",
        SPARK_TOKEN: secrets.token_urlsafe(32),
    }
    # a busy machine needs more time than a first start elsewhere, and no process restarts this server
    service = replace(spark_service(settings, port, env), ready_s=LONGEST_READY_S)
    with Supervisor(settings.home, [service]) as supervisor:
        started(psutil.Process(supervisor.states()[0].pid))
        found.write_text(f"{port} {env[SPARK_TOKEN]}")
        yield
        # a process that comes from now on starts another server
        with only_one(entering):
            found.unlink()
        with _guests(folder, str(port)).open("a") as guests:
            fcntl.flock(guests, fcntl.LOCK_EX)


def _guests(folder: Path, port: str) -> Path:
    return folder / f"spark.{port}.guests"
