"""CPU time of a process, of a server with all its backends, of a call: other work hardly affects it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from millrace.postgres.embedded import EmbeddedPostgres


def on_cpu(pid: int) -> int:
    """Return how long the first thread of a process has been on a CPU, in nanoseconds; a backend has one thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def with_children(pid: int) -> float:
    """Return the seconds of CPU of a process and its children, ended ones included."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    seconds = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            seconds += times.user + times.system
    return float(seconds)


def of_server(server: EmbeddedPostgres) -> float:
    """Return the seconds of CPU of a server with all its backends."""
    pid = server.pid()
    if pid is None:
        raise RuntimeError("The server does not run.")
    return with_children(pid)


def backend_us(connection: psycopg.Connection, work: Callable[[], object], calls: int = 1) -> float:
    """Do work on a connection; return the CPU of its backend in microseconds per call."""
    pid = connection.info.backend_pid
    before = on_cpu(pid)
    work()
    return (on_cpu(pid) - before) / calls / 1000
