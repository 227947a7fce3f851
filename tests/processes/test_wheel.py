"""The installed wheel: one package, which works without a checkout, beside a user's own repository."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest

from millrace.platform_defs.cli.new.command import make_repository
from millrace.platform_defs.local.services import free_port
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import wait_ended
from tests.support.factories import value
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.running.programs import ran

# one test waits until all packages are installed
pytestmark = pytest.mark.timeout(900)
SOURCES = ("millrace", "assets", "examples", "platform_defs", "resources", "sql")
FILES = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt")
IMPORT_ALL = """
import importlib, pkgutil, millrace
from millrace.settings import PACKAGE
names = [module.name for module in pkgutil.walk_packages(millrace.__path__, "millrace.")]
for name in names:
    try:
        importlib.import_module(name)
    except millrace.MillraceError as error:
        # it needs an extra; a module of ours that is not in the wheel is no extra
        missing = error.__cause__
        if not isinstance(missing, ImportError) or str(missing.name).startswith("millrace"):
            raise
for face in (millrace, millrace.ops):
    for name in face.__all__:
        getattr(face, name)
print(len(names), PACKAGE)
"""


@dataclass(frozen=True)
class Installed:
    """A Python with the wheel, far from the checkout."""

    home: Path
    packages: Path

    def run(self, *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, code: int = 0) -> str:
        program, *rest = words
        where = {"cwd": cwd or self.home, "env": self.env(env)}
        done = ran(self.home / "bin" / str(program), *rest, code=code, patiences=3, **where)
        return done.stdout + done.stderr

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        strange = ("MILLRACE_", "DAGSTER_", "SPARK_", "PYTHON", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
        return {**kept, "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", **(more or {})}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of these sources, without files of an earlier build."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, folder / "sources" / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(PROJECT / name, folder / "sources")
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir")
    ran(*build, folder, folder / "sources", patiences=10)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Installed:
    """Make a Python that has the packages that we need, and our code only from the wheel."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet")
    if pytestconfig.getoption("full_install"):
        # as a user does, without constraints: only the wheel's bounds choose versions
        subprocess.run([*pip, wheel, "pytest"], check=True, capture_output=True)
        return Installed(home, packages)
    # Python searches a path that a .pth file names, but ignores .pth files there, such as an editable installation's
    shared = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (packages / "packages.pth").write_text("\n".join(shared) + "\n")
    subprocess.run([*pip, "--no-deps", wheel], check=True, capture_output=True)
    for program in ("dagster", "dagster-daemon", "dagster-webserver"):
        _, _, text = (Path(sys.executable).parent / program).read_text().partition("\n")
        file = home / "bin" / program
        # PATH finds the user's Python first
        file.write_text(f"#!/usr/bin/env python\n{text}")
        file.chmod(0o755)
    return Installed(home, packages)


def test_the_wheel_has_one_package_with_all_that_it_needs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"millrace"}
    for room in ("assets", "examples", "millrace", "platform_defs", "resources", "sql"):
        expected = {
            str(Path("millrace", str(file.relative_to(PROJECT)).removeprefix("millrace/")))
            for file in (PROJECT / room).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        assert expected <= set(names)
    assert {"millrace/py.typed", "millrace/testing.py", "millrace/platform_defs/dagster.yaml"} <= set(names)
    assert not [name for name in names if Path(name).name.startswith("test_") and not name.endswith(".template")]


def test_everything_of_it_is_imported_from_where_it_is_installed(installed: Installed) -> None:
    count, project = installed.run("python", "-W", "ignore", "-c", IMPORT_ALL).split()
    assert int(count) > 100
    assert Path(project) == installed.packages / "millrace"


def test_a_new_repository_installs_its_maker(installed: Installed, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("full_install"):
        pytest.skip("it installs packages: --full-install")
    installed.run("millrace", "new", tmp_path / "our_platform")
    pip = (sys.executable, "-m", "pip", "--python", installed.home / "bin" / "python", "install", "--dry-run")
    made = tmp_path / "our_platform"
    # with the pinned versions of packages that are newer here
    assert " our_platform-0.1.0" in ran(*pip, "-c", made / "constraints.txt", made, patiences=10).stdout


OWN = {"assets/__init__.py": 'OURS = "our own assets"\n', "resources/__init__.py": 'OURS = "our own resources"\n'}
# a user's file that imports from packages with the names of Millrace's rooms
BORROWING = """
from assets import OURS as assets
from millrace.assets import OWNERS
from resources import OURS as resources

assert (assets, resources) == ("our own assets", "our own resources")
assert OWNERS
"""


def test_a_new_repository_tests_and_runs(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("new") / "our_platform"
    installed.run("millrace", "new", folder)
    for name, text in OWN.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    orders = folder / "our_platform" / "read_models" / "orders.py"
    orders.write_text(orders.read_text() + BORROWING)
    (folder / "our_platform" / "read_models" / "broken.py").write_text("import no_such_module\n")
    assert "5 passed" in installed.run("python", "-W", "ignore", "-m", "pytest", cwd=folder)

    env = {"MILLRACE_DECLARATIONS": "our_platform", "MILLRACE_PORT": str(free_port())}
    up = subprocess.Popen(
        [installed.home / "bin" / "millrace", "up"], cwd=folder, env=installed.env(env), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    tree = [psutil.Process(up.pid)]
    try:
        dsn = EmbeddedPostgres(folder / ".millrace" / "postgres").dsn("millrace")
        await_state(up, lambda: migrated(dsn), "the store is migrated")
        installed.run("millrace", "dev", "psql", "--", "-f", "first_events.sql", cwd=folder)
        row = ["dev", "psql", "--", "-At", "-c", "select channel, lines, total from read_models.orders"]
        await_state(up, lambda: built(dsn), "the rows are there")
        assert installed.run("millrace", *row, cwd=folder).strip() == "web|1|19.90"
        said = installed.run("millrace", "status", cwd=folder, env=env)
        assert f"{folder}/our_platform/read_models/broken.py:1: ModuleNotFoundError" in said.replace("\n", "")
        tree += psutil.Process(up.pid).children(recursive=True)
    finally:
        up.send_signal(signal.SIGTERM)
        output, _ = up.communicate(timeout=patience())
    assert up.returncode == 0, output
    assert wait_ended(tree, patience()) == []
    assert EmbeddedPostgres(folder / ".millrace" / "postgres").pid() is None
    # nothing was written beside the installed package, and services do not run there
    assert not (installed.packages / ".millrace").exists()


TOOLS = (
    ("ruff", "check", f"--config={PROJECT / 'pyproject.toml'}"),
    ("ruff", "format", "--check", f"--config={PROJECT / 'pyproject.toml'}"),
    ("mypy", "--strict", f"--config-file={PROJECT / 'pyproject.toml'}", "--follow-imports=silent"),
)


def test_what_it_makes_passes_our_own_lint_and_the_type_checker(tmp_path: Path) -> None:
    folder = tmp_path / "new_platform"
    make_repository(folder)
    env = {**os.environ, "MYPYPATH": str(PROJECT)}
    for tool in TOOLS:
        cache = f"--cache-dir={tmp_path / tool[0]}"
        ran(sys.executable, "-m", *tool, cache, "new_platform", "tests", cwd=folder, env=env, patiences=10)


def await_state(up: subprocess.Popen[str], state: Callable[[], bool], what: str) -> None:
    """Wait for a state of a `millrace up` while it runs."""
    wait_until(lambda: up.poll() is not None or state(), what)
    assert up.poll() is None, up.communicate()[0]


def migrated(dsn: str) -> bool:
    return asked(dsn, "select to_regprocedure('event_store_platform.sequence_events()') is not null")


def built(dsn: str) -> bool:
    return asked(dsn, "select to_regclass('read_models.orders') is not null") and asked(
        dsn, "select exists (select from read_models.orders where total > 0)"
    )


def asked(dsn: str, question: LiteralString) -> bool:
    try:
        with psycopg.connect(dsn) as connection:
            return bool(value(connection, question))
    except psycopg.OperationalError:
        return False
