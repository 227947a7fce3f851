"""A password in the DSN is in no file that Spark writes."""

import os
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.local.services import free_port, shared_session, spark_service
from millrace.platform_defs.local.supervisor import Supervisor
from millrace.settings import Settings
from millrace.spark.java import find_java
from millrace.spark.session import SPARK_TOKEN
from tests.support.building.drains import busiest, fill
from tests.support.building.spark_places import build_at
from tests.support.project import PROJECT

PASSWORD = "hunter2-of-this-test"
DEFAULTS = """\
spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir {}
"""


def test_the_event_log_of_a_spark_server_has_no_password(things: PlatformStore, dsn: str, tmp_path: Path) -> None:
    fill(things, 200)
    things.sequence_events()
    (tmp_path / "conf").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS.format(tmp_path / "log"))
    parts = conninfo_to_dict(dsn)
    # the two ways to write a password, which this server does not ask for
    ways = (
        f"postgresql://postgres:{PASSWORD}@/{parts['dbname']}?host={parts['host']}",
        f"dbname={parts['dbname']} host={parts['host']} user=postgres password='{PASSWORD}'",
    )
    settings, port = Settings(home=tmp_path / "home"), free_port()
    env = {
        **os.environ, "JAVA_HOME": str(find_java(settings.home / "java").home), "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT), "SPARK_CONF_DIR": str(tmp_path / "conf"), SPARK_TOKEN: "a-token-of-this-test",
    }  # fmt: skip
    with Supervisor(settings.home, [spark_service(settings, port, env)]):
        for number, way in enumerate(ways):
            (folder := tmp_path / str(number)).mkdir()
            build_at({**env, "SPARK_REMOTE": shared_session(port)}, way, folder, {}, busiest(things))
    written = b"".join(file.read_bytes() for file in (tmp_path / "log").rglob("*") if file.is_file())
    assert b"event_log" in written
    assert PASSWORD.encode() not in written
    logs = b"".join(file.read_bytes() for file in settings.home.rglob("*.log"))
    assert PASSWORD.encode() not in logs
