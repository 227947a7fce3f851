"""CPU seconds by folder of tests: of pytest, and of all servers, Sparks and commands started by its tests.

Each process of pytest moves into its own control group, which all its child processes inherit, daemons too. The kernel
counts ended processes as well. The Spark server that all processes share has its own group and line.
Without a writable cgroup2 (not root, no Linux) nothing is counted and nothing is printed.
"""

import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

_PLUGIN, _PROPERTY = "cpu_seconds", "cpu_s"


def own_group() -> Path | None:
    with suppress(OSError, StopIteration):
        mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
        root = next(Path(folder) for _, folder, kind, *_ in mounts if kind == "cgroup2")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        return root / next(line[4:] for line in lines if line.startswith("0::/"))
    return None


class Group:
    """A control group for some processes and all that they start."""

    def __init__(self, home: Path, name: str) -> None:
        self._home, self._path = home, home / f"{name}-{os.getpid()}"
        # a killed process with this number may have left its group
        self._path.mkdir(exist_ok=True)
        self._before = 0.0
        self._before = self.seconds()

    def take(self, *pids: int) -> None:
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))

    def seconds(self) -> float:
        usage, *_ = (self._path / "cpu.stat").read_text().splitlines()
        return int(usage.split()[1]) / 1e6 - self._before

    def remove(self) -> None:
        """Move the remaining processes back to the group that they came from."""
        with suppress(OSError):
            for pid in (self._path / "cgroup.procs").read_text().split():
                (self._home / "cgroup.procs").write_text(pid)
            self._path.rmdir()


class CpuSeconds:
    """The counters of one process of pytest, and the sums in the process that prints."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._group = Group(home, "tests")
        self._group.take(os.getpid())
        self._seen = 0.0
        self._shared: dict[str, Group] = {}
        self.by_folder: dict[str, float] = defaultdict(float)

    def apart(self, name: str, process: psutil.Process) -> None:
        """Count a server shared by all processes of pytest, with its children, separately."""
        self._shared[name] = Group(self._home, "shared")
        self._shared[name].take(process.pid, *(child.pid for child in process.children(recursive=True)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Charge a test with the seconds used since the previous one."""
        report = yield
        now = self._group.seconds()
        report.user_properties.append((_PROPERTY, now - self._seen))
        self._seen = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up, in the process that prints."""
        folder = report.nodeid.partition("::")[0].split("/")[:-1]
        used = dict(report.user_properties).get(_PROPERTY)
        self.by_folder["/".join(folder[: 3 if "processes" in folder else 2])] += float(str(used or 0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report the seconds of the shared servers."""
        for name, group in self._shared.items():
            self.by_folder[name] += group.seconds()
            group.remove()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_PROPERTY] = {name: self.by_folder[name] for name in self._shared}
        self._group.remove()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take over the report of another process."""
        for name, seconds in getattr(node, "workeroutput", {}).get(_PROPERTY, {}).items():
            self.by_folder[name] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"CPU seconds, all processes: {sum(self.by_folder.values()):.0f}")
        for folder, seconds in sorted(self.by_folder.items(), key=lambda each: -each[1]):
            terminalreporter.write_line(f"{seconds:8.1f} {folder}")


def register(config: pytest.Config) -> None:
    """Begin to count, if the kernel permits it."""
    home = own_group()
    if home is not None and os.access(home, os.W_OK):
        config.pluginmanager.register(CpuSeconds(home), _PLUGIN)


def apart(config: pytest.Config, name: str, server: psutil.Process) -> None:
    """Count a server shared by all processes of pytest separately, if anything is counted."""
    counting = config.pluginmanager.get_plugin(_PLUGIN)
    if counting is not None:
        counting.apart(name, server)
