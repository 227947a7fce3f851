"""Sessions: which one is opened, which call closes it, what stays on the server."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit
from uuid import uuid4

import psutil
import pytest

from millrace.errors import Unreachable
from millrace.processes import alive
from millrace.settings import Settings
from millrace.spark.session import SPARK_TOKEN, local_master, session_for, share_of, spark_session
from tests.support.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession


def python_daemons(port: int) -> int:
    """Count the Python processes that the Spark of a port keeps to fork workers from."""
    (server,) = [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,) and connection.pid
    ]
    children = [child for child in psutil.Process(server).children(recursive=False) if alive(child)]
    return sum("pyspark.daemon" in " ".join(child.cmdline()) for child in children)


def count_in_python(spark: "SparkSession") -> int:
    return spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count()


def test_sessions_that_share_their_name_leave_no_processes_behind(spark_remote: str) -> None:
    port = urlsplit(spark_remote).port or 0
    with spark_session() as spark:
        assert count_in_python(spark) == 10
    before = python_daemons(port)
    assert before > 0
    for _ in range(5):
        with spark_session() as spark:
            assert count_in_python(spark) == 10
    # each session would leave one; other tests use the server too, and may begin sessions meanwhile
    assert python_daemons(port) < before + 5


def test_a_run_takes_as_many_cores_as_its_master_allows() -> None:
    assert [share_of(master, Settings(cores=9)) for master in ("local[*]", "yarn", "k8s://host")] == [{}] * 3
    assert share_of("spark://a:7077,b:7077", Settings()) == {"spark.cores.max": "4"}
    assert share_of("spark://a:7077", Settings(cores=9)) == {"spark.cores.max": "9"}
    assert [local_master(Settings()), local_master(Settings(cores=9))] == ["local[*]", "local[9]"]


def test_only_a_session_of_ones_own_is_released(spark_remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with spark_session() as shared:
        assert not cast("ConnectSession", shared).release_session_on_close
    monkeypatch.setenv("SPARK_REMOTE", spark_remote.partition("/;")[0])
    with spark_session() as own:
        assert cast("ConnectSession", own).release_session_on_close
        assert own.client._session_id not in spark_remote


def test_after_a_closed_session_all_share_the_next_one(spark_remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses the id of a closed session for as long as it lives."""
    monkeypatch.setenv("SPARK_REMOTE", f"{spark_remote.partition('/;')[0]}/;session_id={uuid4()}")
    ids = []
    for _ in range(3):
        with spark_session() as one, spark_session() as other:
            assert (one.range(3).count(), other.range(3).count()) == (3, 3)
            client = cast("ConnectSession", one).client
            ids.append({client._session_id, cast("ConnectSession", other).client._session_id})
            client.release_session()
    assert [len(same) for same in ids] == [1, 1, 1]
    assert len(set.union(*ids)) == 3


@pytest.mark.parametrize(
    ("variable", "address", "sentence"),
    [
        ("SPARK_REMOTE", "sc://127.0.0.1:1", "No Spark Connect server answers"),
        (
            "SPARK_MASTER",
            "spark://127.0.0.1:1,127.0.0.1:2",
            "No Spark master answers at spark://127.0.0.1:1,127.0.0.1:2",
        ),
        ("SPARK_MASTER", "k8s://https://127.0.0.1:1", "No Spark master answers at k8s://https://127.0.0.1:1"),
    ],
)
def test_a_missing_server_is_said(monkeypatch: pytest.MonkeyPatch, variable: str, address: str, sentence: str) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv(variable, address)
    with pytest.raises(Unreachable, match=sentence) as refusal, spark_session():
        pass
    assert "127.0.0.1:1" in f"{refusal.value.detail} {refusal.value.message}"
    assert variable in (refusal.value.hint or "")


def test_a_java_that_does_not_start_is_said_in_a_sentence() -> None:
    opened = "from millrace.platform_defs.cli import main\nfrom millrace.spark import spark_session\n"
    opened += "import millrace.platform_defs.cli as cli\ncli.app = lambda: spark_session().__enter__()\nmain()"
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    arguments = "--driver-java-options -javaagent:/no/such.jar pyspark-shell"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", opened], env=env | {"PYSPARK_SUBMIT_ARGS": arguments},
        capture_output=True, text=True, timeout=patience(), check=False,
    )  # fmt: skip
    assert "/no/such.jar" in done.stderr  # Java's own words
    assert "Spark does not start here.\nJava gateway process exited" in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def test_a_spark_that_starts_says_nothing_and_then_errors_alone() -> None:
    program = """if True:
        from millrace.spark import spark_session
        with spark_session() as spark:
            log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("of.a.test")
            log.warn("it is slow")
            log.error("it is broken")
            print(spark._jvm.java.lang.System.getenv("SPARK_LOCAL_HOSTNAME"))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}, capture_output=True,
        text=True, timeout=patience(), check=True,
    )  # fmt: skip
    *_, first, last = done.stderr.splitlines()
    # the first line is Java's own, before it runs anything
    assert ("incubator" in first, last.partition(" ERROR ")[2]) == (True, "test: it is broken")
    # the machine's own name need not resolve
    assert done.stdout == "localhost\n"


def test_a_token_that_spark_would_not_send_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("SPARK_REMOTE", remote)
        monkeypatch.setenv(SPARK_TOKEN, "t")
        with pytest.raises(Unreachable, match="to localhost only") as refusal, spark_session():
            pass
    assert "Name the server localhost" in str(refusal.value.hint)


def test_a_named_session_is_another_one_for_other_code() -> None:
    named = "sc://127.0.0.1:1/;session_id=0b5c1d9e-0000-4000-8000-000000000001;user_id=me"
    ids = {session_for(Path(code), named, {}) for code in ("a.zip", "b.zip", "a.zip")}
    assert len(ids) == 2
    assert named not in ids
    assert all(each.startswith("sc://127.0.0.1:1/;session_id=") and each.endswith(";user_id=me") for each in ids)
    for other in ("sc://127.0.0.1:1", "sc://127.0.0.1:1/;session_id=mine", f"{named.partition(';user')[0]}0"):
        assert session_for(Path("a.zip"), other, {}) == other
