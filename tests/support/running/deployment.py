"""A test's own `millrace up`: start, query, wait, stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import psutil
import psycopg
import requests
from tenacity import Retrying, retry_if_exception_type, retry_if_result, wait_fixed

from millrace.platform_defs.local.services import free_port
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import alive, wait_ended
from tests.support.patience import patience
from tests.support.running.ending import ending_with_us

MILLRACE = Path(sys.executable).parent / "millrace"
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
RUN_STATUS = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
T = TypeVar("T")


@dataclass(frozen=True)
class Deployment:
    process: subprocess.Popen[bytes]
    home: Path
    url: str
    env: dict[str, str]
    log: IO[bytes]

    @property
    def dsn(self) -> str:
        return EmbeddedPostgres(self.home / "postgres").dsn("millrace")

    def ask(self, query: str, **variables: object) -> Any:  # noqa: ANN401 - JSON
        answer = requests.post(
            f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=patience()
        ).json()
        assert "errors" not in answer, answer
        return next(iter(answer["data"].values()))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def finished(self, run: str) -> str:
        return until(lambda: str(self.ask(RUN_STATUS, run=run)["status"]), FINISHED.__contains__)

    def said(self) -> str:
        """Return its output so far without moving the file position, which the writing process shares."""
        descriptor = self.log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()

    def stop(self, how: signal.Signals = signal.SIGINT) -> str:
        """Stop it by Ctrl-C or another signal, assert that no process of it is left, and return its output."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(how)
        assert self.process.wait(patience()) == 0, self.said()
        assert [child for child in wait_ended(children, patience()) if alive(child)] == []
        assert EmbeddedPostgres(self.home / "postgres").pid() is None
        return self.said()


def until(look: Callable[[], T], fits: Callable[[T], object], more_s: float = 0) -> T:
    """Poll until the result fits, with a limit for whole platforms, and `more_s` seconds."""
    patiently = Retrying(
        retry=retry_if_result(lambda seen: not fits(seen))
        | retry_if_exception_type((requests.RequestException, psycopg.Error)),
        wait=wait_fixed(0.3),
        stop=lambda state: (state.seconds_since_start or 0) > 3 * patience() + more_s,
    )
    return patiently(look)


@contextmanager
def started(home: Path, *, folder: Path | None = None, more: Mapping[str, str] | None = None) -> Iterator[Deployment]:
    """Start `millrace up` and wait for its UI; at the end stop everything of it that still runs, services too.

    It also stops by itself when the process of the tests is killed.
    """
    port = free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MILLRACE_", "SPARK_", "DAGSTER_"))}
    env |= {"MILLRACE_HOME": str(home), "MILLRACE_PORT": str(port), "MILLRACE_METRICS_PORT": str(free_port())}
    env |= more or {}
    # a full pipe without a reader would block it
    with TemporaryFile() as log:
        process = subprocess.Popen(ending_with_us([MILLRACE, "up"]), env=env, cwd=folder, stdout=log, stderr=log)
        try:
            deployment = Deployment(process, home, f"http://127.0.0.1:{port}", env, log)
            until(
                lambda: (
                    process.poll() is not None or requests.get(f"{deployment.url}/server_info", timeout=patience()).ok
                ),
                bool,
            )
            assert process.poll() is None, deployment.said()
            yield deployment
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(patience())
