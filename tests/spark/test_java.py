"""Finding a Java, and that Spark really runs on the one from PyPI. Not here: what Spark computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.resources.spark import java
from millrace.resources.spark.java import JavaNotFound, find_java

COUNT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version")
    print("rows", spark.range(1000).filter("id % 2 = 0").count(), "on", home)
finally:
    spark.stop()
"""


def fake_java(folder: Path, version: str) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    script.chmod(0o755)
    return folder


def without_java(tmp_path: Path) -> str:
    empty = tmp_path / "empty"
    empty.mkdir(exist_ok=True)
    return str(empty)


def test_the_java_of_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.4")
    found = find_java(tmp_path / "shim", {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})
    assert (found.home, found.version) == (home, 21)


def test_a_java_on_path_is_used_in_place_of_a_too_old_java_home(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    good = fake_java(tmp_path / "good", "17.0.15")
    found = find_java(tmp_path / "shim", {"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert (found.home, found.version) == (good, 17)


def test_a_linked_java_gives_its_real_home(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "jdk-17", "17")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(good / "bin" / "java")
    assert find_java(tmp_path / "shim", {"PATH": str(links)}).home == good


def test_the_home_found_holds_a_java(tmp_path: Path) -> None:
    found = find_java(tmp_path / "shim")
    assert (found.home / "bin" / "java").exists()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "22"])
def test_a_java_that_spark_refuses_is_named_in_one_sentence(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    old = fake_java(tmp_path / "old", version)
    with pytest.raises(JavaNotFound, match=r"17 or 21, but JAVA_HOME gives .*, Java (8|11|22)\.\nInstall"):
        find_java(tmp_path / "shim", {"JAVA_HOME": str(old), "PATH": without_java(tmp_path)})


def test_a_broken_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(JavaNotFound, match="no working Java"):
        find_java(tmp_path / "shim", {"JAVA_HOME": str(tmp_path), "PATH": without_java(tmp_path)})


def test_no_java_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(JavaNotFound, match="but there is no Java"):
        find_java(tmp_path / "shim", {"PATH": without_java(tmp_path)})


def test_spark_counts_on_the_java_of_pypi(tmp_path: Path) -> None:
    # No `java` on PATH, but what spark-class itself calls.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "head", "ps", "env"):
        (tools / tool).symlink_to(next(p / tool for p in map(Path, os.get_exec_path()) if (p / tool).exists()))
    found = find_java(tmp_path / "it's a shim", {"PATH": str(tools)})
    assert found.home == tmp_path / "it's a shim"
    env = {"PATH": str(tools), "JAVA_HOME": str(found.home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"rows 500 on {found.version}" in done.stdout, done.stderr
