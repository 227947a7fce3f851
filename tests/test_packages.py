"""Only chosen packages are installed: each is pinned, and each file known by its hash."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.support.project import PROJECT

LOCK = (PROJECT / "requirements.lock").read_text()


def pins() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    return dict(named(line) for line in lines if line and not line.startswith("#"))


def named(pin: str) -> tuple[str, str]:
    name, _, version = pin.partition(";")[0].strip().partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def test_the_lock_has_hashes_and_the_pinned_versions() -> None:
    entries = [entry for entry in re.split(r"\n(?=\S)", LOCK.strip()) if not entry.startswith("#")]
    locked = dict(named(entry.split("\\")[0]) for entry in entries)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert {name: version for name, version in locked.items() if pins().get(name, version) != version} == {}
    # a package for another operating system only has no pin
    assert {name for name in pins() if name not in locked} == set()


def test_every_package_of_a_user_is_bounded_around_its_pin() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wrong = []
    for each in map(Requirement, project["dependencies"]):
        pin = pins()[re.sub(r"[-_.]+", "-", each.name).lower()]
        bounds = {one.operator for one in each.specifier}
        # certifi's versions are dates, and a newer list of authorities breaks nothing
        if bounds != ({">="} if each.name == "certifi" else {">=", "<"}) or not each.specifier.contains(pin):
            wrong.append((str(each), pin))
    assert wrong == []


def test_the_lock_names_no_host() -> None:
    assert "://" not in LOCK
    assert "--index-url" not in LOCK


def test_what_we_import_directly_and_what_builds_us_is_pinned() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *extras["dev"], *extras["docs"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=]", each)[0]).lower() for each in asked}
    assert names - pins().keys() == set()
    (builder,) = project["build-system"]["requires"]
    assert named(builder) == ("setuptools", pins()["setuptools"])
