"""What another account of this machine gets of a running Millrace: the UI, where no token is set, and nothing else."""

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from millrace.platform_defs.local.services import (
    Endpoints,
    environment,
    find_endpoints,
    free_port,
    prepare_home,
    services,
    spark_service,
)
from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.resources.processes import private_files
from millrace.resources.settings import Settings
from millrace.resources.spark.session import SPARK_TOKEN
from tests.support.accounts.strangers import as_stranger

STUB = """
import dagster as dg
defs = dg.Definitions(executor=dg.in_process_executor)
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
    # not below pytest's own folder, which nobody else may enter
    with TemporaryDirectory(prefix="millrace-other-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "home"


def test_spark_serves_only_those_who_have_the_token(
    spark_remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = spark_remote.partition("/;")[0]
    refused = as_stranger(SPARK_CLIENT, f"{address}/;token=wrong")
    assert "a session" not in refused.stdout
    assert "UNAUTHENTICATED" in refused.stderr
    refused = as_stranger(SPARK_CLIENT, address)
    assert "a session" not in refused.stdout
    # the same client is served with the token
    assert "a session" in as_stranger(SPARK_CLIENT, f"{address}/;token={os.environ[SPARK_TOKEN]}").stdout
    monkeypatch.delenv(SPARK_TOKEN)
    with pytest.raises(ValueError, match="without SPARK_CONNECT_AUTHENTICATE_TOKEN would serve every account"):
        spark_service(Settings(home=tmp_path), 1, dict(os.environ))


def test_spark_is_told_no_dsn_and_no_token_of_the_ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_UI_TOKEN", "a-token-of-this-test")
    # runs do what users declare: they need not know where alerts go
    monkeypatch.setenv("MILLRACE_ALERT_URL", "https://hooks.example.com/a-token-of-this-test")
    monkeypatch.setenv("MILLRACE_ALERT_SECRET", "whsec_a-token-of-this-test")
    settings = Settings(home=tmp_path, dsn="postgresql://u:hunter2@somewhere/x", port=free_port())
    endpoints = Endpoints(
        str(settings.dsn), str(settings.dsn), tmp_path / "s", "sc://localhost:1", 1, None, spark_token="of-spark"
    )
    env = environment(settings, endpoints)
    spark = spark_service(settings, 1, {**env, "MILLRACE_CRM_DSN": str(settings.dsn)})
    assert "hunter2" not in str(spark.env)
    assert "of-spark" not in str(spark.argv)
    listed = {service.name: service for service in services(settings, endpoints)}
    for variable, whose in (("UI_TOKEN", "web"), ("ALERT_URL", "sequence"), ("ALERT_SECRET", "sequence")):
        assert [name for name, service in listed.items() if f"MILLRACE_{variable}" in service.env] == [whose]
    for service in listed.values():
        assert not any(word in str(service.argv) for word in ("hunter2", "of-spark", "a-token-of-this-test"))


def test_the_code_server_and_the_files_are_ours_alone(home: Path, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "stub_definitions.py").write_text(STUB)
    with private_files():
        home.mkdir()
        # as somebody may have made it
        (home / "code").mkdir()
        (home / "code").chmod(0o777)
        settings = Settings(home=home, dsn=dsn, port=free_port())
        endpoints = find_endpoints(settings, None)
        prepare_home(settings, endpoints)
        chosen = [service for service in services(settings, endpoints) if service.name in {"code", "web"}]
        for _ in range(2):  # the second one finds the socket that the first one left
            with Supervisor(home, [stubbed(service, tmp_path) for service in chosen]) as supervisor:
                processes = [psutil.Process(state.pid) for state in supervisor.states()]
                family = {*processes, *(child for each in processes for child in each.children(recursive=True))}
                names = {str(c.laddr) for each in family for c in each.net_connections("unix")}
                sockets = {name for name in names if name.startswith("/")}
                assert str(endpoints.code_socket) in sockets
                ports = {c.laddr.port for each in family for c in each.net_connections("inet") if c.status == "LISTEN"}
                assert ports == {settings.port}
                assert as_stranger(CONNECT, *sockets).stdout == ""
                assert "an answer" not in as_stranger(CODE_CLIENT, endpoints.code_socket).stdout
                secret = [f"/proc/{each.pid}/environ" for each in family]
                # whoever may enter may not look: the home may be one that others have to pass
                home.chmod(0o711)
                files = [path for path in home.rglob("*") if not path.is_socket()]
                said = as_stranger(READ, *secret, home, *files)
                assert (said.stdout, said.returncode) == ("", 0), said.stderr
    assert {oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in files if path.exists()} == {"0o0"}


def stubbed(service: Service, folder: Path) -> Service:
    stub = {"millrace.platform_defs.definitions": "stub_definitions", str(Path.cwd()): str(folder)}
    assert service.argv[0].startswith(str(Path(sys.executable).parent))
    return replace(service, argv=tuple(stub.get(word, word) for word in service.argv))
