"""The supervisor with tiny services that misbehave as the real ones can. Not here: the real services."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from millrace.platform_defs.local.supervisor import MARK, Service, ServiceFailed, Supervisor, end_leftovers
from millrace.resources.processes import alive, wait_ended
from tests.support.patience import patience, wait_until

SLEEP = "import signal; signal.pause()"
# Writes the pids of itself, of a child in a session of its own (which may ignore TERM as a hung worker does),
# and of a child in its group.
FAMILY = """
import subprocess, sys, signal, os, pathlib
ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if "stubborn" in sys.argv else ""
stray = subprocess.Popen(
    [sys.executable, "-c", "import signal;" + ignore + "print(1, flush=True); signal.pause()"],
    start_new_session=True, stdout=subprocess.PIPE)
stray.stdout.readline()
near = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path(sys.argv[1] + ".new").write_text(f"{os.getpid()} {stray.pid} {near.pid}")
pathlib.Path(sys.argv[1] + ".new").rename(sys.argv[1])
signal.pause()
"""


def python(name: str, code: str, ready: Callable[[], bool], *arguments: str) -> Service:
    argv = (sys.executable, "-c", code, *arguments)
    return Service(name=name, argv=argv, env=dict(os.environ), ready=ready, stop_s=5, ready_s=patience())


def family(home: Path, name: str = "family", *how: str) -> Service:
    home.mkdir(exist_ok=True)
    said = home / f"{name}.pids"
    return python(name, FAMILY, said.exists, str(said), *how)


def members(home: Path, name: str = "family") -> list[psutil.Process]:
    pids = (int(pid) for pid in (home / f"{name}.pids").read_text().split())
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_leftovers(tmp_path / "home")


def test_stopping_ends_children_grandchildren_and_other_sessions(home: Path) -> None:
    with Supervisor(home, [family(home, "family", "stubborn")]) as supervisor:
        processes = members(home)
        assert len(processes) == 3
        assert [s.state for s in supervisor.states()] == ["ready"]
        assert all(alive(process) for process in processes)
    assert wait_ended(processes, 0) == []
    assert not list((home / "run").glob("*.json"))
    assert [s.state for s in supervisor.states()] == ["stopped"]


def test_services_start_in_order_and_stop_in_reverse(home: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor(home, [python(name, SLEEP, lambda: True) for name in ("first", "second")])
    supervisor.start(said.append)
    supervisor.stop(said.append)
    supervisor.stop(said.append)
    assert said == [
        "Starting first ...",
        "Starting second ...",
        "Stopping second ...",
        "Stopping first ...",
    ]


def test_a_service_that_dies_at_once_is_quoted_and_the_others_are_stopped(home: Path) -> None:
    broken = python("broken", "raise SystemExit('port 15002 is taken')", lambda: False)
    with pytest.raises(ServiceFailed, match=r"(?s)broken ended with exit code 1.*port 15002 is taken"):
        Supervisor(home, [family(home), broken]).start()
    assert wait_ended(members(home), 0) == []


def test_a_service_that_never_gets_ready_is_given_up(home: Path) -> None:
    slow = replace(python("slow", SLEEP, lambda: False), ready_s=0.2)
    with pytest.raises(ServiceFailed, match="slow was not ready in time"):
        Supervisor(home, [slow]).start()


def test_a_program_that_is_not_there_is_an_error(home: Path) -> None:
    service = Service("missing", ["/nowhere/millrace"], dict(os.environ), lambda: True)
    with pytest.raises(ServiceFailed, match=r"missing cannot be started: .*/nowhere/millrace"):
        Supervisor(home, [service]).start()


def test_a_dead_service_is_started_again_and_its_orphans_are_ended(home: Path) -> None:
    with Supervisor(home, [family(home)]) as supervisor:
        before = members(home)
        (home / "family.pids").unlink()
        before[0].kill()
        wait_ended(before[:1], patience())
        sentences = supervisor.poll()
        assert len(sentences) == 1
        assert "family ended with signal SIGKILL; it starts again in 1 s" in sentences[0]
        assert wait_ended(before, 0) == []
        wait_until(lambda: supervisor.poll() == ["family is ready again."], "it is ready again")
        assert [(s.state, s.restarts) for s in supervisor.states()] == [("ready", 1)]
        assert members(home)[0].pid != before[0].pid


def test_a_program_that_is_gone_for_a_while_is_started_when_it_is_back(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.symlink_to(sys.executable)
    service = Service("reinstalled", [str(program), "-c", SLEEP], dict(os.environ), lambda: True)
    said: list[str] = []

    def poll_until(words: str) -> Callable[[], bool]:
        def found() -> bool:
            said.extend(supervisor.poll())
            return any(words in sentence for sentence in said)

        return found

    with Supervisor(home, [service]) as supervisor:
        pid = supervisor.states()[0].pid
        assert pid is not None
        program.unlink()
        psutil.Process(pid).kill()
        wait_until(poll_until("reinstalled cannot be started"), "it cannot be started")
        program.symlink_to(sys.executable)
        wait_until(poll_until("reinstalled is ready again."), "it is ready again")


def test_the_delay_grows_with_each_death(home: Path) -> None:
    seen: list[str] = []
    ready = iter([True])
    dying = python("dying", "input()", lambda: next(ready, False))

    def poll() -> bool:
        seen.extend(supervisor.poll())
        return len(seen) >= 3

    with Supervisor(home, [dying]) as supervisor:
        wait_until(poll, "three deaths are told")
    assert [sentence.split(" again in ")[1][:3] for sentence in seen] == ["1 s", "2 s", "4 s"]


def test_what_a_killed_supervisor_left_is_ended_by_the_next(home: Path) -> None:
    supervise = (
        "import sys, pathlib, signal; sys.path.insert(0, sys.argv[2]); import test_supervisor as t;"
        "home = pathlib.Path(sys.argv[1]); s = t.Supervisor(home, [t.family(home), t.family(home, 'other')]);"
        "s.start(); print('up', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", supervise, str(home), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "up\n"
        killed.kill()
    processes = members(home) + members(home, "other")
    assert all(alive(process) for process in processes)
    # A leader that is gone too leaves its children without any parent of ours.
    processes[0].kill()
    wait_ended(processes[:1], patience())
    said: list[str] = []
    (home / "family.pids").unlink()
    supervisor = Supervisor(home, [family(home)])
    supervisor.start(said.append)
    supervisor.stop()
    assert said[0] == "Ended what the last run had left: family, other."
    assert wait_ended(processes, 0) == []


def test_a_record_whose_pid_was_used_again_ends_nobody(home: Path) -> None:
    (home / "run").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        record = {"pid": stranger.pid, "created": psutil.Process(stranger.pid).create_time() - 60}
        (home / "run" / "x.json").write_text(json.dumps(record))
        (home / "run" / "torn.json").write_text('{"pid": 1')
        assert end_leftovers(home) == []
        assert stranger.poll() is None
        stranger.kill()


def test_another_home_is_left_alone(home: Path, tmp_path: Path) -> None:
    with Supervisor(home, [family(home)]):
        assert end_leftovers(tmp_path / "home2") == []
        assert all(alive(process) for process in members(home))


def test_a_service_can_be_interrupted_even_if_we_ignore_signals(home: Path) -> None:
    code = """
import signal
got = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
print(*(one is signal.SIG_IGN for one in got), flush=True)
signal.pause()
"""
    log = home / "logs" / "plain.log"
    service = python("plain", code, lambda: log.exists() and "\n" in log.read_text())
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Supervisor(home, [service]):
            assert log.read_text() == "False False\n"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_every_process_carries_the_mark_of_its_service(home: Path) -> None:
    with Supervisor(home, [family(home)]):
        marks = {process.environ()[MARK] for process in members(home)}
    assert marks == {str(home / "run" / "family")}
