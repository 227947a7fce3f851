"""The real services of `millrace up`, one by one: they listen on loopback only, and do not serve another account."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from uuid import uuid4

import psutil
import pytest
import requests

from millrace.platform_defs.local.answers import spark_answers, why_none_load
from millrace.platform_defs.local.asking import CannotTell
from millrace.platform_defs.local.services import find_endpoints, free_port, prepare_home, services
from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.processes import alive, private_files, wait_ended
from millrace.settings import Settings
from millrace.spark.session import SPARK_TOKEN
from tests.support.accounts.strangers import as_stranger
from tests.support.browsing.ui import STUB
from tests.support.patience import patience, wait_until
from tests.support.running.programs import ran

WORKER_IMPORTS = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
def work(batches):
    import millrace.assets, millrace.settings
    yield from batches
print("rows", spark.range(5).mapInArrow(work, "id long").count(), spark.conf.get("spark.sql.session.timeZone"))
spark.stop()
"""
SPARK_CLIENT = """
import sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print("a session", spark.sql("select reflect('java.lang.System', 'getenv', 'PATH')").first())
"""
CODE_CLIENT = """
import sys, grpc
from dagster._grpc.client import DagsterGrpcClient
print("an answer", DagsterGrpcClient(socket=sys.argv[1]).ping("hello"))
"""
READ = """
import os, sys
for path in sys.argv[1:]:
    try:
        print("read", path, os.listdir(path) if os.path.isdir(path) else len(open(path, "rb").read()))
    except PermissionError:
        pass
"""
CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("connected", address)
    except PermissionError:
        pass
"""


@pytest.fixture
def home() -> Iterator[Path]:
    # not below pytest's own folder, which other accounts may not enter
    with TemporaryDirectory(prefix="millrace-other-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "home"


@contextmanager
def started(settings: Settings, chosen: list[Service]) -> Iterator[list[psutil.Process]]:
    with Supervisor(settings.home, chosen) as supervisor:
        leaders = [psutil.Process(state.pid) for state in supervisor.states()]
        yield leaders + [child for leader in leaders for child in leader.children(recursive=True)]


@contextmanager
def failing(settings: Settings, service: Service) -> Iterator[None]:
    supervisor, stop = Supervisor(settings.home, [service]), Event()
    stop.set()
    try:
        supervisor.start(stop=stop)
        yield
    finally:
        supervisor.stop()


def cannot_tell(service: Service) -> bool:
    try:
        service.ready()
    except CannotTell:
        return True
    return False


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    found = set()
    for process in processes:
        if alive(process):
            connections = process.net_connections("inet")
            # an IPv6 socket that is bound to an IPv4 address accepts only that address
            found |= {
                (c.laddr.ip.removeprefix("::ffff:"), c.laddr.port)
                for c in connections
                if c.status == psutil.CONN_LISTEN
            }
    return found


def test_spark_serves_on_loopback_with_the_token_only(home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    settings = Settings(home=home, dsn=dsn)
    endpoints = find_endpoints(settings, None)
    spark = services(settings, endpoints)[0]
    assert endpoints.spark_remote is not None
    address = endpoints.spark_remote.partition("/;")[0]
    monkeypatch.setenv(SPARK_TOKEN, str(endpoints.spark_token))
    with started(settings, [spark]) as processes:
        said = ran(sys.executable, "-c", WORKER_IMPORTS, endpoints.spark_remote, cwd=home)
        assert said.stdout == "rows 5 UTC\n", said.stderr
        assert spark.ready()
        assert not spark_answers(address.removeprefix("sc://"), "wrong", str(uuid4()))
        family = [*processes, *processes[0].children(recursive=True)]
        assert {ip for ip, _ in listening(family)} == {"127.0.0.1"}
        if os.geteuid() == 0:
            refused = as_stranger(SPARK_CLIENT, f"{address}/;token=wrong")
            assert "a session" not in refused.stdout
            assert "UNAUTHENTICATED" in refused.stderr
            assert "a session" not in as_stranger(SPARK_CLIENT, address).stdout
            # the same client is served with the token
            assert "a session" in as_stranger(SPARK_CLIENT, f"{address}/;token={endpoints.spark_token}").stdout
    assert wait_ended(family, 0) == []
    assert not spark.ready()


def test_dagster_serves_another_account_only_the_ui(home: Path, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "stub_definitions.py").write_text(STUB)
    stub = {"millrace.platform_defs.definitions": "stub_definitions", str(Path.cwd()): str(tmp_path)}
    with private_files():
        home.mkdir()
        # as another program may have made it
        (home / "code").mkdir()
        (home / "code").chmod(0o777)
        settings = Settings(home=home, dsn=dsn, port=free_port())
        endpoints = find_endpoints(settings, None)
        prepare_home(settings, endpoints)
        listed = services(settings, endpoints)
        assert {service.argv[0].rpartition("/")[0] for service in listed[-3:]} == {str(Path(sys.executable).parent)}
        chosen = {
            service.name: replace(service, argv=tuple(stub.get(word, word) for word in service.argv))
            for service in listed
        }
        with started(settings, [chosen["code"]]):
            pass  # leave its socket for the next server
        (tmp_path / "stub_definitions.py").write_text("raise ValueError('no')")
        with failing(settings, replace(chosen["code"], ready_s=patience())):
            wait_until(lambda: cannot_tell(chosen["code"]), "it says that its definitions do not load")
            (why,) = why_none_load(endpoints.code_socket)
            assert why.endswith("nothing new starts: ValueError: no")
        (tmp_path / "stub_definitions.py").write_text(STUB)
        with started(settings, [chosen[name] for name in ("code", "web", "daemon")]) as processes:
            query = "{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus } } } }"
            answer = requests.post(
                f"http://127.0.0.1:{settings.port}/graphql", json={"query": query}, timeout=patience()
            ).json()
            entries = answer["data"]["workspaceOrError"]["locationEntries"]
            assert entries == [{"name": "millrace", "loadStatus": "LOADED"}]
            assert sum("grpc" in process.cmdline() for process in processes if alive(process)) == 1
            assert listening(processes) == {("127.0.0.1", settings.port)}
            sockets = {
                str(connection.laddr)
                for process in processes
                if alive(process)
                for connection in process.net_connections("unix")
                if str(connection.laddr).startswith("/")
            }
            assert str(endpoints.code_socket) in sockets
            # others may pass through the home, but not list it
            home.chmod(0o711)
            files = [path for path in home.rglob("*") if not path.is_socket()]
            if os.geteuid() == 0:
                assert as_stranger(CONNECT, *sockets).stdout == ""
                assert "an answer" not in as_stranger(CODE_CLIENT, endpoints.code_socket).stdout
                secret = [f"/proc/{process.pid}/environ" for process in processes if alive(process)]
                said = as_stranger(READ, *secret, home, *files)
                assert (said.stdout, said.returncode) == ("", 0), said.stderr
            # the code server's proxy lives, and listens
            (definitions,) = [process for process in processes if alive(process) and "grpc" in process.cmdline()]
            assert chosen["code"].ready()
            assert why_none_load(endpoints.code_socket) == []
            definitions.kill()
            assert not chosen["code"].ready()
            assert why_none_load(endpoints.code_socket) == []
            modes = {oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in files if path.exists()}
        assert wait_ended(processes, 0) == []
    assert modes == {"0o0"}
