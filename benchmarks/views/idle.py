"""What a whole platform costs that has nothing to do: `millrace up` with forty declared views, and no event.

Belongs here: starting it, waiting until it rests, and looking at its processes. Not here: what is printed (`__main__`).
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import requests

from benchmarks.views.platform.read_models import VIEWS
from millrace.examples.shop.events import register_shop
from millrace.platform_defs.local.services import free_port
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.postgres.dsn import DATABASE
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.settings import PROJECT

PATIENCE_S = 180.0
LOOK_S = 0.5
RUNS = "query { runsOrError(limit: 100) { ... on Runs { results { runId jobName status } } } }"
UNFINISHED = {"QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING"}
# by a word of the command, the first that fits
KINDS = {
    "postgres": "Postgres",
    "SparkConnectServer": "Spark",
    "pyspark": "workers",
    "spawn_main": "runs",
    "code-server": "code server",
    "api grpc": "code server",
    "dagster-daemon": "daemon",
    "platform_defs.web": "UI",
    "sequence": "sequencer",
    "millrace": "up",
}


@dataclass(frozen=True)
class Cost:
    """What a platform took: cores and MB (PSS) by kind of process, and the processes that there were in the end.

    `runs` are those that were started meanwhile, by their job.
    """

    cores: dict[str, float]
    megabytes: dict[str, float]
    processes: int
    runs: Counter[str]


@dataclass
class Platform:
    """A platform that runs."""

    process: psutil.Process
    server: EmbeddedPostgres
    port: int

    @property
    def url(self) -> str:
        """Where the UI is."""
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[psutil.Process]:
        """Return all of its processes."""
        found = [self.process, *self.process.children(recursive=True)]
        if (pid := self.server.pid()) is not None:
            found += [psutil.Process(pid), *psutil.Process(pid).children()]
        return found

    def seconds(self) -> dict[str, float]:
        """Return seconds on a CPU until now, by kind, with those of children that have ended."""
        taken: dict[str, float] = defaultdict(float)
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                taken[_kind(process)] += times.user + times.system + times.children_user + times.children_system
        return taken

    def megabytes(self) -> dict[str, float]:
        """Return the memory of each kind; what processes share is counted once."""
        taken: dict[str, float] = defaultdict(float)
        for process in self.processes():
            with suppress(psutil.Error):
                taken[_kind(process)] += process.memory_full_info().pss / 1e6
        return taken

    def runs(self) -> dict[str, tuple[str, str]]:
        """Return job and status of each run."""
        answer = requests.post(f"{self.url}/graphql", json={"query": RUNS}, timeout=30).json()
        return {run["runId"]: (run["jobName"], run["status"]) for run in answer["data"]["runsOrError"]["results"]}

    def rest(self) -> None:
        """Wait until no run is at work."""
        wait(lambda: not any(status in UNFINISHED for _, status in self.runs().values()))

    def cost(self, seconds: float, each_second: Callable[[], object] = lambda: None) -> Cost:
        """Watch it for so many seconds, and do something in each."""
        runs, before, began = set(self.runs()), self.seconds(), time.monotonic()
        while time.monotonic() - began < seconds:
            each_second()
            time.sleep(1)
        after, took = self.seconds(), time.monotonic() - began
        cores = {kind: (after[kind] - before[kind]) / took for kind in after if after[kind] > before[kind]}
        started = Counter(job for run, (job, _) in self.runs().items() if run not in runs)
        return Cost(cores, self.megabytes(), len(self.processes()), started)


@contextmanager
def platform() -> Iterator[Platform]:
    """Start a platform of forty views, wait until all are made and no run is at work, and stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home, port = Path(folder) / "home", free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "SPARK_"))}
        env |= {
            "MILLRACE_HOME": str(home),
            "MILLRACE_PORT": str(port),
            "MILLRACE_DECLARATIONS": "benchmarks.views.platform",
            "PYTHONPATH": str(PROJECT),
        }
        command = [str(Path(sys.executable).parent / "millrace"), "up"]
        with (Path(folder) / "log").open("w") as log:
            started = subprocess.Popen(command, env=env, cwd=PROJECT, stdout=log, stderr=log)
        try:
            found = Platform(psutil.Process(started.pid), EmbeddedPostgres(home / "postgres"), port)
            wait(lambda: _answers(port))
            with psycopg.connect(found.server.dsn(DATABASE), autocommit=True) as connection:
                register_shop(EventStore(connection))
                made = "select count(*) from read_models.declarations"
                wait(lambda: (connection.execute(made).fetchone() or (0,))[0] == VIEWS)
            found.rest()
            yield found
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(60)


def pay(found: Platform) -> None:
    """Append an event that two kinds of views want."""
    data = {"order_id": "order-1", "customer_id": "customer-1", "amount": 1, "method": "card"}
    event = NewEvent("payment", str(uuid4()), "payment_requested", uuid4(), data, uuid4())
    with psycopg.connect(found.server.dsn(DATABASE), autocommit=True) as connection:
        EventStore(connection).append_events([event])


def _answers(port: int) -> bool:
    with suppress(requests.RequestException):
        return requests.get(f"http://127.0.0.1:{port}/server_info", timeout=3).ok
    return False


def wait(is_so: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: It is not so after three minutes.
    """
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError("the platform does not come to rest")
        time.sleep(LOOK_S)


def _kind(process: psutil.Process) -> str:
    command = f"{process.name()} {' '.join(process.cmdline())}"
    return next((kind for word, kind in KINDS.items() if word in command), "others")
