"""Which services `millrace up` runs on this machine, and how each is called.

Belongs here: command lines, environments, ports and readiness. Not here: keeping them alive (`supervisor`), what a
package of declarations may know of them (`surroundings`).

    spark      Spark Connect, warm across runs; not started if SPARK_REMOTE or SPARK_MASTER is set
    sequence   gives committed events their positions
    code       loads the definitions; runs are its children
    daemon     sensors, schedules, run queue
    web        the UI

Behind these come those of the package of declarations, if it has a `services.py`. Dagster is three services and not
`dagster dev`: a crash of the UI then ends no run, it takes 130 MB less, and it is up three seconds earlier. All listen
on 127.0.0.1 only, work in the folder that `millrace up` was started in, and find a package of declarations there.
"""

import json
import logging
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
import requests
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from millrace.assets.declarations import Fault, fault_in, load_part
from millrace.platform_defs.local.supervisor import Service
from millrace.platform_defs.local.surroundings import PROGRAMS, Surroundings
from millrace.resources.errors import MillraceError, Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT, Settings
from millrace.resources.spark.java import find_java
from millrace.resources.spark.session import LOCAL_CONFIGURATION, SESSION_CONFIGURATION

LOOPBACK = "127.0.0.1"
logger = logging.getLogger(__name__)

SPARK_CONF = {
    **SESSION_CONFIGURATION,
    **LOCAL_CONFIGURATION,
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.log.level": "WARN",
    "spark.connect.session.manager.defaultSessionTimeout": "-1",
}


@dataclass(frozen=True)
class Endpoints:
    """Where the servers are, those we start and those that were there."""

    dsn: str
    dagster_dsn: str
    code_port: int
    # None for a Spark that is not spoken to by Connect: SPARK_MASTER is set.
    spark_remote: str | None
    # None for a Spark that somebody else runs.
    spark_port: int | None
    java_home: Path | None
    # None where the event store is the user's.
    postgres: EmbeddedPostgres | None = None


def find_endpoints(settings: Settings, postgres: EmbeddedPostgres | None) -> Endpoints:
    """Settle databases, ports and Java, creating databases where they are ours.

    Raises:
        JavaNotFound: Spark is to run here and there is no Java for it.
        Unreachable: The user's Postgres does not answer.
    """
    remote, master = os.environ.get("SPARK_REMOTE"), os.environ.get("SPARK_MASTER")
    spark_port = None if remote or master else free_port()
    java_home = None if remote else find_java(settings.home / "java").home
    if spark_port is not None:
        # all runs share one session, see resources/spark/session.py
        remote = shared_session(spark_port)
    if postgres is not None:
        for database in ("millrace", "dagster"):
            postgres.create_database(database)
        dsn, dagster_dsn = postgres.dsn("millrace"), postgres.dsn("dagster")
    else:
        dsn = str(settings.dsn)
        dagster_dsn = os.environ.get("MILLRACE_DAGSTER_DSN") or _schema_for_dagster(dsn)
    return Endpoints(dsn, dagster_dsn, free_port(), remote, spark_port, java_home, postgres)


def _schema_for_dagster(dsn: str) -> str:
    """Give Dagster a schema of its own in the user's database."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create schema if not exists dagster")
    except psycopg.OperationalError as error:
        raise silent_postgres(error) from error
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    known = {key: parts.pop(key, None) for key in ("user", "password", "dbname")}
    url = URL.create(
        "postgresql",
        username=known["user"],
        password=known["password"],
        database=known["dbname"],
        query={**parts, "options": f"{parts.get('options', '')} -csearch_path=dagster".strip()},
    )
    return url.render_as_string(hide_password=False)


def silent_postgres(error: psycopg.OperationalError) -> Unreachable:
    """Return the refusal of a user's Postgres that does not answer."""
    return Unreachable(
        f"The Postgres of MILLRACE_DSN does not answer: {str(error).strip()}",
        hint="Start it or correct MILLRACE_DSN; without MILLRACE_DSN an embedded Postgres is used.",
    )


def shared_session(port: int) -> str:
    """Return a `SPARK_REMOTE` for a server of our own, with one session for all who use it."""
    return f"sc://{LOOPBACK}:{port}/;session_id={uuid4()}"


def free_port() -> int:
    """Find a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def prepare_home(settings: Settings, endpoints: Endpoints) -> None:
    """Put Dagster's instance and workspace files into `<home>/dagster`, and drop what a killed Spark spilled."""
    shutil.rmtree(settings.home / "spark" / "local", ignore_errors=True)
    folder = settings.home / "dagster"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROJECT / "platform_defs" / "dagster.yaml", folder)
    server = {"host": LOOPBACK, "port": endpoints.code_port, "location_name": "millrace"}
    # JSON is YAML.
    (folder / "workspace.yaml").write_text(json.dumps({"load_from": [{"grpc_server": server}]}))


def environment(settings: Settings, endpoints: Endpoints) -> dict[str, str]:
    """Return the environment of all services: ours, with where the servers are."""
    found = {
        "MILLRACE_HOME": str(settings.home),
        "MILLRACE_DSN": endpoints.dsn,
        "MILLRACE_DAGSTER_DSN": endpoints.dagster_dsn,
        # said, for with MILLRACE_DSN set it would mean nothing declared
        "MILLRACE_DECLARATIONS": settings.declared_package,
        "MILLRACE_LOG_PARTITIONS": str(settings.log_partitions),
        "MILLRACE_ARCHIVE_DIR": str(settings.archive_folder),
        "DAGSTER_HOME": str(settings.home / "dagster"),
        "SPARK_REMOTE": endpoints.spark_remote,
        "JAVA_HOME": endpoints.java_home and str(endpoints.java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", os.defpath)]),
    }
    return {**os.environ, **{name: value for name, value in found.items() if value}}


def services(settings: Settings, endpoints: Endpoints) -> list[Service]:
    """List the services in the order of their start, those of the package of declarations behind ours.

    Raises:
        MillraceError: The package names one of its services as another one is named.
    """
    env = environment(settings, endpoints)
    here = Surroundings(endpoints.dsn, settings.home, Path.cwd(), env, endpoints.postgres)
    # first, for they may add to the environment
    declared = declared_services(settings.declared_package, here)
    workspace = str(settings.home / "dagster" / "workspace.yaml")
    code_port = str(endpoints.code_port)
    # never the folder of Millrace: its `assets` would be found before the user's
    module = ("-m", "millrace.platform_defs.definitions", "-d", str(here.folder))
    code_ready = partial(_accepts, endpoints.code_port)
    code = ("code-server", "start", *module, "-h", LOOPBACK, "-p", code_port)
    web = ("-w", workspace, "-h", LOOPBACK, "-p", str(settings.port))
    ours = [
        *([spark_service(settings, endpoints.spark_port, env)] if endpoints.spark_port else []),
        here.run("sequence", "millrace", "sequence"),
        # Runs are its children: on TERM they release their leases, which may take a commit's time.
        here.run("code", "dagster", *code, ready=code_ready, stop_s=30),
        here.run("daemon", "dagster-daemon", "run", "-w", workspace),
        here.run("web", "dagster-webserver", *web, ready=partial(_answers, settings.port)),
    ]
    names = [service.name for service in (*ours, *declared)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise MillraceError(
            f"There are two services named {min(twice)!r}.",
            hint=f"Give the one in {settings.declared_package}.services another name.",
        )
    return [*ours, *declared]


def declared_services(package: str | None, here: Surroundings) -> list[Service]:
    """Ask a package of declarations for its own services.

    A `services.py` that fails costs its services only: the log says where it fails.
    """
    module = load_part(package, "services")
    if package is None or module is None:
        return []
    fault = module if isinstance(module, Fault) else None
    if not isinstance(module, Fault):
        try:
            return [*module.services(here)]
        except Exception as error:  # noqa: BLE001  whatever a user's function does wrong
            fault = fault_in(package, "services", error)
    logger.error("The services of %s are not started: %s", package, fault)
    return []


def spark_service(settings: Settings, port: int, env: dict[str, str]) -> Service:
    """Describe the Spark Connect server on a port of 127.0.0.1."""
    spec = find_spec("pyspark")
    spark_home = Path((spec and spec.origin) or "").parent
    folder = settings.home / "spark"
    # Spark writes artifacts into its working directory.
    folder.mkdir(parents=True, exist_ok=True)
    conf = {
        **SPARK_CONF,
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "millrace")
    options = ("--master", "local[*]", "--driver-memory", "1g")
    pairs = (word for key, value in conf.items() for word in ("--conf", f"{key}={value}"))
    own = {name: value for name, value in env.items() if name not in {"SPARK_REMOTE", "SPARK_MASTER"}}
    return Service(
        name="spark",
        argv=(str(spark_home / "bin" / "spark-submit"), *server, *options, *pairs),
        env={**own, "SPARK_HOME": str(spark_home)},
        ready=partial(_accepts, port),
        cwd=folder,
    )


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://{LOOPBACK}:{port}/server_info", timeout=2).ok
    except requests.RequestException:
        return False
