"""`millrace new`: its refusals and its files. `processes/test_wheel.py` tests that the repository works."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from millrace.assets.declarations import declared
from millrace.errors import MillraceError
from millrace.platform_defs.cli.new.command import make_repository, package_name
from millrace.platform_defs.cli.run import subscriptions_of
from tests.support.command_line import millrace
from tests.support.project import PROJECT

ROOMS = ("events", "read_models", "deciders", "subscriptions", "captures", "defs")
REFUSED = {
    "begins with a letter": ("2026", "---", ""),
    "a word of Python itself": ("class", "match"),
    "There is a module 'json' already": ("json",),
    "There is a module 'millrace' already": ("Millrace",),
    "There is a module 'tests' already": ("tests",),
}


def test_the_package_is_named_after_its_folder_or_refused() -> None:
    folders = {"my_platform": "my_platform", "My Platform": "my_platform", "orders-2026": "orders_2026", "büro": "b_ro"}
    assert {folder: package_name(folder) for folder in folders} == folders
    for why, names in REFUSED.items():
        for name in names:
            with pytest.raises(MillraceError, match=f"(?s){why}.*such as my_platform"):
                package_name(name)


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".hidden").write_text("something")
    (tmp_path / "file").write_text("something")
    for name in ("mine", "file"):
        with pytest.raises(MillraceError, match="is not an empty folder"):
            make_repository(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".hidden", "file", "mine"]
    # nothing is written through a link either
    elsewhere, empty, folder = tmp_path / "elsewhere", tmp_path / "empty", tmp_path / "linked"
    elsewhere.mkdir()
    empty.touch()
    for name, target in (("tests", elsewhere), ("README.md", empty), ("Makefile", tmp_path / "not there")):
        folder.mkdir()
        (folder / name).symlink_to(target)
        with pytest.raises(MillraceError, match="is not an empty folder"):
            make_repository(folder)
        (folder / name).unlink()
        folder.rmdir()
    assert list(elsewhere.iterdir()) == []
    assert empty.read_bytes() == b""
    assert not (tmp_path / "not there").exists()


def test_what_a_stopped_call_left_is_completed(tmp_path: Path) -> None:
    folder = tmp_path / "new_platform"
    make_repository(folder)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    begun = folder / "README.md"
    begun.write_bytes(whole[begun][:10])
    (folder / "pyproject.toml").unlink()
    make_repository(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == whole
    begun.write_text("# Mine\n")
    with pytest.raises(MillraceError, match="is not an empty folder"):
        make_repository(folder)
    assert begun.read_text() == "# Mine\n"


COMMIT = {"vcs": "git", "commit_id": "4f6c1e2"}
ORIGINS: tuple[tuple[object, str], ...] = (
    (None, "millrace==7"),
    ({"url": "file:///opt/millrace", "dir_info": {"editable": True}}, "millrace @ file:///opt/millrace"),
    ({"url": "file:///opt/millrace.whl", "archive_info": {}}, "millrace @ file:///opt/millrace.whl"),
    ({"url": "https://git.ours/millrace", "vcs_info": COMMIT}, "millrace @ git+https://git.ours/millrace@4f6c1e2"),
)


def test_the_repository_requires_the_millrace_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "millrace-7.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: millrace\nVersion: 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    for number, (origin, requirement) in enumerate(ORIGINS):
        if origin is not None:
            (installed / "direct_url.json").write_text(json.dumps(origin))
        make_repository(tmp_path / f"new_platform_{number}")
        project = tomllib.loads((tmp_path / f"new_platform_{number}" / "pyproject.toml").read_text())
        assert project["project"]["dependencies"] == [requirement, "psycopg>=3.3,<4", "pydantic>=2.14,<3"]


def test_it_makes_a_package_that_declares_one_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new_platform"
    assert f"cd {folder} && make run" in millrace("new", folder)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        ".gitignore", "Makefile", "README.md", "constraints.txt", "first_events.sql", "pyproject.toml",
        *(f"tests/test_{tested}.py" for tested in ("orders", "order", "confirmations")),
        "new_platform/__init__.py",
        *(f"new_platform/{room}/__init__.py" for room in ROOMS),
        "new_platform/read_models/orders.py",
        "new_platform/deciders/order.py",
        "new_platform/events/order.py",
        "new_platform/subscriptions/confirmations.py",
    }  # fmt: skip
    assert (folder / "constraints.txt").read_text() == (PROJECT / "constraints.txt").read_text()
    for file in folder.rglob("*.py"):
        ast.parse(file.read_text())
    monkeypatch.syspath_prepend(str(folder))
    found = declared("new_platform")
    assert (list(found.models), found.faults) == (["orders"], ())
    assert [str(each) for each in found.events] == ["event order_placed version 1 of decider order"]
    assert [each.view for each in subscriptions_of("new_platform.subscriptions")] == ["confirmations"]


def test_an_empty_folder_is_taken_and_may_be_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here_it_is").mkdir()
    monkeypatch.chdir(tmp_path / "here_it_is")
    assert millrace("new", ".").strip() == "Made the package here_it_is in .; next: make run"
    assert Path("README.md").exists()
