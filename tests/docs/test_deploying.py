"""The units of docs/deploying cover the services of `millrace up`, and systemd accepts them."""

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from millrace.patience import FAREWELL_S, LOOK_S
from millrace.platform_defs.local.services import Endpoints, environment, services
from millrace.platform_defs.local.surroundings import PROGRAMS
from millrace.settings import Settings
from tests.support.project import PROJECT

FOLDER = PROJECT / "docs" / "deploying"
UNITS = sorted(FOLDER.glob("*.service"))
HOME = Path("/var/lib/millrace")


def in_unit(unit: Path, section: str, name: str) -> str:
    read = ConfigParser(interpolation=None, strict=False)
    # systemd's names have capitals
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(unit.read_text())
    return read[section][name]


def settings_of_file() -> dict[str, str]:
    lines = [line for line in (FOLDER / "millrace.env").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_each_watched_service_has_its_unit() -> None:
    settings = Settings(home=HOME, dsn="postgresql://u@/x", declarations=None)
    endpoints = Endpoints("postgresql://u@/x", "postgresql://u@/y", HOME / "socket", "sc://elsewhere", None, None)
    watched = {service.name: service for service in services(settings, endpoints)}
    assert {unit.stem for unit in UNITS} == {f"millrace-{name}" for name in watched}
    for unit in UNITS:
        name = unit.stem.removeprefix("millrace-")
        expected = {
            "ExecStart": f"/opt/millrace/bin/millrace run service {name}",
            "Type": "notify",
            "Restart": "always",
            # the service's supervisor ends its child processes
            "KillMode": "mixed",
        }
        assert {key: in_unit(unit, "Service", key) for key in expected} == expected
        service = watched[name]
        least = {
            "Watchdog": 10 * LOOK_S,
            "TimeoutStart": service.ready_s,
            "TimeoutStop": service.stop_s + 2 * FAREWELL_S,
        }
        assert [key for key in least if int(in_unit(unit, "Service", f"{key}Sec")) <= least[key]] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    # the programs are elsewhere here
    for other in UNITS:
        (tmp_path / other.name).write_text(other.read_text().replace("/opt/millrace/bin", str(PROGRAMS)))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_file_of_settings_names_settings_and_what_runs_need() -> None:
    endpoints = Endpoints("dsn", "dagster_dsn", HOME / "socket", "sc://spark.example.com", None, None)
    known = {f"MILLRACE_{name.upper()}" for name in Settings.model_fields} | set(environment(Settings(), endpoints))
    named = settings_of_file()
    assert set(named) <= known
    # settings that services get from `millrace up`, except those with a default
    assert {"MILLRACE_DSN", "MILLRACE_DAGSTER_DSN", "MILLRACE_HOME", "DAGSTER_HOME", "SPARK_REMOTE"} <= set(named)
