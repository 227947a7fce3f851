"""`millrace up` starts, shows its rows and ends all that it started; its refusals, and its first lines."""

import fcntl
import os
import signal
import socket
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import requests
from rich.console import Console

from millrace.errors import MillraceError, Unreachable
from millrace.platform_defs.cli.new.command import make_repository
from millrace.platform_defs.local import up as local_up
from millrace.platform_defs.local.services import Endpoints, free_port
from millrace.platform_defs.local.supervisor import ServiceState, Supervisor
from millrace.platform_defs.local.up import CannotStart, _Stop, _table, _watch, address_lines, open_to_others, up
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.settings import EXAMPLE, NOTE, Settings
from millrace.spark import java
from millrace.spark.java import JavaNotFound
from millrace.spark.session import SPARK_TOKEN
from tests.support.patience import patience
from tests.support.running.deployment import started, until

RELOAD = 'mutation { reloadRepositoryLocation(repositoryLocationName: "millrace") { __typename } }'


@pytest.mark.timeout(1200)
def test_a_new_repository_comes_up_and_ends_all_that_it_started(spark_remote: str, home: Path) -> None:
    """Spark is that of the tests: `processes/test_services.py` tests the start of one."""
    folder = home.parent / "our_platform"
    make_repository(folder)
    # its package is named in its pyproject.toml
    more = {"SPARK_REMOTE": spark_remote, SPARK_TOKEN: os.environ[SPARK_TOKEN]}
    with started(home, folder=folder, more=more) as deployment:
        assert "<html" in requests.get(deployment.url, timeout=patience()).text
        deployment.rows((folder / "first_events.sql").read_text())
        row = until(lambda: deployment.rows("select channel, lines, total::text from read_models.orders"), bool)
        assert row == [("web", 1, "19.90")]
        # a command in another terminal, which only shares the home, means the same package and not the example
        assert Settings(home=home, dsn=None, declarations=None).declared_package == "our_platform"
        # a file that fails with the whole package is told once the code is loaded again
        package = folder / "our_platform" / "__init__.py"
        package.write_text("raise OSError('no disk')\n")
        deployment.ask(RELOAD)
        until(
            deployment.said, lambda said: "No declaration loads, so nothing new starts: The package our_platf" in said
        )
        assert f"{package}:1: OSError: no disk" in deployment.said()
        assert f"Dagster   {deployment.url}" in deployment.stop(signal.SIGTERM)


@pytest.fixture
def home() -> Iterator[Path]:
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-up-") as folder:
        yield Path(folder) / "home"


def test_the_names_of_services_are_shown_whole() -> None:
    shown = StringIO()
    Console(width=80, file=shown).print(_table([ServiceState("sequence", "ready", 1, 0, "")], []))
    assert "sequence  ready" in shown.getvalue()


def test_where_nobody_looks_only_lines_that_changed_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_up, "WATCH_S", 0)
    monkeypatch.setattr(local_up, "LOOK_S", 0)
    orders = iter(["orders: 1", "orders: 2", "orders: 2", "orders: 1"])
    lines = ["", "mails: 0"]

    class Standing(Supervisor):
        def poll(self) -> list[str]:
            lines[0] = next(orders, "")
            if not lines[0]:
                raise _Stop
            return []

        def states(self) -> list[ServiceState]:
            return [ServiceState("code", "ready", 1, 0, "")]

    shown = StringIO()
    with pytest.raises(_Stop):
        _watch(Console(file=shown), Standing(Path("home"), []), None, lines, threading.Event())
    assert shown.getvalue().splitlines() == ["code ready", "orders: 1", "mails: 0", "orders: 2", "orders: 1"]


def test_a_lock_just_taken_is_refused_too(home: Path) -> None:
    home.mkdir()
    with (home / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CannotStart, match=r"already runs in .*: it is just starting"):
            up(Settings(home=home))


def test_what_cannot_start_is_named_before_anything_starts(home: Path) -> None:
    left = home.with_name("left")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        nothing = f"postgresql://u@/x?host={home}"
        (left / "postgres").mkdir(parents=True)
        cases: tuple[tuple[dict[str, object], type[MillraceError], str], ...] = (
            ({"port": port}, CannotStart, f"Port {port} on 127.0.0.1 .*MILLRACE_PORT"),
            ({"postgres_port": port}, CannotStart, f"Port {port} on 127.0.0.1 .*MILLRACE_POSTGRES_PORT"),
            ({"declarations": "no_such_package"}, MillraceError, "There is no package 'no_such_package'"),
            ({"home": left}, CannotStart, f"Nothing names the package of the store in {left}.*MILLRACE_DECLARATIONS"),
            ({"dsn": nothing}, Unreachable, "The Postgres of MILLRACE_DSN does not answer"),
        )
        for given, error, said in cases:
            with pytest.raises(error, match=f"(?s){said}"):
                up(Settings.model_validate({"home": home, "dsn": None, "port": free_port(), **given}))
    assert not (home / "postgres").exists()
    # of all these packages only the example exists, so only it is noted
    assert ((home / NOTE).read_text().strip(), (left / NOTE).exists()) == (EXAMPLE, False)


def test_without_java_nothing_is_left_running(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(JavaNotFound, match="Spark needs Java 17 or 21"):
        up(Settings(home=home, port=free_port(), dsn=None))
    # without a named package the home belongs to the example
    assert (home / NOTE).read_text().strip() == EXAMPLE
    assert EmbeddedPostgres(home / "postgres").pid() is None


def test_the_first_lines_show_no_password_and_no_token(home: Path) -> None:
    dsn = "postgresql://u:hunter2@db.example.com/x"
    endpoints = Endpoints(dsn, dsn, home / "socket", "sc://localhost:1/", 1, None, spark_token="of-spark")
    for token, line in (
        ("hunter2-of-the-ui", "MILLRACE_UI_TOKEN>"),
        (None, "Other accounts of this machine can use the UI"),
    ):
        settings = Settings.model_validate({"home": home, "dsn": dsn, "ui_token": token})
        said = "\n".join([*address_lines(settings, endpoints), *open_to_others(settings)])
        assert "postgresql://u:***@db.example.com/x" in said
        assert line in said
        assert "hunter2" not in said
        assert "of-spark" not in said + repr(endpoints)


SLACK = {"alert_url": "https://hooks.slack.com/hidden", "alert_format": "slack"}
STANDARD = {"alert_url": "https://a.example.com/hidden", "alert_secret": f"whsec_{'A' * 32}"}
ALERTS: tuple[tuple[dict[str, str], str], ...] = (
    ({}, "Alerts    off; set MILLRACE_ALERT_URL"),
    (SLACK, "to https://hooks.slack.com (slack, not"),
    (STANDARD, "to https://a.example.com (st"),
    ({**STANDARD, "alert_secret": "hidden"}, "off: MILLRACE_ALERT_SECRET does not"),
    ({"alert_url": "hidden"}, "off: MILLRACE_ALERT_URL cannot be sent to"),
)


def test_the_first_lines_say_whether_alerts_are_sent(home: Path) -> None:
    endpoints = Endpoints("postgresql://u@/x", "postgresql://u@/y", home / "socket", "sc://localhost:1/", 1, None)
    for given, line in ALERTS:
        said = "\n".join(address_lines(Settings.model_validate({"home": home, "dsn": None, **given}), endpoints))
        assert (line in said, "hidden" in said) == (True, False), said
