"""The processes that a package of declarations adds to `millrace up`, and what it is told and may do."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.platform_defs.local.services import Endpoints, free_port, services
from millrace.platform_defs.local.surroundings import Surroundings
from millrace.platform_defs.local.up import up
from millrace.resources.errors import MillraceError
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import Settings

SERVICES = """
def services(here):
    here.env["OURS"] = "for all"
    assert not here.embedded
    return [here.run("{name}", "python", "-c", "pass", stop_s=3)]
"""


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Write a `services.py` and return the names of all services then."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> list[str]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "served"]:
            del sys.modules[name]
        (tmp_path / "served").mkdir(exist_ok=True)
        (tmp_path / "served" / "services.py").write_text(text)
        settings = Settings(home=tmp_path / "home", dsn="postgresql://somewhere", declarations="served")
        endpoints = Endpoints("postgresql://somewhere", "postgresql://dagster", tmp_path, "sc://elsewhere", None, None)
        listed = services(settings, endpoints)
        assert {service.cwd for service in listed} == {tmp_path}
        assert len({service.env.get("OURS") for service in listed}) == 1
        if "ours" in [service.name for service in listed]:
            assert listed[-1].argv[0] == sys.executable
            assert listed[-1].env["OURS"] == "for all"
        return [service.name for service in listed]

    yield write
    sys.modules.pop("served", None)


OURS = ["sequence", "code", "daemon", "web"]


def test_services_of_the_package_come_behind_ours_and_all_get_its_environment(
    declare: Callable[[str], list[str]],
) -> None:
    assert declare(SERVICES.format(name="ours")) == [*OURS, "ours"]


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("import no_such_thing\n", 1, "ModuleNotFoundError"),
        ("def services(here):\n    return 1 / 0\n", 2, "ZeroDivisionError"),
        ("answer = 42\n", 0, "AttributeError"),
    ],
)
def test_a_file_that_fails_costs_its_services_only_and_is_named(
    declare: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture, text: str, line: int, error: str
) -> None:
    with caplog.at_level(logging.ERROR):
        assert declare(text) == OURS
    assert f"The services of served are not started: {Path.cwd()}/served/services.py:{line}: {error}" in caplog.text


def test_a_service_that_is_named_as_one_of_ours_is_refused(declare: Callable[[str], list[str]]) -> None:
    with pytest.raises(MillraceError, match=r"(?s)two services named 'web'.*served\.services"):
        declare(SERVICES.format(name="web"))


def test_a_database_is_made_beside_the_embedded_store_only(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    here = Surroundings("postgresql://somewhere", tmp_path, tmp_path, dict(os.environ))
    with pytest.raises(MillraceError, match="no embedded Postgres to make the database 'beside'"):
        here.make_database("beside")
    there = Surroundings("postgresql://somewhere", tmp_path, tmp_path, dict(os.environ), postgres)
    assert there.embedded
    assert there.make_database("beside") == there.make_database("beside") == postgres.dsn("beside", "owner_of_beside")


def test_up_refuses_a_package_that_is_not_there_before_it_starts_anything(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="There is no package 'no_such_package'"):
        up(Settings(home=tmp_path / "home", dsn=None, port=free_port(), declarations="no_such_package"))
    assert not (tmp_path / "home" / "postgres").exists()
