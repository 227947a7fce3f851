"""Local services: child processes that are started, watched, restarted and ended together.

Every process of a service inherits one environment variable, `MILLRACE_SERVICE=<home>/run/<name>`. By it the
supervisor finds exactly these processes, also those that left their group, session and parent, and after a kill.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from millrace.errors import MillraceError
from millrace.patience import AWAY_S, BUSY_S, FAREWELL_S, GLANCE_S, PATIENCE_S, PAUSE_S, POLL_S, WATCH_S
from millrace.platform_defs.local.asking import Asking
from millrace.processes import alive, wait_ended

MARK = "MILLRACE_SERVICE"
# the folder of a home that has a folder for each service that is supervised by itself
WATCHED = "watched"
# A service that was not ready in time gets twice as long the next time, up to this limit.
LONGEST_READY_S = 10 * PATIENCE_S
LOG_BYTES = 20_000_000
QUOTED_LINES = 15
# A stopped process handles SIGTERM only after SIGCONT.
ENDING = (signal.SIGTERM, signal.SIGCONT)


class ServiceFailed(MillraceError):
    """A service cannot be started, or is not ready."""


@dataclass(frozen=True)
class Service:
    """A process to keep running.

    Attributes:
        name: What its log and the terminal call it.
        argv: Its command line.
        env: Its whole environment.
        ready: Returns whether it serves, without effects. It is called until it does, then every ten seconds, in a
            thread, one call at a time. A service is ended and started again after three answers of no in a row; no
            answer for ten seconds counts as a no, and `CannotTell` does not count.
        cwd: Its current folder; None for that of the supervisor.
        ready_s: Time limit until it is ready, in seconds; doubled each time that it was not.
        stop_s: Time limit for its end after SIGTERM, in seconds.
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
    """The current state of a service.

    Attributes:
        name: What its log and the terminal call it.
        state: `starting`, `ready`, `ending` (because it failed), `waiting` (before its next start) or `stopped`.
        pid: Its process, if it has one.
        restarts: How often it was started again.
        cause: Why it is not ready, in a sentence; empty if it is ready, and while it starts for the first time.
    """

    name: str
    state: str
    pid: int | None
    restarts: int
    cause: str


class Supervisor:
    """Runs services in the order given, and stops them in reverse; to be used in the main thread only."""

    def __init__(self, home: Path, services: Sequence[Service]) -> None:
        self.home = home.resolve()
        self._children = [_Child(service, self.home) for service in services]
        self._written: list[ServiceState] = []

    def start(self, report: Callable[[str], None] = lambda _: None, stop: threading.Event | None = None) -> None:
        """End what a killed supervisor left here, then start each service when the one before is ready, or has failed.

        `poll` retries a failed service while the others start. Once `stop` is set, it waits for no service.

        Raises:
            ServiceFailed: A program is missing; all services are stopped again.
        """
        if ended := end_leftovers(self.home):
            report(f"Ended what the last run had left: {', '.join(ended)}.")
        stop = stop or threading.Event()
        try:
            for child in self._children:
                report(f"Starting {child.service.name} ...")
                child.spawn()
                while child.state == "starting" and child.restarts == 0 and not stop.wait(GLANCE_S):
                    for sentence in self.poll():
                        report(sentence)
        except BaseException:
            self.stop()
            raise

    def poll(self) -> list[str]:
        """Ask each service if it is time, and restart each failed service after its own growing delay.

        Never waits for a service.

        Returns:
            A sentence for each change.
        """
        sentences = [sentence for child in self._children for sentence in child.advance()]
        states = self.states()
        if states != self._written:
            file = _states_file(self.home)
            fresh = file.with_name(f"{file.name}.new")
            record = {**_identity(os.getpid()), "services": [asdict(state) for state in states]}
            # for `services_down`; a full disk must not stop a service
            with suppress(OSError):
                fresh.write_text(json.dumps(record))
                fresh.replace(file)
                self._written = states
        return sentences

    def states(self) -> list[ServiceState]:
        """Return the state of each service, as of the last `poll`."""
        return [
            ServiceState(child.service.name, child.state, child.pid, child.restarts, child.cause)
            for child in self._children
        ]

    def stop(self, report: Callable[[str], None] = lambda _: None) -> None:
        """End every process of every service, in reverse order of their start: ask, wait, then kill."""
        for child in reversed(self._children):
            if child.state != "stopped":
                report(f"Stopping {child.service.name} ...")
                child.stop()
        _states_file(self.home).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Start the services.

        Raises:
            ServiceFailed: A service is not ready; all are stopped again.
        """
        sentences: list[str] = []
        self.start(sentences.append)
        if any(child.state != "ready" for child in self._children):
            self.stop()
            raise ServiceFailed("\n".join(sentences))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Child:
    def __init__(self, service: Service, home: Path) -> None:
        self.service = service
        self.log = home / "logs" / f"{service.name}.log"
        self.mark = home / "run" / service.name
        self.state = "stopped"
        self.restarts = 0
        self.cause = ""
        self._asking = Asking(service.ready)
        self._popen: subprocess.Popen[bytes] | None = None
        self._ending: threading.Thread | None = None
        self._since = self._reported_at = 0.0
        self._delay = PAUSE_S
        self._ready_s = service.ready_s

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    def spawn(self) -> None:
        for folder in (self.log.parent, self.mark.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._bound_log()
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
        self._asking.begin()
        self._record.write_text(json.dumps({**_identity(self._popen.pid), "argv": list(self.service.argv)}))
        self.state = "starting"
        self._since = self._reported_at = time.monotonic()

    def _bound_log(self) -> None:
        """Move the end of a too large log to a file beside it: the service continues at the start of the log."""
        if not self.log.exists() or self.log.stat().st_size <= LOG_BYTES:
            return
        # on a full disk that end is lost
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(-LOG_BYTES, os.SEEK_END)
            self.log.with_name(f"{self.log.name}.1").write_bytes(log.read(LOG_BYTES))
        os.truncate(self.log, 0)

    def advance(self) -> list[str]:
        """Move to the next state if it is time."""
        self._bound_log()
        now = time.monotonic()
        if self.state == "ending" and self._ending is not None and not self._ending.is_alive():
            self.state, self._ending, self._since = "waiting", None, now
        if self.state == "waiting":
            return self._spawn_again() if now - self._since >= self._delay else []
        if self.state not in {"starting", "ready"} or self._popen is None:
            return []
        code = self._popen.poll()
        if code is not None:
            meaning = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return self._fail(f"ended with {meaning}")
        if self.state == "starting":
            return self._advance_start(now)
        self._asking.poll(WATCH_S)
        if self._asking.lost:
            return self._fail(f"did not answer {self._asking.misses} times in a row")
        # a service that stayed ready this long gets a quick restart again
        if now - self._since > PATIENCE_S:
            self._delay, self._ready_s = PAUSE_S, self.service.ready_s
        return []

    def _advance_start(self, now: float) -> list[str]:
        if self._asking.poll(POLL_S):
            self.state, self._since, self.cause = "ready", now, ""
            return [f"{self.service.name} is ready again."] if self.restarts else []
        seconds = now - self._since
        if seconds >= self._ready_s:
            limit = self._ready_s
            self._ready_s = max(min(limit * 2, LONGEST_READY_S), limit)
            return self._fail(f"was not ready in {limit:g} s")
        if now - self._reported_at < WATCH_S:
            return []
        self._reported_at = now
        return [f"{self.service.name} is still starting, for {seconds:.0f} s of {self._ready_s:g} s."]

    def _fail(self, failure: str) -> list[str]:
        """End the rest of its processes in a thread: this may take long, and must not block other services."""
        log = f"Its log: {self.log}"
        if not self.restarts:
            with self.log.open("rb") as written:
                written.seek(max(0, self.log.stat().st_size - 8_000))
                end = "\n".join(written.read().decode(errors="replace").splitlines()[-QUOTED_LINES:])
            log = f"The end of {self.log}:\n{end}"
        self.cause = f"It {failure}. Its log: {self.log}"
        self.state = "ending"
        self._ending = threading.Thread(target=self._end_processes, name=f"ending {self.service.name}", daemon=True)
        self._ending.start()
        return [f"{self.service.name} {failure}; it starts again in {self._delay:.0f} s. {log}"]

    def _spawn_again(self) -> list[str]:
        self._delay = min(self._delay * 2, AWAY_S)
        self.restarts += 1
        try:
            self.spawn()
        except (OSError, ServiceFailed) as error:
            # A full disk, or a program that is just being installed, must not stop the other services.
            self._end_processes()
            self.state, self._since, self.cause = "waiting", time.monotonic(), str(error)
            return [f"{error}; it is tried again in {self._delay:.0f} s."]
        return []

    def stop(self) -> None:
        if self._ending is not None:
            self._ending.join()
        self._end_processes()
        self.state = "stopped"

    def _end_processes(self) -> None:
        if self._popen is not None:
            for order in ENDING:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, order)
            leader = [psutil.Process(self._popen.pid)] if self._popen.poll() is None else []
            strays = _descendants(leader, str(self.mark))
            # Parents mostly end their processes in other groups, so the group goes first.
            signalled = [process for process in strays if _group_of(process) == self._popen.pid]
            wait_ended([*leader, *signalled], self.service.stop_s)
            # processes that a dead service left should end soon
            _end_all(lambda: _descendants(leader, str(self.mark)), strays, FAREWELL_S)
            self._popen.wait()
        self._popen = None
        self._record.unlink(missing_ok=True)

    @property
    def _record(self) -> Path:
        return self.mark.with_name(f"{self.service.name}.json")


def services_down(home: Path) -> list[ServiceState]:
    """Return the services that are not ready, of all supervisors that run in this home."""
    down = []
    for file in (_states_file(home), *home.glob(f"{WATCHED}/*/{_states_file(home).name}")):
        # the file is missing, or another version of this code wrote it
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(file.read_text())
            states = [ServiceState(**state) for state in record["services"]]
            down += [state for state in states if state.state != "ready" and _process_of(record)]
    return down


def sentence_on_service(state: ServiceState) -> str:
    """Return a sentence for operators on a service that is not ready."""
    return f"The service {state.name} is not up, it is {state.state}. {state.cause}".strip()


def _states_file(home: Path) -> Path:
    return home.resolve() / "services.json"


def end_leftovers(home: Path) -> list[str]:
    """End all processes left of this home's services, and return these names; the caller holds the home's lock."""
    run = home.resolve() / "run"
    names = []
    leaders = []
    for record in sorted(run.glob("*.json")):
        with suppress(ValueError, KeyError, TypeError):
            process = _process_of(json.loads(record.read_text()))
            if process is not None:
                leaders.append(process)
                names.append(record.stem)
        record.unlink()
    strays = _descendants(leaders, f"{run}/")
    names += sorted({_mark_of(stray).removeprefix(f"{run}/") for stray in strays} - {"", *names})
    # a process that a killed supervisor left may be finishing a run
    _end_all(lambda: _descendants(leaders, f"{run}/"), [*leaders, *strays], BUSY_S)
    return sorted(names)


def _identity(pid: int) -> dict[str, object]:
    """Return the identity of a process: pids are reused, but not with the same start time."""
    return {"pid": pid, "created": psutil.Process(pid).create_time()}


def _process_of(identity: Mapping[str, Any]) -> psutil.Process | None:
    """Return the process with an `_identity`, if it lives; tolerates a clock that was set by up to two seconds."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(identity["pid"])
        if abs(process.create_time() - identity["created"]) < 2 and alive(process):
            return process
    return None


def _descendants(leaders: Sequence[psutil.Process], mark: str) -> list[psutil.Process]:
    """Find these processes with all their children, and every process with the mark."""
    found = {process for process in leaders if alive(process)}
    for leader in leaders:
        with suppress(psutil.NoSuchProcess):
            found.update(leader.children(recursive=True))
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        of = _mark_of(process)
        if of == mark or (mark.endswith("/") and of.startswith(mark)):
            found.add(process)
    return [process for process in found if process.pid not in spared and alive(process)]


def _mark_of(process: psutil.Process) -> str:
    with suppress(psutil.Error, OSError):
        return str(process.environ().get(MARK, ""))
    return ""


def _group_of(process: psutil.Process) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return -1


def _end_all(find: Callable[[], list[psutil.Process]], strays: Sequence[psutil.Process], grace: float) -> None:
    """Ask, then kill, again and again: a process that is ending may still start others."""
    for orders in (ENDING, (signal.SIGKILL,), (signal.SIGKILL,)):
        living = [process for process in {*strays, *find()} if alive(process)]
        for process in living:
            for order in orders:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(order)
        wait_ended(living, grace)


@contextmanager
def _default_signals() -> Iterator[None]:
    """Make a child interruptible even if a shell started us with ignored signals, as it does after `&`."""
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
