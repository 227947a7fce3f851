"""Spark runs on the Java of PyPI if no other Java is installed."""

import os
import sys
from pathlib import Path

from millrace.spark.java import find_java
from tests.support.running.programs import ran

COUNT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version")
    print("rows", spark.range(1000).filter("id % 2 = 0").count(), "on", home)
finally:
    spark.stop()
"""


def test_spark_counts_on_the_java_of_pypi(tmp_path: Path) -> None:
    # no `java` on PATH, only the programs that spark-class itself calls
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "head", "ps", "env"):
        (tools / tool).symlink_to(next(p / tool for p in map(Path, os.get_exec_path()) if (p / tool).exists()))
    found = find_java(tmp_path / "it's a shim", {"PATH": str(tools)})
    assert found.home == tmp_path / "it's a shim"
    env = {"PATH": str(tools), "JAVA_HOME": str(found.home), "PYSPARK_PYTHON": sys.executable}
    done = ran(sys.executable, "-W", "ignore", "-c", COUNT, env=env, cwd=tmp_path)
    assert f"rows 500 on {found.version}" in done.stdout, done.stderr
