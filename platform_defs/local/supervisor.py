"""Local services: child processes that are started, watched, restarted and ended together.

Belongs here: the life of child processes, whatever they run. Not here: which ones there are (`services`).

Every process of a service inherits one environment variable, `MILLRACE_SERVICE=<home>/run/<name>`. It finds
what left its group, its session and its parent, also after the supervisor was killed, and nothing else.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from millrace.resources.errors import MillraceError
from millrace.resources.processes import alive, wait_ended

MARK = "MILLRACE_SERVICE"
# times in seconds
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
# A service that stayed ready this long has earned a quick restart again.
STEADY_S = 60.0
# What a dead service left has no reason to take long; what a killed supervisor left may be finishing a run.
ORPHAN_S = 2.0
LEFTOVER_S = 10.0
LOG_BYTES = 20_000_000
QUOTED_LINES = 15


class ServiceFailed(MillraceError):
    """A service did not become ready; the message quotes the end of its log."""


@dataclass(frozen=True)
class Service:
    """A process to keep running.

    Attributes:
        name: What its log and the terminal call it.
        argv: Its command line.
        env: Its whole environment.
        ready: Tells whether it serves, without raising and without effects.
        cwd: Its current folder; None for that of the supervisor.
        ready_s: How long it may take until it is ready, in seconds.
        stop_s: How long it gets to end after SIGTERM, in seconds.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    ready: Callable[[], bool]
    cwd: Path | None = None
    ready_s: float = 60.0
    stop_s: float = 15.0


@dataclass(frozen=True)
class ServiceState:
    """How a service is now: `starting`, `ready`, `waiting` (before its next start) or `stopped`."""

    name: str
    state: str
    pid: int | None
    restarts: int


class Supervisor:
    """Runs services in the order given, and stops them in reverse; to be used in the main thread only."""

    def __init__(self, home: Path, services: Sequence[Service]) -> None:
        self.home = home.resolve()
        self._children = [_Child(service, self.home) for service in services]

    def start(self, report: Callable[[str], None] = lambda _: None) -> None:
        """End what a killed supervisor left here, then start each service when the one before is ready.

        Raises:
            ServiceFailed: A service died or was not ready in time; all are stopped again.
        """
        if ended := end_leftovers(self.home):
            report(f"Ended what the last run had left: {', '.join(ended)}.")
        try:
            for child in self._children:
                report(f"Starting {child.service.name} ...")
                child.spawn()
                while child.state == "starting":
                    child.look(at_first=True)
                    time.sleep(0.05)
        except BaseException:
            self.stop()
            raise

    def poll(self) -> list[str]:
        """Start again what died, each after its own growing delay; return a sentence for each change."""
        return [sentence for child in self._children for sentence in child.look()]

    def states(self) -> list[ServiceState]:
        """Return how each service is, as of the last `poll`."""
        return [ServiceState(child.service.name, child.state, child.pid, child.restarts) for child in self._children]

    def stop(self, report: Callable[[str], None] = lambda _: None) -> None:
        """End every process of every service, the last started first; asks, waits, then kills."""
        for child in reversed(self._children):
            if child.state != "stopped":
                report(f"Stopping {child.service.name} ...")
                child.end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Child:
    """One service's process and what is known about it."""

    def __init__(self, service: Service, home: Path) -> None:
        self.service = service
        self.log = home / "logs" / f"{service.name}.log"
        self.mark = home / "run" / service.name
        self.state = "stopped"
        self.restarts = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._delay = FIRST_DELAY_S

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    def spawn(self) -> None:
        for folder in (self.log.parent, self.mark.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.rename(self.log.with_name(f"{self.log.name}.1"))
        with self.log.open("ab") as log, _default_signals():
            try:
                self._popen = subprocess.Popen(  # noqa: S603  the caller's own command
                    list(self.service.argv),
                    env={**self.service.env, MARK: str(self.mark)},
                    cwd=self.service.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServiceFailed(f"{self.service.name} cannot be started: {error}") from error
        created = psutil.Process(self._popen.pid).create_time()
        record = {"pid": self._popen.pid, "created": created, "argv": list(self.service.argv)}
        self._record.write_text(json.dumps(record))
        self.state, self._since = "starting", time.monotonic()

    def look(self, *, at_first: bool = False) -> list[str]:
        """Move to the next state if it is time; at the first start a failure is raised, later retried."""
        name, now = self.service.name, time.monotonic()
        if self.state == "waiting":
            return self._spawn_again() if now - self._since >= self._delay else []
        if self._popen is None:
            return []
        code = self._popen.poll()
        if code is None and self.state == "ready":
            if now - self._since > STEADY_S:
                self._delay = FIRST_DELAY_S
            return []
        if code is None and self.service.ready():
            self.state, self._since = "ready", now
            return [] if at_first else [f"{name} is ready again."]
        if code is None and now - self._since < self.service.ready_s:
            return []
        failure = "was not ready in time" if code is None else f"ended with {_meaning(code)}"
        self.end()
        if at_first:
            raise ServiceFailed(f"{name} {failure}. The end of {self.log}:\n{self._last_lines()}")
        self.state, self._since = "waiting", now
        return [f"{name} {failure}; it starts again in {self._delay:.0f} s. Its log: {self.log}"]

    def _spawn_again(self) -> list[str]:
        self._delay = min(self._delay * 2, LONGEST_DELAY_S)
        self.restarts += 1
        try:
            self.spawn()
        except (OSError, ServiceFailed) as error:
            # A full disk, or a program that is just being installed: neither is a reason to stop the others.
            self.end()
            self.state, self._since = "waiting", time.monotonic()
            return [f"{error}; it is tried again in {self._delay:.0f} s."]
        return []

    def end(self) -> None:
        if self._popen is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGTERM)
            leader = [psutil.Process(self._popen.pid)] if self._popen.poll() is None else []
            strays = _descendants(leader, str(self.mark))
            # Those in other groups are mostly ended by their parents, so the group goes first.
            asked = [process for process in strays if _group_of(process) == self._popen.pid]
            wait_ended([*leader, *asked], self.service.stop_s)
            _end_all(lambda: _descendants(leader, str(self.mark)), strays, ORPHAN_S)
            self._popen.wait()
        self._popen = None
        self._record.unlink(missing_ok=True)
        self.state = "stopped"

    @property
    def _record(self) -> Path:
        return self.mark.with_name(f"{self.service.name}.json")

    def _last_lines(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 8_000))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-QUOTED_LINES:])


def end_leftovers(home: Path) -> list[str]:
    """End all that still runs of this home's services and return their names; the caller holds the home's lock."""
    run = home.resolve() / "run"
    names = []
    leaders = []
    for record in sorted(run.glob("*.json")):
        with suppress(psutil.NoSuchProcess, ValueError, KeyError, TypeError):
            known = json.loads(record.read_text())
            process = psutil.Process(known["pid"])
            # A pid is used again; a pid and its start time are not. The clock may have been set by a little.
            if abs(process.create_time() - known["created"]) < 2 and alive(process):
                leaders.append(process)
                names.append(record.stem)
        record.unlink()
    strays = _descendants(leaders, f"{run}/")
    names += sorted({_mark_of(stray).removeprefix(f"{run}/") for stray in strays} - {"", *names})
    _end_all(lambda: _descendants(leaders, f"{run}/"), [*leaders, *strays], LEFTOVER_S)
    return sorted(names)


def _descendants(leaders: Sequence[psutil.Process], mark: str) -> list[psutil.Process]:
    """Find what these processes started: their children, and every process with the mark."""
    found = {process for process in leaders if alive(process)}
    for leader in leaders:
        with suppress(psutil.NoSuchProcess):
            found.update(leader.children(recursive=True))
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        of = _mark_of(process)
        if of == mark or (mark.endswith("/") and of.startswith(mark)):
            found.add(process)
    return [process for process in found if process.pid not in own and alive(process)]


def _mark_of(process: psutil.Process) -> str:
    with suppress(psutil.Error, OSError):
        return str(process.environ().get(MARK, ""))
    return ""


def _group_of(process: psutil.Process) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return -1


def _end_all(find: Callable[[], list[psutil.Process]], known: Sequence[psutil.Process], grace: float) -> None:
    """Ask, then kill, until nothing is left: what is being ended may still be starting others."""
    for order in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        living = [process for process in {*known, *find()} if alive(process)]
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(order)
        wait_ended(living, grace)


def _meaning(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextmanager
def _default_signals() -> Iterator[None]:
    """Let a child be interruptible even if a shell started us with ignored signals, as it does after `&`."""
    ignored = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        ignored = []
    for one in ignored:
        signal.signal(one, signal.SIG_DFL)
    try:
        yield
    finally:
        for one in ignored:
            signal.signal(one, signal.SIG_IGN)
