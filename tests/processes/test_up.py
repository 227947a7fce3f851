"""`millrace up` in a separate process, with tiny services: start, stop, kill and resumption."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import psycopg
import pytest

from millrace.event_store.key_rotation import KeyStore, folder_of
from millrace.platform_defs.local.services import Endpoints, free_port
from millrace.platform_defs.local.supervisor import Service, end_leftovers
from millrace.platform_defs.local.up import _with_keys
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import alive, wait_ended
from millrace.settings import Settings
from tests.support.patience import patience
from tests.support.project import PROJECT

RUN_UP = """
import sys
from millrace.platform_defs.local.up import up
from millrace.errors import MillraceError
from millrace.settings import Settings
from tests.processes import test_up
try:
    up(Settings(), status=lambda: ["view orders: lag 0"], make_services=test_up.tiny_services)
except MillraceError as error:
    sys.exit(f"Refused: {error}")
"""
ALL_STARTED = "tiny ready, second ready"


def tiny_services(_settings: Settings, endpoints: Endpoints) -> list[Service]:
    argv = (sys.executable, "-c", "import signal; signal.pause()")
    env = {**os.environ, "MILLRACE_DSN": endpoints.dsn}
    return [Service(name=name, argv=argv, env=env, ready=lambda: True) for name in ("tiny", "second")]


def deaf(settings: Settings, endpoints: Endpoints) -> list[Service]:
    """Get a stop request, and lose the signal's exception, as Python does while an object is freed."""
    with suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    return tiny_services(settings, endpoints)


class Running:
    def __init__(self, home: Path, script: str = RUN_UP) -> None:
        env = {**os.environ, "MILLRACE_HOME": str(home), "MILLRACE_PORT": str(free_port()), "COLUMNS": "80"}
        env.pop("MILLRACE_DSN", None)
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=env, cwd=PROJECT,
        )  # fmt: skip
        self.said = ""

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return self.said
        pytest.fail(f"it ended without saying {words!r}: {self.said}")

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(patience())

    def tree(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture
def home() -> Iterator[Path]:
    # not tmp_path: other runs of pytest close its parents to the account that Postgres runs as
    with TemporaryDirectory(prefix="millrace-up-") as folder:
        yield Path(folder) / "home"
        end_leftovers(Path(folder) / "home")
        EmbeddedPostgres(Path(folder) / "home" / "postgres").stop()


@contextmanager
def running(home: Path, script: str = RUN_UP) -> Iterator[Running]:
    started = Running(home, script)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()
        assert started.process.stdout is not None
        started.process.stdout.close()


def test_it_starts_once_in_a_home_and_goes_on_after_a_kill(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_POSTGRES_PORT", str(free_port()))
    postgres = EmbeddedPostgres(home / "postgres")
    with running(home) as first:
        the_printed_dsn_works(first)
        assert "view orders: lag 0" in first.until("view orders")
        with psycopg.connect(postgres.dsn("millrace"), autocommit=True) as connection:
            connection.execute("create table kept ()")
            the_first_keys_of_people_are_in_the_home(home, KeyStore(connection))
        tree = first.tree()
        assert len(tree) == 3
        a_second_one_is_refused_with_pid_and_address(home, first)
        assert all(alive(process) for process in tree)
        a_killed_postgres_is_started_again(postgres, first)
        assert first.end(signal.SIGTERM) == 0
        assert wait_ended(tree, 0) == []
        assert postgres.pid() is None
        assert first.said.endswith("Everything is stopped. `make run` goes on where this was.\n")

    with running(home) as killed:
        killed.until(ALL_STARTED)
        with psycopg.connect(postgres.dsn("millrace")) as connection:
            assert connection.execute("select to_regclass('kept') is not null").fetchone() == (True,)
        left, server = killed.tree()[1:], postgres.pid()
        killed.process.kill()
    assert [alive(process) for process in left] == [True, True]

    with running(home) as after:
        assert "Ended what a killed run had left: second, tiny." in after.until(ALL_STARTED)
        assert wait_ended(left, 0) == []
        # the healthy database server is still used
        assert postgres.pid() == server
        assert after.end(signal.SIGINT) == 0


def the_printed_dsn_works(started: Running) -> None:
    printed = started.until("  Reading ").splitlines()[-1].split()[-1]
    with psycopg.connect(printed) as tool:
        found = tool.execute("select current_user, count(*) from read_models.declarations").fetchall()
        assert found == [("millrace_reader", 0)]


def the_first_keys_of_people_are_in_the_home(home: Path, store: KeyStore) -> None:
    keys = Settings(home=home, dsn=None).keys
    assert keys == home / "keys"
    assert folder_of(store, keys).epoch == 1
    # what is set counts, and a store of one's own has none by itself
    named = Settings(home=home, dsn=None, keys=home / "other")
    assert (_with_keys(named, "not asked"), Settings(home=home, dsn="x").keys) == (named, None)


def a_second_one_is_refused_with_pid_and_address(home: Path, first: Running) -> None:
    with running(home) as second:
        said = second.until("Refused")
        assert second.process.wait(patience()) == 1
        assert f"already runs in {home}: process {first.process.pid}, http://127.0.0.1:" in said


def a_killed_postgres_is_started_again(postgres: EmbeddedPostgres, started: Running) -> None:
    pid = postgres.pid()
    assert pid is not None
    psutil.Process(pid).kill()
    started.until("postgres is gone; starting it again")
    postgres.start()
    assert postgres.pid() != pid


def test_a_request_to_stop_is_not_lost_though_its_exception_is(home: Path) -> None:
    with running(home, RUN_UP.replace("test_up.tiny_services", "test_up.deaf")) as one:
        assert "Everything is stopped" in one.until("Everything is stopped")
        assert one.process.wait(patience()) == 0
