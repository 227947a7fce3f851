"""The code that a session ships to Spark: ours, the user's, and modules beside it; and the code run after a change."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.spark.session import SPARK_TOKEN
from millrace.spark.shipped_code import PackageMissing, packages_to_ship, shipped_code, with_their_helpers, zip_of
from tests.support.building.drains import thing
from tests.support.building.own_declarations import BUILD_GREETINGS, Place, declare, run_own, unset
from tests.support.factories import rows
from tests.support.project import PROJECT
from tests.support.sql_calls import append_events


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.timeout(600)
def test_a_changed_fold_of_a_package_is_built(
    things: PlatformStore, dsn: str, spark_remote: str, tmp_path: Path
) -> None:
    assert ";session_id=" in spark_remote
    shared = Place({**unset(), SPARK_TOKEN: os.environ[SPARK_TOKEN], "SPARK_REMOTE": spark_remote}, {}, sys.executable)
    append_events(things, [thing("a"), thing("b"), thing("a")])
    things.sequence_events()
    for version, word in enumerate(("hello", "goodbye"), start=1):
        declare(tmp_path, word)
        greetings = tmp_path / "my_platform" / "read_models" / "greetings.py"
        greetings.write_text(greetings.read_text().replace("@fold(", f"@fold(version={version}, "))
        run_own(BUILD_GREETINGS, shared, tmp_path, dsn, "{}")
        built = rows(things.connection, "select thing, word, times from read_models.greetings order by 1")
        assert built == [("a", word, 2), ("b", word, 1)]


def test_declarations_that_cannot_be_brought_along_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert packages_to_ship(None) == packages_to_ship("millrace.examples.shop") == ["millrace"]
    assert packages_to_ship("not_here.declared") == ["millrace", "not_here"]
    with pytest.raises(PackageMissing, match="no package not_here"):
        shipped_code("not_here.declared")
    (tmp_path / "not_here.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PackageMissing, match="a single file"):
        shipped_code("not_here.declared")


def test_what_a_killed_process_left_the_next_one_removes(tmp_path: Path) -> None:
    def made(how: str) -> str:
        program = "import os\nfrom millrace.processes import folder_of_code\n"
        program += f"print(folder_of_code().name, flush=True)\n{how}"
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        told = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
        return told.stdout.strip()

    killed = made("os.kill(os.getpid(), 9)")
    assert [path.name for path in tmp_path.iterdir()] == [killed]
    living = tmp_path / "-".join([*killed.split("-")[:3], str(os.getpid()), "x"])
    living.mkdir()
    assert made("") not in {"", killed}
    assert [*tmp_path.iterdir()] == [living]


def test_the_same_code_makes_the_same_file(tmp_path: Path) -> None:
    packages = {"millrace": [tmp_path / "millrace"]}
    shutil.copytree(PROJECT / "millrace", tmp_path / "millrace")
    code = zip_of(packages)
    for path in tmp_path.rglob("*.py"):
        os.utime(path, (0, 0))
    assert zip_of(packages) == code
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        names = set(archive.namelist())
    assert {
        "millrace/spark/log_source/__init__.py",
        "millrace/read_models/declared/columns.py",
        "millrace/examples/shop/read_models/orders.py",
    } <= names


def test_source_beside_a_package_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        tmp_path, ours__a="import json\nimport pyarrow\nimport file_beside\nfrom . import b",
        ours__b="def late():\n    from beside.deep import x\n    import not_there.at_all", ours__broken="def (",
        file_beside="import beside_again, __main__", beside_again="import ours.a", beside__deep="import with_data.a",
        with_data__a="import of_with_data", of_with_data="x = 1", unused="x = 1",
    )  # fmt: skip
    (tmp_path / "with_data" / "rates.json").write_text("{}")
    ours = {"millrace": [tmp_path / "millrace"], "ours": [tmp_path / "ours"]}
    shipped, left = with_their_helpers(ours)
    assert shipped == ours | {
        "file_beside": [tmp_path / "file_beside.py"], "beside_again": [tmp_path / "beside_again.py"],
        "beside": [tmp_path / "beside"], "of_with_data": [tmp_path / "of_with_data.py"],
    }  # fmt: skip
    assert left == {"with_data": [tmp_path / "with_data"]}

    # modules that are not shipped are imported anew too: each of their states has its own session
    before = zip_of({}, left)
    assert zip_of({}, left) == before
    (tmp_path / "with_data" / "rates.json").write_text('{"eur": 1}')
    assert zip_of({}, left) != before
