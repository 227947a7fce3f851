"""Which services `millrace up` runs on this machine, and the name of each.

    spark      Spark Connect, warm across runs; not started if SPARK_REMOTE or SPARK_MASTER is set
    sequence   gives committed events their positions
    code       loads the definitions; runs are its children
    web        the UI
    daemon     sensors, schedules, run queue; the UI knows whether it lives

After these come the services of the package of declarations, if it has a `services.py`. Dagster is three services and
not `dagster dev`: a crash of the UI then ends no run, Dagster takes 130 MB less, and is up three seconds earlier. All
services work in the folder that `millrace up` was started in, and find a package of declarations there.

Other accounts of this machine reach 127.0.0.1, too. A client of Spark or of the code server can run code as we do:
Spark requires a token, and the code server listens in a folder that only we may enter. The UI has its gate
(`millrace.platform_defs.gate`).
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from millrace.assets.declarations import Fault, fault_in, load_part
from millrace.errors import MillraceError, Unreachable
from millrace.handlers.receivers import SECRETS
from millrace.platform_defs.dagster_internals.web import gated
from millrace.platform_defs.local.answers import DaemonBeats, code_answers, sequencer_answers, spark_answers
from millrace.platform_defs.local.supervisor import Service
from millrace.platform_defs.local.surroundings import PROGRAMS, Surroundings
from millrace.postgres.connecting import connect
from millrace.postgres.dsn import DATABASE
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.postgres.logins import DRAIN, owned_database
from millrace.processes import folder_of_code
from millrace.redact import masked
from millrace.settings import PACKAGE, THIS_MACHINE, Settings
from millrace.spark.java import find_java
from millrace.spark.session import (
    LOCAL_CONFIGURATION,
    ONE_MACHINE,
    REDACTION,
    SESSION_CONFIGURATION,
    SPARK_TOKEN,
    local_master,
)

LOOPBACK = "127.0.0.1"
# the ports for services; they end where those begin that Linux gives to a program that asks for any
FIRST_PORT, PORTS = 20_000, 12_768
# A client shows its token to this name without TLS, and not to 127.0.0.1.
LOOPBACK_OF_SPARK = "localhost"
# Not for Spark's server, which does not need them: each session there can read its environment.
NOT_FOR_SPARK = ("MILLRACE_", "DAGSTER_", "SPARK_REMOTE", "SPARK_MASTER")
# secrets that one service needs, and no run needs
OF_ALERTS = ("MILLRACE_ALERT_URL", "MILLRACE_ALERT_SECRET")
NOT_FOR_ALL = {"MILLRACE_UI_TOKEN", *OF_ALERTS}
# Linux allows 107 bytes for the path of a unix socket.
SOCKET_PATH_BYTES = 103
# the last line of a file that each start writes anew
SEAL = "# `millrace up` writes this file anew until somebody changes it; of the lines above: sha256 "
logger = logging.getLogger(__name__)

SPARK_CONF = {
    **SESSION_CONFIGURATION,
    **REDACTION,
    **LOCAL_CONFIGURATION,
    **ONE_MACHINE,
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.log.level": "WARN",
    "spark.connect.session.manager.defaultSessionTimeout": "-1",
}


@dataclass(frozen=True)
class Endpoints:
    """Where the servers are: those that we start and those of the user."""

    # The event store as services and runs reach it.
    dsn: str
    dagster_dsn: str
    # Where the code server listens: in a folder that only we may enter.
    code_socket: Path
    # None for a Spark without Connect: SPARK_MASTER is set.
    spark_remote: str | None
    # None for a Spark that we do not run.
    spark_port: int | None
    java_home: Path | None
    # None where the event store is the user's.
    postgres: EmbeddedPostgres | None = None
    # Required by Spark, if it is ours: a session there may do everything that we may.
    spark_token: str | None = field(default=None, repr=False)

    @property
    def operator_dsn(self) -> str:
        """The event store's DSN for migrations and for operators."""
        return self.dsn if self.postgres is None else self.postgres.dsn(DATABASE)


def find_endpoints(settings: Settings, postgres: EmbeddedPostgres | None) -> Endpoints:
    """Settle databases, ports and Java; create the databases that are ours.

    Raises:
        JavaNotFound: Spark is to run here, but there is no Java for it.
        Unreachable: The user's Postgres does not answer.
    """
    remote, master = os.environ.get("SPARK_REMOTE"), os.environ.get("SPARK_MASTER")
    spark_port = None if remote or master else free_port()
    java_home = None if remote else find_java(settings.home / "java").home
    if spark_port is not None:
        # all runs share one session, see millrace/spark/session.py
        remote = shared_session(spark_port)
    if postgres is not None:
        postgres.create_database(DATABASE)
        dsn, dagster_dsn = postgres.dsn(DATABASE, DRAIN), owned_database(postgres, "dagster")
    else:
        dsn = str(settings.dsn)
        dagster_dsn = os.environ.get("MILLRACE_DAGSTER_DSN") or _schema_for_dagster(dsn)
    token = None if spark_port is None else secrets.token_urlsafe(32)
    code_socket = settings.home / "code" / "socket"
    if len(os.fsencode(code_socket)) <= SOCKET_PATH_BYTES:
        code_socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # also if the folder was made with other permissions
        code_socket.parent.chmod(0o700)
    else:
        code_socket = folder_of_code() / "socket"
    return Endpoints(dsn, dagster_dsn, code_socket, remote, spark_port, java_home, postgres, token)


def _schema_for_dagster(dsn: str) -> str:
    """Make a schema for Dagster in the user's database."""
    try:
        with connect(dsn) as connection:
            # if an operator made it, we need no right to make schemas
            if connection.execute("select from pg_namespace where nspname = 'dagster'").fetchone() is None:
                connection.execute("create schema if not exists dagster")
    except psycopg.ProgrammingError as error:
        if error.sqlstate:
            raise
        # it may be a password: do not quote it
        raise Unreachable("MILLRACE_DSN is unreadable.", hint="Set it to postgresql://… or key=value …") from None
    except psycopg.OperationalError as error:
        raise silent_postgres(error, dsn) from None
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    login = {key: parts.pop(key, None) for key in ("user", "password", "dbname")}
    url = URL.create(
        "postgresql",
        username=login["user"],
        password=login["password"],
        database=login["dbname"],
        query={**parts, "options": f"{parts.get('options', '')} -csearch_path=dagster".strip()},
    )
    return url.render_as_string(hide_password=False)


def silent_postgres(error: psycopg.OperationalError, dsn: str) -> Unreachable:
    """Return the error for a user's Postgres that does not answer."""
    return Unreachable(
        f"The Postgres of MILLRACE_DSN does not answer: {masked(str(error).strip(), dsn)}",
        hint="Start it or correct MILLRACE_DSN; without MILLRACE_DSN an embedded Postgres is used.",
    )


def shared_session(port: int) -> str:
    """Return a `SPARK_REMOTE` for a server of our own, with one session for all its users."""
    return f"sc://{LOOPBACK_OF_SPARK}:{port}/;session_id={uuid4()}"


def free_port() -> int:
    """Find a port of 127.0.0.1 that is free now, below those that Linux gives to a program that asks for any.

    Above, another program could take the port while a service restarts, and would be asked in its place.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = FIRST_PORT + secrets.randbelow(PORTS)
            probe.bind((LOOPBACK, port))
            return port


def prepare_home(settings: Settings, endpoints: Endpoints) -> list[Path]:
    """Put Dagster's instance and workspace files into `<home>/dagster`, and drop the spill files of a killed Spark.

    Returns:
        Those of the two files that were written or changed by others: they stay as they are.
    """
    shutil.rmtree(settings.home / "spark" / "local", ignore_errors=True)
    folder = settings.home / "dagster"
    folder.mkdir(parents=True, exist_ok=True)
    server = {"host": "localhost", "socket": str(endpoints.code_socket), "location_name": "millrace"}
    texts = {
        folder / "dagster.yaml": (PACKAGE / "platform_defs" / "dagster.yaml").read_text(),
        # JSON is YAML.
        folder / "workspace.yaml": json.dumps({"load_from": [{"grpc_server": server}]}) + "\n",
    }
    changed = []
    for path, text in texts.items():
        if os.path.lexists(path):
            before, mark, seal = path.read_text(errors="replace").rpartition(SEAL) if path.is_file() else ("", "", "")
            # its last line does not confirm that we wrote all lines before it
            if not mark or seal.strip() != _digest(before):
                changed.append(path)
                continue
        # a separate name for each process: several may prepare one home
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        fresh.write_text(f"{text}{SEAL}{_digest(text)}\n")
        fresh.replace(path)
    return changed


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def environment(settings: Settings, endpoints: Endpoints) -> dict[str, str]:
    """Return the environment of all services: ours, with the servers' addresses, and without one service's secrets."""
    found = {
        "MILLRACE_HOME": str(settings.home),
        "MILLRACE_DSN": endpoints.dsn,
        "MILLRACE_DAGSTER_DSN": endpoints.dagster_dsn,
        # stated, because unset it would mean no declarations where MILLRACE_DSN is set
        "MILLRACE_DECLARATIONS": settings.declared_package,
        "MILLRACE_LOG_PARTITIONS": str(settings.log_partitions),
        "MILLRACE_ARCHIVE_DIR": str(settings.archive_folder),
        "MILLRACE_KEYS": settings.keys and str(settings.keys),
        "MILLRACE_PUSH_ALLOW": settings.push_allow or (endpoints.postgres and THIS_MACHINE),
        "DAGSTER_HOME": str(settings.home / "dagster"),
        "SPARK_REMOTE": endpoints.spark_remote,
        SPARK_TOKEN: endpoints.spark_token,
        "JAVA_HOME": endpoints.java_home and str(endpoints.java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", os.defpath)]),
    }
    inherited = {
        name: value for name, value in os.environ.items() if name not in NOT_FOR_ALL and not name.startswith(SECRETS)
    }
    return {**inherited, **{name: value for name, value in found.items() if value}}


def services(settings: Settings, endpoints: Endpoints) -> list[Service]:
    """List the services in the order of their start, those of the package of declarations after ours.

    Raises:
        MillraceError: A service of the package has the name of another service.
    """
    env = environment(settings, endpoints)
    here = Surroundings(endpoints.dsn, settings.home, Path.cwd(), env, endpoints.postgres)
    # first, because they may add to the environment
    declared = declared_services(settings.declared_package, here)
    workspace = str(settings.home / "dagster" / "workspace.yaml")
    # never the folder of Millrace: its `assets` would shadow the user's
    module = ("-m", "millrace.platform_defs.definitions", "-d", str(here.folder))
    # the server's child ends after a day without a sign of the proxy before it, which is longer than any pause; the
    # supervisor ends the processes that a dead proxy leaves
    alone = ("--heartbeat-ttl", "86400")
    code = ("code-server", "start", *module, "--socket", str(endpoints.code_socket), *alone)
    gated_ui = "millrace.platform_defs.dagster_internals.web"
    web = ("-m", gated_ui, "-w", workspace, "-h", LOOPBACK, "-p", str(settings.port))
    token = settings.ui_secret
    url = f"http://{LOOPBACK}:{settings.port}"
    built_in = [
        *([spark_service(settings, endpoints.spark_port, env)] if endpoints.spark_port else []),
        replace(
            here.run("sequence", "millrace", "run", "sequencer", ready=partial(sequencer_answers, endpoints.dsn)),
            # runs execute users' code, and need not know where alerts go
            env={**env, **{name: os.environ[name] for name in OF_ALERTS if name in os.environ}},
        ),
        # Runs are its children: on TERM they release their leases, which may take a commit's time.
        replace(
            here.run("code", "dagster", *code, ready=partial(code_answers, endpoints.code_socket), stop_s=30),
            # secrets that URLs of pushes may name: only runs push
            env={**env, **{name: value for name, value in os.environ.items() if name.startswith(SECRETS)}},
        ),
        replace(
            here.run("web", "python", *web, ready=partial(gated, url, token)),
            env=env if token is None else {**env, "MILLRACE_UI_TOKEN": token},
        ),
        here.run("daemon", "dagster-daemon", "run", "-w", workspace, ready=DaemonBeats(url, token)),
    ]
    names = [service.name for service in (*built_in, *declared)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise MillraceError(
            f"There are two services named {min(twice)!r}.",
            hint=f"Give the one in {settings.declared_package}.services another name.",
        )
    return [*built_in, *declared]


def declared_services(package: str | None, here: Surroundings) -> list[Service]:
    """Ask a package of declarations for its own services.

    If `services.py` fails, only its services are missing: the log says where it fails.
    """
    module = load_part(package, "services")
    if package is None or module is None:
        return []
    fault = module if isinstance(module, Fault) else None
    if not isinstance(module, Fault):
        try:
            return [*module.services(here)]
        except Exception as error:  # noqa: BLE001  any error of a user's function
            fault = fault_in(package, "services", error)
    logger.error("The services of %s are not started: %s", package, fault)
    return []


def spark_service(settings: Settings, port: int, env: dict[str, str]) -> Service:
    """Describe the Spark Connect server on a port of 127.0.0.1; its clients show the token of `env`."""
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
    options = ("--master", local_master(settings), "--driver-memory", "1g")
    pairs = (word for key, value in conf.items() for word in ("--conf", f"{key}={value}"))
    if not env.get(SPARK_TOKEN):
        raise ValueError(f"a Spark Connect server without {SPARK_TOKEN} would serve every account of this machine")
    inherited = {name: value for name, value in env.items() if not name.startswith(NOT_FOR_SPARK)}
    return Service(
        name="spark",
        argv=(str(spark_home / "bin" / "spark-submit"), *server, *options, *pairs),
        # Spark looks up the machine's own name, which need not resolve
        env={"SPARK_LOCAL_HOSTNAME": "localhost", **inherited, "SPARK_HOME": str(spark_home)},
        # a separate session: the health check must not end with a run's session
        ready=partial(spark_answers, f"{LOOPBACK}:{port}", env[SPARK_TOKEN], str(uuid4())),
        cwd=folder,
    )
