"""The same rows wherever Spark runs: in this process, behind Spark Connect, on a standalone cluster.

The cluster is real: a master and two workers on loopback. Its Python has every package but ours, and its processes
work in separate folders, so tasks can import our code only from the session.
"""

import json
import os
import sys
import sysconfig
import venv
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.local.services import free_port
from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.settings import Settings
from millrace.spark.java import find_java
from millrace.spark.session import SPARK_TOKEN, require_master
from tests.long import LONG
from tests.support.building.drains import assert_equals_a_clean_run, busiest, fill, thing
from tests.support.building.own_declarations import BUILD_GREETINGS, Place, declare, run_own, unset
from tests.support.building.spark_places import build_at
from tests.support.factories import rows
from tests.support.running.programs import ran
from tests.support.sql_calls import append_events

EVENTS = 400
# six JVMs that live for a minute: optimizing compilation does not pay off
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# settings for workers of 512 MB and a driver on loopback
CLUSTER = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.executor.memory": "512m", "spark.cores.max": "2", "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS, "spark.driver.extraJavaOptions": JAVA_OPTIONS,
}  # fmt: skip


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Python that has the packages that we need, but not this project."""
    home = tmp_path_factory.mktemp("python")
    venv.create(home, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # Python searches a path that a .pth file names, but ignores .pth files there, such as an editable installation's
    specs = map(find_spec, ("pyspark", "pyarrow", "psycopg", "adbc_driver_postgresql"))
    found = {str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin}
    (packages / "packages.pth").write_text("\n".join(found) + "\n")
    python = home / "bin" / "python"

    env = {"PATH": os.defpath}
    ran(python, "-c", "import pyspark, pyarrow, psycopg, adbc_driver_postgresql", cwd=home, env=env)
    for module in ("millrace", "tests"):
        assert "ModuleNotFoundError" in ran(python, "-c", f"import {module}", code=1, cwd=home, env=env).stderr
    return python


@pytest.fixture(scope="module")
def master(stranger: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("cluster")
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    port = free_port()
    env = {
        "PATH": os.environ["PATH"], "JAVA_HOME": str(find_java(Settings(home=home).home / "java").home),
        "SPARK_HOME": str(spark_home), "SPARK_LOCAL_DIRS": str(home / "local"), "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS, "PYSPARK_PYTHON": str(stranger),
    }  # fmt: skip

    def service(name: str, *arguments: str) -> Service:
        folder = home / name
        folder.mkdir()
        program = (str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}")
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        ready = partial(_said, home / "logs" / f"{name}.log", "I have been elected leader", "Successfully registered")
        return Service(name, (*program, *address, *arguments[1:]), env, ready, cwd=folder)

    url = f"spark://127.0.0.1:{port}"
    worker = ("worker.Worker", "--cores", "1", "--memory", "512m", "--port", "0", "--work-dir")
    services = [
        service("master", "master.Master", "--port", str(port)),
        *(service(name, *worker, str(home / name / "work"), url) for name in ("worker-1", "worker-2")),
    ]
    with Supervisor(home, services):
        yield url


def _said(log: Path, *words: str) -> bool:
    return log.exists() and any(word in log.read_text(errors="replace") for word in words)


@pytest.fixture(params=[pytest.param("local", marks=LONG), pytest.param("connect", marks=LONG), "cluster"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each place where Spark may run, set by the environment."""
    clean = unset()
    if request.param == "connect":
        # a new session, not the shared one
        remote = str(request.getfixturevalue("spark_remote")).partition("/;")[0]
        return Place({**clean, "SPARK_REMOTE": remote, SPARK_TOKEN: os.environ[SPARK_TOKEN]}, {}, sys.executable)
    if request.param == "cluster":
        stranger = str(request.getfixturevalue("stranger"))
        defaults = tmp_path / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text("spark.sql.shuffle.partitions 7\n")
        env = {
            **clean,
            "SPARK_MASTER": request.getfixturevalue("master"),
            "PYSPARK_PYTHON": stranger,
            "SPARK_CONF_DIR": str(defaults.parent),
        }
        return Place(env, CLUSTER, stranger)
    return Place(clean, {}, sys.executable)


@pytest.mark.timeout(600)  # a cluster and its application on a busy machine
def test_rows_are_the_same_wherever_spark_runs(things: PlatformStore, dsn: str, place: Place, tmp_path: Path) -> None:
    fill(things, EVENTS)
    things.sequence_events()
    log = rows(
        things.connection,
        "select l.partition, l.position, e.decider_id, e.event, e.data->>'text'"
        ' from event_store.event_log l join event_store.events e using ("offset") order by 1, 2',
    )
    built = build_at(place.env, dsn, tmp_path, place.configuration, busiest(things))
    assert list(map(tuple, built.batch)) == log
    assert list(map(tuple, built.stream)) == log
    assert_equals_a_clean_run(things)
    assert {python for _, _, python in built.origins} == {place.python}
    if "SPARK_MASTER" not in place.env:
        assert built.sizes == [2, len(os.sched_getaffinity(0)), 9, 500_000]
    else:
        # by the cluster's configuration: two workers of one core each
        assert built.sizes == [7, 2, 6, 500_000]
        # both workers took part, with the code of the session
        assert len({folder for _, folder, _ in built.origins}) == 2
        assert all(file.startswith("./millrace-") for file, _, _ in built.origins)


@pytest.mark.timeout(600)
def test_a_users_fold_is_brought_by_the_session(things: PlatformStore, dsn: str, place: Place, tmp_path: Path) -> None:
    append_events(things, [thing("a"), thing("b"), thing("a")])
    things.sequence_events()
    declare(tmp_path, "hello")
    run_own(BUILD_GREETINGS, place, tmp_path, dsn, json.dumps(place.configuration))
    built = rows(things.connection, "select thing, word, times from read_models.greetings order by 1")
    assert built == [("a", "hello", 2), ("b", "hello", 1)]


def test_an_address_is_enough_of_several_masters(master: str) -> None:
    require_master(master.replace("spark://", "spark://127.0.0.1:1,"))
    require_master("yarn")
