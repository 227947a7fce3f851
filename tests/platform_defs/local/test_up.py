"""`millrace up` in a process of its own, with tiny services, and its real services one by one.

Not here: the supervisor's own cases (`test_supervisor.py`) and what our definitions do.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import requests

from millrace.platform_defs.local.services import (
    Endpoints,
    find_endpoints,
    free_port,
    prepare_home,
    services,
)
from millrace.platform_defs.local.supervisor import Service, Supervisor, end_leftovers
from millrace.platform_defs.local.up import CannotStart, open_to_others, up, where_to_look
from millrace.platform_defs.storage import PooledPostgresStorage
from millrace.resources.errors import Unreachable
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.processes import alive, wait_ended
from millrace.resources.settings import PROJECT, Settings
from millrace.resources.spark import java
from millrace.resources.spark.java import JavaNotFound
from millrace.resources.spark.session import SPARK_TOKEN

RUN_UP = """
import sys
sys.path.insert(0, sys.argv[1])
import test_up
from millrace.platform_defs.local.up import up
from millrace.resources.errors import MillraceError
from millrace.resources.settings import Settings
try:
    up(Settings(), status=lambda: ["view orders: lag 0"], make_services=test_up.tiny_services)
except MillraceError as error:
    sys.exit(f"Refused: {error}")
"""
ALL_STARTED = "tiny ready, second ready"
STUB = """
import dagster as dg

@dg.asset
def greeting():
    return 1

defs = dg.Definitions(assets=[greeting], executor=dg.in_process_executor)
"""
WORKER_IMPORTS = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
def work(batches):
    import millrace.assets, millrace.resources.settings
    yield from batches
print("rows", spark.range(5).mapInArrow(work, "id long").count(), spark.conf.get("spark.sql.session.timeZone"))
spark.stop()
"""


def tiny_services(_settings: Settings, endpoints: Endpoints) -> list[Service]:
    argv = (sys.executable, "-c", "import signal; signal.pause()")
    env = {**os.environ, "MILLRACE_DSN": endpoints.dsn}
    return [Service(name=name, argv=argv, env=env, ready=lambda: True) for name in ("tiny", "second")]


def deaf() -> list[str]:
    """Be asked to stop, and lose what the signal raises: as Python does where an object is freed."""
    with suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    return []


class Running:
    """A `millrace up` and what it says."""

    def __init__(self, home: Path, port: int, script: str = RUN_UP) -> None:
        env = {**os.environ, "MILLRACE_HOME": str(home), "MILLRACE_PORT": str(port), "COLUMNS": "80"}
        env.pop("MILLRACE_DSN", None)
        command = [sys.executable, "-u", "-c", script, str(Path(__file__).parent)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=PROJECT
        )
        self.said = ""

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return self.said
        pytest.fail(f"it ended without saying {words!r}: {self.said}")

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(60)

    def tree(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_leftovers(tmp_path / "home")
    EmbeddedPostgres(tmp_path / "home" / "postgres").stop()


@contextmanager
def running(home: Path, script: str = RUN_UP) -> Iterator[Running]:
    started = Running(home, free_port(), script)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()
        assert started.process.stdout is not None
        started.process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_ends_everything_and_a_second_run_goes_on(home: Path, how: signal.Signals) -> None:
    postgres = EmbeddedPostgres(home / "postgres")
    with running(home) as first:
        assert "view orders: lag 0" in first.until("view orders")
        with psycopg.connect(postgres.dsn("millrace"), autocommit=True) as connection:
            connection.execute("create table kept ()")
        tree = first.tree()
        assert len(tree) == 3
        assert first.end(how) == 0
        assert wait_ended(tree, 0) == []
        assert postgres.pid() is None
        assert first.said.endswith("Everything is stopped. `make run` goes on where this was.\n")
    with running(home) as second:
        second.until(ALL_STARTED)
        with psycopg.connect(postgres.dsn("millrace")) as connection:
            assert connection.execute("select to_regclass('kept') is not null").fetchone() == (True,)
        assert second.end(how) == 0


def test_a_request_to_stop_is_not_lost_though_its_exception_is(home: Path) -> None:
    with running(home, RUN_UP.replace('lambda: ["view orders: lag 0"]', "test_up.deaf")) as one:
        assert "Everything is stopped" in one.until("Everything is stopped")
        assert one.process.wait(60) == 0


def test_a_second_one_in_the_same_home_is_refused_with_pid_and_address(home: Path) -> None:
    with running(home) as first:
        first.until(ALL_STARTED)
        with running(home) as second:
            said = second.until("Refused")
            assert second.process.wait(60) == 1
            assert f"already runs in {home}: process {first.process.pid}, http://127.0.0.1:" in said
        assert all(alive(process) for process in first.tree())


def test_what_a_killed_one_left_is_ended_and_it_goes_on(home: Path) -> None:
    with running(home) as killed:
        killed.until(ALL_STARTED)
        left = killed.tree()[1:]
        server = EmbeddedPostgres(home / "postgres").pid()
        killed.process.kill()
    assert [alive(process) for process in left] == [True, True]
    with running(home) as after:
        assert "Ended what a killed run had left: second, tiny." in after.until(ALL_STARTED)
        assert wait_ended(left, 0) == []
        # The database server was fine and is gone on with.
        assert EmbeddedPostgres(home / "postgres").pid() == server


def test_a_killed_postgres_is_started_again(home: Path) -> None:
    postgres = EmbeddedPostgres(home / "postgres")
    with running(home) as started:
        started.until(ALL_STARTED)
        pid = postgres.pid()
        assert pid is not None
        psutil.Process(pid).kill()
        started.until("postgres is gone; starting it again")
        postgres.start()
        assert postgres.pid() != pid
        assert started.end(signal.SIGINT) == 0


def test_a_lock_just_taken_is_refused_too(home: Path) -> None:
    home.mkdir()
    with (home / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CannotStart, match=r"already runs in .*: it is just starting"):
            up(Settings(home=home))


@pytest.mark.parametrize("variable", ["MILLRACE_PORT", "MILLRACE_POSTGRES_PORT"])
def test_a_taken_port_is_named_with_the_variable_that_changes_it(home: Path, variable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        named = {"port": free_port(), variable.removeprefix("MILLRACE_").lower(): port}
        with pytest.raises(CannotStart, match=rf"(?s)Port {port} on 127.0.0.1 .*{variable}"):
            up(Settings.model_validate({"home": home, "dsn": None, **named}))


def test_the_dsn_that_is_printed_for_ones_own_tools_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_POSTGRES_PORT", str(free_port()))
    with running(home) as started:
        printed = started.until("  Reading ").splitlines()[-1].split()[-1]
        with psycopg.connect(printed) as tool:
            assert tool.execute("select current_user, count(*) from read_models.declarations").fetchall() == [
                ("millrace_reader", 0)
            ]
        started.until(ALL_STARTED)
        assert started.end(signal.SIGINT) == 0


def test_without_java_nothing_is_left_running(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(JavaNotFound, match="Spark needs Java 17 or 21"):
        up(Settings(home=home, port=free_port(), dsn=None))
    assert EmbeddedPostgres(home / "postgres").pid() is None


def test_a_wrong_dsn_is_one_sentence_that_names_the_variable(home: Path) -> None:
    with pytest.raises(Unreachable, match="The Postgres of MILLRACE_DSN does not answer"):
        up(Settings(home=home, port=free_port(), dsn=f"postgresql://u@/x?host={home}"))


def test_the_first_lines_show_no_password_and_no_token(home: Path) -> None:
    dsn = "postgresql://u:hunter2@db.example.com/x"
    endpoints = Endpoints(dsn, dsn, home / "socket", "sc://localhost:1/", 1, None, spark_token="of-spark")
    for token, line in (
        ("hunter2-of-the-ui", "MILLRACE_UI_TOKEN>"),
        (None, "Other accounts of this machine can use the UI"),
    ):
        settings = Settings.model_validate({"home": home, "dsn": dsn, "ui_token": token})
        said = "\n".join([*where_to_look(settings, endpoints), *open_to_others(settings)])
        assert "postgresql://u:***@db.example.com/x" in said
        assert line in said
        assert "hunter2" not in said
        assert "of-spark" not in said + repr(endpoints)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "Alerts    off; set MILLRACE_ALERT_URL"),
        (
            {"alert_url": "https://hooks.slack.com/hidden", "alert_format": "slack"},
            "to https://hooks.slack.com (slack, not",
        ),
        (
            {"alert_url": "https://a.example.com/hidden", "alert_secret": f"whsec_{'A' * 32}"},
            "to https://a.example.com (st",
        ),
        (
            {"alert_url": "https://a.example.com/hidden", "alert_secret": "hidden"},
            "off: MILLRACE_ALERT_SECRET does not",
        ),
        ({"alert_url": "hidden"}, "off: MILLRACE_ALERT_URL cannot be sent to"),
    ],
)
def test_the_first_lines_say_whether_alerts_are_sent(home: Path, given: dict[str, str], line: str) -> None:
    endpoints = Endpoints("postgresql://u@/x", "postgresql://u@/y", home / "socket", "sc://localhost:1/", 1, None)
    said = "\n".join(where_to_look(Settings.model_validate({"home": home, "dsn": None, **given}), endpoints))
    assert line in said
    assert "hidden" not in said


def test_the_users_postgres_gets_a_schema_for_dagster(home: Path, dsn: str) -> None:
    endpoints = find_endpoints(Settings(home=home, dsn=dsn), None)
    storage = PooledPostgresStorage(endpoints.dagster_dsn)
    assert storage.run_storage.get_runs() == []
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select to_regclass('dagster.runs')::text, to_regclass('public.runs')")
        assert found.fetchone() == ("dagster.runs", None)


def test_a_spark_that_is_elsewhere_is_not_started(home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    settings = Settings(home=home, dsn=dsn)
    endpoints = find_endpoints(settings, None)
    listed = services(settings, endpoints)
    assert [service.name for service in listed] == ["sequence", "code", "daemon", "web"]
    assert {service.env["SPARK_REMOTE"] for service in listed} == {"sc://elsewhere:15002"}


def test_the_examples_customers_are_beside_the_embedded_store_unless_they_are_elsewhere(
    home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    monkeypatch.delenv("MILLRACE_CRM_DSN", raising=False)
    platform = ["sequence", "code", "daemon", "web"]
    with EmbeddedPostgres(home / "postgres") as postgres:
        settings = Settings(home=home, dsn=None)
        endpoints = find_endpoints(settings, postgres)
        for _ in range(2):
            listed = services(settings, endpoints)
        assert [service.name for service in listed] == [*platform, "simulate", "crm"]
        assert {service.env["MILLRACE_CRM_DSN"] for service in listed} == {postgres.dsn("crm", "owner_of_crm")}
        assert {service.env["MILLRACE_DECLARATIONS"] for service in listed} == {"millrace.examples.shop"}
        with psycopg.connect(postgres.dsn("crm")) as connection:
            assert connection.execute("select count(*) from customers").fetchone() == (0,)
            assert connection.execute("show wal_level").fetchone() == ("logical",)

        with monkeypatch.context() as quiet:
            quiet.setenv("MILLRACE_SIMULATE", "false")
            assert [service.name for service in services(settings, endpoints)] == platform

        monkeypatch.setenv("MILLRACE_CRM_DSN", dsn)
        listed = services(settings, endpoints)
        assert {service.env["MILLRACE_CRM_DSN"] for service in listed} == {dsn}
        # nobody writes into a database that is not ours
        assert "crm" not in [service.name for service in listed]
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select to_regclass('customers')").fetchone() == (None,)
    monkeypatch.delenv("MILLRACE_CRM_DSN")
    # nor into a store that is not ours, even if the example is declared for it
    for declarations in (None, "millrace.examples.shop"):
        theirs = Settings(home=home, dsn=dsn, declarations=declarations)
        listed = services(theirs, find_endpoints(theirs, None))
        assert [service.name for service in listed] == platform
        assert all("MILLRACE_CRM_DSN" not in service.env for service in listed)
        assert {service.env.get("MILLRACE_DECLARATIONS") for service in listed} == {declarations}


@contextmanager
def started(settings: Settings, chosen: list[Service]) -> Iterator[list[psutil.Process]]:
    with Supervisor(settings.home, chosen) as supervisor:
        leaders = [psutil.Process(state.pid) for state in supervisor.states()]
        yield leaders + [child for leader in leaders for child in leader.children(recursive=True)]


def listening(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        if alive(process):
            connections = process.net_connections("inet")
            # An IPv6 socket that is bound to an IPv4 address takes that address only.
            found |= {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def test_spark_listens_on_loopback_only_and_its_workers_find_our_packages(
    home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    settings = Settings(home=home, dsn=dsn)
    endpoints = find_endpoints(settings, None)
    spark = services(settings, endpoints)[0]
    assert endpoints.spark_remote is not None
    monkeypatch.setenv(SPARK_TOKEN, str(endpoints.spark_token))
    with started(settings, [spark]) as processes:
        command = [sys.executable, "-c", WORKER_IMPORTS, endpoints.spark_remote]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=home)
        assert said.stdout == "rows 5 UTC\n", said.stderr
        family = [*processes, *processes[0].children(recursive=True)]
        assert listening(family) == {"127.0.0.1"}
    assert wait_ended(family, 0) == []


def test_dagster_serves_one_code_location_on_loopback_only(home: Path, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "stub_definitions.py").write_text(STUB)
    settings = Settings(home=home, dsn=dsn, port=free_port())
    endpoints = find_endpoints(settings, None)
    prepare_home(settings, endpoints)
    stub = {"millrace.platform_defs.definitions": "stub_definitions", str(Path.cwd()): str(tmp_path)}
    chosen = [
        replace(service, argv=tuple(stub.get(word, word) for word in service.argv))
        for service in services(settings, endpoints)
        if service.name in {"code", "daemon", "web"}
    ]
    with started(settings, chosen) as processes:
        query = "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"
        answer = requests.post(f"http://127.0.0.1:{settings.port}/graphql", json={"query": query}, timeout=60).json()
        entries = answer["data"]["workspaceOrError"]["locationEntries"]
        assert entries == [{"name": "millrace", "loadStatus": "LOADED"}]
        assert sum("grpc" in process.cmdline() for process in processes if alive(process)) == 1
        assert listening(processes) == {"127.0.0.1"}
    assert wait_ended(processes, 0) == []
