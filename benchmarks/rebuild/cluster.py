"""A rebuild on a standalone master with two workers of one core each, against the same in a local session.

All share this machine's cores, so CPU seconds and the shares of tasks say more than the elapsed time.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.event_store.bench import Database
from benchmarks.rebuild.bench import SAMPLE_S, Bench, Measured, Memory, Result, Seconds, seconds_of
from benchmarks.rebuild.rebuilds import drained, partitions_of
from millrace.archive.writer import archive_partition
from millrace.platform_defs.local.services import free_port
from millrace.platform_defs.local.supervisor import Service, Supervisor
from millrace.settings import Settings
from millrace.spark.java import find_java

CORES = 2
# the limit of `make run` for the heap of Spark's driver
HEAP = "1g"


@dataclass(frozen=True)
class Run:
    """One rebuild: CPU time, peak memory, and the milliseconds of each task, by stage."""

    seconds: Seconds
    memory: Memory
    stages: tuple[tuple[int, ...], ...]

    @property
    def tasks(self) -> str:
        """A description of the tasks."""
        longest = max(max(stage) / sum(stage) for stage in self.stages if len(stage) >= CORES)
        skew = max(max(stage) / median(stage) for stage in self.stages if len(stage) >= CORES)
        fewer = sum(len(stage) < CORES for stage in self.stages[:-1])
        numbers = "+".join(str(len(stage)) for stage in self.stages)
        return f"tasks {numbers}, longest {longest:.0%} of its stage, {skew:.1f} x the median, {fewer} stages below {CORES}"


def rebuilds(bench: Bench) -> list[Result]:
    """Measure rebuilds of the largest log from Postgres and from the archive, on the cluster and in a local session."""
    results = []
    for events in bench.sizes[-2:]:
        log = bench.log(events)
        drained(bench, log)
        with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
            home = Path(folder)
            for partition in partitions_of(log):
                archive_partition(log.dsn, home / "archive", partition, tail=True)
            with standalone(home) as master:
                for what, archive in (("Postgres", ""), ("the archive", str(home / "archive"))):
                    pairs = [
                        [run(bench, log, events, archive, place, home) for place in (master, f"local[{CORES}]")]
                        for _ in range(bench.rounds)
                    ]
                    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
                    results += _results(f"rebuild {events:,} events from {what}", ours, theirs)
    return results


def _results(what: str, ours: Sequence[Run], theirs: Sequence[Run]) -> list[Result]:
    cluster, local = (
        Measured(
            median(each.seconds.all for each in side),
            Memory(*(max(getattr(each.memory, name) for each in side) for name in ("driver", "workers", "postgres"))),
        )
        for side in (ours, theirs)
    )
    rows = [
        Result(f"{what}, {CORES} x 1 cores; local[{CORES}]", cluster, local, "CPU s", ratio=cluster.value / local.value)
    ]
    for name, side, measured in (("cluster", ours[-1], cluster), ("local", theirs[-1], local)):
        share = side.seconds.postgres / side.seconds.all
        rows.append(Result(f"  {name}: {side.tasks}; Postgres {share:.0%}", measured, unit="CPU s"))
    return rows


def run(bench: Bench, log: Database, events: int, archive: str, master: str, home: Path) -> Run:
    """Rebuild in a separate process, in a session of a master."""
    with tempfile.TemporaryDirectory(dir=home) as written:
        configuration = {
            "spark.driver.memory": HEAP,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{written}",
            "spark.log.level": "ERROR",
        }
        if not master.startswith("local"):
            configuration |= {
                "spark.cores.max": str(CORES),
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.executor.cores": "1",
                "spark.executor.memory": HEAP,
                "spark.ui.enabled": "false",
            }
        command = [
            sys.executable,
            "-m",
            "benchmarks.rebuild.rebuild_program",
            log.dsn,
            archive,
            json.dumps(configuration),
        ]
        with subprocess.Popen(
            command,
            env={**os.environ, "SPARK_MASTER": master},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as program:
            assert program.stdin is not None
            _answer(program, "begin")
            before = seconds_of(bench)
            begun = _now_ms()
            with _watched(bench, program.pid) as peak:
                program.stdin.write("\n")
                program.stdin.flush()
                _answer(program, f"end {events}")
            ended = _now_ms()
            seconds = seconds_of(bench).since(before)
            program.communicate("\n")
        (file,) = Path(written).rglob("events_*")
        return Run(seconds, peak[0], _stages(file, begun, ended))


def _answer(program: "subprocess.Popen[str]", word: str) -> None:
    assert program.stdout is not None
    for line in program.stdout:
        if line.strip() == word:
            return
    raise RuntimeError(f"The program ended without saying {word}.")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _stages(log: Path, begun: int, ended: int) -> tuple[tuple[int, ...], ...]:
    """Return the durations of the tasks in Spark's event log between two times, by stage in order."""
    stages: dict[int, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            task = event["Task Info"]
            if begun <= task["Launch Time"] <= ended:
                stages[event["Stage ID"]].append(max(task["Finish Time"] - task["Launch Time"], 1))
    return tuple(tuple(stages[stage]) for stage in sorted(stages))


@contextmanager
def _watched(bench: Bench, pid: int) -> Iterator[list[Memory]]:
    """Poll the memory of a driver, of all executors and Python workers, and of Postgres; the list has the peaks."""
    peak, ended = [Memory()], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            peak[0] = peak[0].most(_memory(bench, pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _memory(bench: Bench, pid: int) -> Memory:
    postgres = bench.server.pid()
    assert postgres is not None
    below = psutil.Process(pid).children(recursive=True)
    executors = [
        process
        for process in psutil.Process().children(recursive=True)
        if any(word in _command_line(process) for word in ("CoarseGrainedExecutorBackend", "pyspark.daemon"))
    ]
    driver = [psutil.Process(pid), *(process for process in below if process not in executors)]
    served = [psutil.Process(postgres), *psutil.Process(postgres).children()]
    return Memory(*(sum(map(_mb, processes)) for processes in (driver, executors, served)))


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _mb(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_full_info().pss) / 1e6
    return 0.0


@contextmanager
def standalone(home: Path) -> Iterator[str]:
    """Start a master and two workers of one core each on loopback."""
    import pyspark

    spark_home, port = Path(pyspark.__file__).parent, free_port()
    env = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(find_java(Settings(home=home).home / "java").home),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }

    def service(name: str, *arguments: str) -> Service:
        program = (str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}")
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        ready = partial(_is_up, home / "logs" / f"{name}.log")
        return Service(name, (*program, *address, *arguments[1:]), env, ready, cwd=home)

    url = f"spark://127.0.0.1:{port}"
    worker = ("worker.Worker", "--cores", "1", "--memory", "2g", "--port", "0", "--work-dir")
    workers = [service(f"worker-{n}", *worker, str(home / f"work-{n}"), url) for n in range(CORES)]
    with Supervisor(home, [service("master", "master.Master", "--port", str(port)), *workers]):
        yield url


def _is_up(log: Path) -> bool:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "I have been elected leader" in text or "Successfully registered" in text
