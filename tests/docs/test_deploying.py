"""The units of docs/deploying run what `millrace up` runs, and systemd takes them."""

import json
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from millrace.platform_defs.local.services import Endpoints, environment, services
from millrace.platform_defs.local.surroundings import PROGRAMS
from millrace.resources.settings import PROJECT, Settings

FOLDER = PROJECT / "docs" / "deploying"
UNITS = sorted(FOLDER.glob("*.service"))
HOME = Path("/var/lib/millrace")
SOCKET = Path("/run/millrace-code/socket")
# where the units have something else than a `millrace up` in that home
ELSEWHERE = {"/etc/millrace/workspace.yaml": str(HOME / "dagster" / "workspace.yaml"), "/srv/platform": str(Path.cwd())}


def in_unit(unit: Path, section: str, name: str) -> str:
    read = ConfigParser(interpolation=None, strict=False)
    # names of systemd are of capitals
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(unit.read_text())
    return read[section][name]


def settings_of_file() -> dict[str, str]:
    lines = [line for line in (FOLDER / "millrace.env").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_units_run_what_millrace_up_runs() -> None:
    settings = Settings(home=HOME, dsn="postgresql://u@/x", declarations=None)
    endpoints = Endpoints("postgresql://u@/x", "postgresql://u@/y", SOCKET, "sc://spark.example.com", None, None)
    started = {service.name: list(service.argv) for service in services(settings, endpoints)}
    listed = {}
    for unit in UNITS:
        program, *arguments = shlex.split(in_unit(unit, "Service", "ExecStart"))
        beside = str(PROGRAMS / Path(program).name)
        listed[unit.stem.removeprefix("millrace-")] = [beside, *(ELSEWHERE.get(word, word) for word in arguments)]
    assert listed == started


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    # the programs are elsewhere here
    for other in UNITS:
        (tmp_path / other.name).write_text(other.read_text().replace("/opt/millrace/bin", str(PROGRAMS)))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")


def test_the_file_of_settings_names_settings_and_what_runs_need() -> None:
    endpoints = Endpoints("dsn", "dagster_dsn", SOCKET, "sc://spark.example.com", None, None)
    known = {f"MILLRACE_{name.upper()}" for name in Settings.model_fields} | set(environment(Settings(), endpoints))
    named = settings_of_file()
    assert set(named) <= known
    # what services get of `millrace up`, but what has a default
    assert {"MILLRACE_DSN", "MILLRACE_DAGSTER_DSN", "MILLRACE_HOME", "DAGSTER_HOME", "SPARK_REMOTE"} <= set(named)


def test_the_workspace_leads_to_the_socket_of_the_code_server() -> None:
    (server,) = yaml.safe_load((FOLDER / "workspace.yaml").read_text())["load_from"]
    assert server == json.loads(
        json.dumps({"grpc_server": {"host": "localhost", "socket": str(SOCKET), "location_name": "millrace"}})
    )
