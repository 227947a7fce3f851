"""The supervisor with tiny services that misbehave as the real ones can. Not here: the real services."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from millrace.platform_defs.local import asking, supervisor
from millrace.platform_defs.local.asking import CannotTell
from millrace.platform_defs.local.supervisor import MARK, Service, ServiceFailed, Supervisor, end_leftovers
from millrace.processes import alive, wait_ended
from tests.support.patience import patience, wait_until

SLEEP = "import signal; signal.pause()"
# Writes its own pid, that of a child in a separate session (which may ignore TERM as a hung worker does), and that
# of a child in its group.
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


def states(running: Supervisor) -> dict[str, str]:
    return {state.name: state.state for state in running.states()}


def told(running: Supervisor, said: list[str], words: str, times: int = 1) -> Callable[[], bool]:
    """Return a function that polls, and returns whether at least `times` sentences had these words."""

    def found() -> bool:
        said.extend(running.poll())
        return sum(words in sentence for sentence in said) >= times

    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask all the time, with short time limits."""
    monkeypatch.setattr(supervisor, "WATCH_S", 0.0)
    monkeypatch.setattr(supervisor, "LONGEST_READY_S", 0.8)
    monkeypatch.setattr(asking, "BUSY_S", 0.2)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_leftovers(tmp_path / "home")


def test_stopping_ends_all_descendants_of_one_home(home: Path, tmp_path: Path) -> None:
    with Supervisor(home, [family(home, "family", "stubborn")]) as supervisor:
        processes = members(home)
        assert len(processes) == 3
        assert [s.state for s in supervisor.states()] == ["ready"]
        assert {process.environ()[MARK] for process in processes} == {str(home / "run" / "family")}
        assert end_leftovers(tmp_path / "home2") == []
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
    assert said == ["Starting first ...", "Starting second ...", "Stopping second ...", "Stopping first ..."]


@pytest.mark.usefixtures("quick")
def test_a_service_that_does_not_come_up_is_quoted_and_tried(home: Path) -> None:
    said: list[str] = []
    broken = python("broken", "raise SystemExit('port 15002 is taken')", lambda: False)
    slow = replace(python("slow", "print('asking the moon', flush=True);" + SLEEP, lambda: False), ready_s=0.2)
    running = Supervisor(home, [broken, slow, family(home)])
    try:
        running.start(said.append)
        assert states(running)["family"] == "ready"
        processes = members(home)
        # the time limit doubles with each start, up to a maximum
        wait_until(told(running, said, "slow was not ready in 0.8 s", 2), "it has reached its longest time")
        assert all(alive(process) for process in processes)
        assert {
            d.name: supervisor.sentence_on_service(d).partition(". ")[2] for d in supervisor.services_down(home)
        } == {
            "broken": f"It ended with exit code 1. Its log: {home}/logs/broken.log",
            "slow": f"It was not ready in 0.8 s. Its log: {home}/logs/slow.log",
        }
    finally:
        running.stop()
    assert supervisor.services_down(home) == []
    everything = "\n".join(said)
    assert "broken ended with exit code 1; it starts again in 1 s. The end of" in everything
    assert "port 15002 is taken" in everything
    limits = [line.partition(";")[0] for line in said if line.startswith("slow was")]
    assert limits == [f"slow was not ready in {limit} s" for limit in (0.2, 0.4, 0.8, 0.8)]
    assert everything.count("asking the moon") == 1
    assert "slow is still starting, for 0 s of 0.8 s." in said
    with (
        pytest.raises(ServiceFailed, match=r"(?s)Starting slow .*slow was not ready in 0.2 s"),
        Supervisor(home, [slow]),
    ):
        pass


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("says", ["no", "nothing", "an error"])
def test_a_service_that_does_not_answer_is_started_again(home: Path, says: str) -> None:
    hung, goes_on = threading.Event(), threading.Event()
    goodbye = home / "goodbye"

    def ready() -> bool:
        if says == "nothing" and hung.is_set():
            goes_on.wait()
        if says == "an error" and hung.is_set():
            raise ZeroDivisionError
        return not hung.is_set()

    polite = (
        "import signal, sys, pathlib;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[1]).touch())); signal.pause()"
    )
    said: list[str] = []
    with Supervisor(home, [python("hung", polite, ready, str(goodbye)), family(home)]) as running:
        before = running.states()[0].pid
        assert before is not None
        # as when a user or the machine stops it: it is still asked to end
        os.kill(before, signal.SIGSTOP)
        hung.set()
        wait_until(told(running, said, "hung did not answer 3 times in a row; it starts again in 1 s"), "it is left")
        assert states(running)["family"] == "ready"
        (processes := members(home))[0].kill()
        (home / "family.pids").unlink()
        wait_until(told(running, said, "family is ready again."), "the other one is looked after")
        hung.clear()
        goes_on.set()
        wait_until(told(running, said, "hung is ready again."), "it is ready again")
        assert running.states()[0].pid != before
        assert goodbye.exists()
    assert wait_ended(processes, 0) == []


@pytest.mark.usefixtures("quick")
def test_a_service_is_left_alone_until_it_misses_three_times(home: Path) -> None:
    says = [True, False, None, False, True, False, None, False, None]
    asked: list[bool | None] = []

    def ready() -> bool:
        # repeat the last answer
        asked.append(answer := says[min(len(asked), len(says) - 1)])
        if answer is None:
            raise CannotTell
        return answer

    with Supervisor(home, [python("unasked", SLEEP, ready)]) as running:
        said: list[str] = []
        polled = told(running, said, "")
        wait_until(lambda: polled() or len(asked) > len(says), "it is asked often")
        assert said == []
        assert states(running) == {"unasked": "ready"}


def test_the_services_of_a_killed_supervisor_are_not_down(home: Path) -> None:
    with Supervisor(home, [python("one", SLEEP, lambda: True)]) as running:
        running.poll()
        written = json.loads((home / "services.json").read_text())
    written["services"][0]["state"] = "waiting"
    for created, names in ((written["created"], ["one"]), (written["created"] - 60, [])):
        (home / "services.json").write_text(json.dumps({**written, "created": created}))
        assert [down.name for down in supervisor.services_down(home)] == names
    (home / "services.json").write_text('{"pid": 1')
    assert supervisor.services_down(home) == []


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
        assert wait_ended(before, patience()) == []
        wait_until(lambda: supervisor.poll() == ["family is ready again."], "it is ready again")
        assert [(s.state, s.restarts) for s in supervisor.states()] == [("ready", 1)]
        assert members(home)[0].pid != before[0].pid


def test_a_program_that_is_gone_for_a_while_is_started_when_it_is_back(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.symlink_to(sys.executable)
    service = Service("reinstalled", [str(program), "-c", SLEEP], dict(os.environ), lambda: True)
    said: list[str] = []
    with Supervisor(home, [service]) as supervisor:
        pid = supervisor.states()[0].pid
        assert pid is not None
        program.unlink()
        psutil.Process(pid).kill()
        wait_until(told(supervisor, said, "reinstalled cannot be started"), "it cannot be started")
        program.symlink_to(sys.executable)
        wait_until(told(supervisor, said, "reinstalled is ready again."), "it is ready again")


def test_the_delay_grows_with_each_death(home: Path) -> None:
    seen: list[str] = []
    running = Supervisor(home, [python("dying", "input()", lambda: False)])
    running.start(seen.append)
    wait_until(told(running, seen, " again in ", 3), "three deaths are told")
    running.stop()
    assert [sentence.split(" again in ")[1][:3] for sentence in seen[1:]] == ["1 s", "2 s", "4 s"]


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
    # without its leader the children have no parent of ours
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


def test_what_a_service_writes_is_bounded_while_it_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 1000)
    code = (
        "import sys\nprint('x' * 10_000, 'end', flush=True)\nsys.stdin = open(sys.argv[1])\nprint(input(), flush=True)"
    )
    code += "\nimport signal\nsignal.pause()"
    home.mkdir()
    os.mkfifo(fifo := home / "fifo")
    log, before = home / "logs" / "loud.log", home / "logs" / "loud.log.1"
    with Supervisor(home, [python("loud", code, log.exists, str(fifo))]) as running:
        wait_until(lambda: (running.poll(), before.exists())[1], "its log was too large")
        assert (log.read_text(), before.read_text()) == ("", f"{'x' * 995} end\n")
        fifo.write_text("it goes on\n")
        wait_until(lambda: log.read_text() == "it goes on\n", "it writes on")


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
