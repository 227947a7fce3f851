"""Finding a Java: which one is taken, and the error if there is none that Spark runs on."""

import os
from pathlib import Path

import pytest

from millrace.spark import java
from millrace.spark.java import JavaNotFound, find_java


def fake_java(folder: Path, version: str) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    script.chmod(0o755)
    return folder


def test_java_home_comes_first_then_path_and_then_the_one_of_pypi(tmp_path: Path) -> None:
    new, good = fake_java(tmp_path / "new", "21.0.4"), fake_java(tmp_path / "good", "17.0.15")
    old, links = fake_java(tmp_path / "old", "1.8.0_402"), tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(good / "bin" / "java")
    for java_home, path, home, version in (
        (new, os.environ["PATH"], new, 21),
        (old, str(good / "bin"), good, 17),
        (old, str(links), good, 17),
    ):
        found = find_java(tmp_path / "shim", {"JAVA_HOME": str(java_home), "PATH": path})
        assert (found.home, found.version) == (home, version)
    assert (find_java(tmp_path / "shim").home / "bin" / "java").exists()


def test_a_java_that_does_not_do_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    empty = tmp_path / "empty"
    empty.mkdir()
    for version, shown in (("1.8.0_402", 8), ("11.0.2", 11), ("22", 22)):
        refused = {"JAVA_HOME": str(fake_java(tmp_path / version, version)), "PATH": str(empty)}
        with pytest.raises(JavaNotFound, match=rf"17 or 21, but JAVA_HOME gives .*, Java {shown}\.\nInstall"):
            find_java(tmp_path / "shim", refused)
    with pytest.raises(JavaNotFound, match="no working Java"):
        find_java(tmp_path / "shim", {"JAVA_HOME": str(tmp_path), "PATH": str(empty)})
    with pytest.raises(JavaNotFound, match="but there is no Java"):
        find_java(tmp_path / "shim", {"PATH": str(empty)})
