"""Which services `millrace up` runs on this machine, and how each is called.

Belongs here: command lines, environments, ports and readiness. Not here: keeping them alive (`services.py`).

    spark      Spark Connect, warm across runs; not started if SPARK_REMOTE or SPARK_MASTER is set
    sequence   gives committed events their positions
    code       loads the definitions; runs are its children
    daemon     sensors, schedules, run queue
    web        the UI
    simulate   appends events of the example shop; to the embedded Postgres only
    crm        changes the customers of the example shop, in a database of their own; beside the embedded Postgres only

Dagster is three services and not `dagster dev`: a crash of the UI then ends no run, it takes 130 MB less, and it
is up three seconds earlier. All listen on 127.0.0.1 only.
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
import requests
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from millrace.examples.shop.customers import DATABASE as CRM
from millrace.examples.shop.customers import make_crm
from millrace.platform_defs.local.supervisor import Service
from millrace.resources.errors import Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT, Settings
from millrace.resources.spark.java import find_java
from millrace.resources.spark.session import LOCAL_CONFIGURATION, SESSION_CONFIGURATION

LOOPBACK = "127.0.0.1"
PROGRAMS = Path(sys.executable).parent

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
    # None where the event store is the user's: the example's customers are not simulated.
    crm_dsn: str | None = None


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
        for database in ("millrace", "dagster", CRM):
            postgres.create_database(database)
        dsn, dagster_dsn = postgres.dsn("millrace"), postgres.dsn("dagster")
        crm_dsn = settings.crm_dsn
        if crm_dsn is None:
            crm_dsn = postgres.dsn(CRM)
            make_crm(crm_dsn)
    else:
        dsn, crm_dsn = str(settings.dsn), settings.crm_dsn
        dagster_dsn = os.environ.get("MILLRACE_DAGSTER_DSN") or _schema_for_dagster(dsn)
    return Endpoints(dsn, dagster_dsn, free_port(), remote, spark_port, java_home, crm_dsn)


def _schema_for_dagster(dsn: str) -> str:
    """Give Dagster a schema of its own in the user's database."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create schema if not exists dagster")
    except psycopg.OperationalError as error:
        raise Unreachable(
            f"The Postgres of MILLRACE_DSN does not answer: {str(error).strip()}",
            hint="Start it or correct MILLRACE_DSN; without MILLRACE_DSN an embedded Postgres is used.",
        ) from error
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


def shared_session(port: int) -> str:
    """A `SPARK_REMOTE` for a server of our own, with one session for all who use it."""
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
    """The environment of our services: ours, with where the servers are."""
    found = {
        "MILLRACE_HOME": str(settings.home),
        "MILLRACE_DSN": endpoints.dsn,
        "MILLRACE_DAGSTER_DSN": endpoints.dagster_dsn,
        "MILLRACE_CRM_DSN": endpoints.crm_dsn,
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
    """List the services in the order of their start."""
    env = environment(settings, endpoints)
    workspace = str(settings.home / "dagster" / "workspace.yaml")
    code_port = str(endpoints.code_port)
    module = ("-m", "millrace.platform_defs.definitions", "-d", str(PROJECT))

    def run(
        name: str, program: str, *arguments: str, ready: Callable[[], bool] = lambda: True, seconds: float = 15
    ) -> Service:
        argv = (str(PROGRAMS / program), *arguments)
        return Service(name=name, argv=argv, env=env, ready=ready, cwd=PROJECT, stop_seconds=seconds)

    code_ready = partial(_accepts, endpoints.code_port)
    code = ("code-server", "start", *module, "-h", LOOPBACK, "-p", code_port)
    own = settings.simulate and settings.dsn is None
    web = ("-w", workspace, "-h", LOOPBACK, "-p", str(settings.port))
    return [
        *([spark_service(settings, endpoints.spark_port, env)] if endpoints.spark_port else []),
        run("sequence", "millrace", "sequence"),
        # Runs are its children: on TERM they release their leases, which may take a commit's time.
        run("code", "dagster", *code, ready=code_ready, seconds=30),
        run("daemon", "dagster-daemon", "run", "-w", workspace),
        run("web", "dagster-webserver", *web, ready=partial(_answers, settings.port)),
        # never into a store or a database that is not ours: events cannot be removed
        *([run("simulate", "millrace", "simulate")] if own else []),
        *([run("crm", "millrace", "simulate-crm")] if own and settings.crm_dsn is None else []),
    ]


def spark_service(settings: Settings, port: int, env: dict[str, str]) -> Service:
    """The Spark Connect server on a port of 127.0.0.1."""
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
