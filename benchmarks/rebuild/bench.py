"""How each line is measured: the server, the session, logs of a size, rounds in turn, memory, the table of results."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import Database
from benchmarks.servers import started
from millrace.assets.declarations import declared
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.events import register_shop
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = replace(declared("millrace.examples.shop", ["read_models"]).models["orders"], lookups={})
EVENTS_PER_ORDER = 5
ORDERS_PER_CALL = 2000
SAMPLE_S = 0.3


@dataclass(frozen=True)
class Memory:
    """The peak memory of each process, in MB; shared memory is counted once."""

    driver: float = 0.0
    workers: float = 0.0
    postgres: float = 0.0

    def most(self, other: "Memory") -> "Memory":
        """Return, for each process, the larger of the two numbers."""
        return Memory(
            max(self.driver, other.driver), max(self.workers, other.workers), max(self.postgres, other.postgres)
        )


@dataclass(frozen=True)
class Measured:
    """The median of the rounds, and the peak memory of all rounds."""

    value: float
    memory: Memory


@dataclass(frozen=True)
class Result:
    """One row of the table: two numbers of the same unit, their ratio, and the memory of our side.

    A target is the least that the ratio may be; with `at_most` the most.
    """

    what: str
    ours: Measured
    baseline: Measured | None = None
    unit: str = "events/s"
    ratio: float | None = None
    target: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether the ratio meets the target; None without a target."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


@dataclass(frozen=True)
class Seconds:
    """Seconds of CPU of each process."""

    driver: float
    jvm: float
    workers: float
    postgres: float

    @property
    def all(self) -> float:
        """The sum."""
        return self.driver + self.jvm + self.workers + self.postgres

    def since(self, before: "Seconds") -> "Seconds":
        """Return the difference."""
        return Seconds(
            self.driver - before.driver,
            self.jvm - before.jvm,
            self.workers - before.workers,
            self.postgres - before.postgres,
        )


@dataclass
class Bench:
    """A server and a session for one run, and how much to measure."""

    server: EmbeddedPostgres
    spark: "SparkSession"
    sizes: Sequence[int]
    rounds: int
    console: Console
    _logs: dict[int, Database] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def log(self, events: int) -> Database:
        """Return a database of ours whose log has `events` events of the shop's orders; shared, so append nothing."""
        if events not in self._logs:
            self._logs[events] = self.orders(events // EVENTS_PER_ORDER)
        return self._logs[events]

    def orders(self, number: int, events: int = EVENTS_PER_ORDER) -> Database:
        """Make a new database of ours with `number` orders of `events` events each."""
        database = Database(self._create(), ours=True)
        migrate(database.dsn)
        with database.connect() as connection:
            register_shop(PlatformStore(connection))
            self.console.log(f"  filling a log with {number * events:,} events", style="dim")
            append_orders(connection, "o", range(1, number + 1), events)
            while PlatformStore(connection).sequence_events():
                pass
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")
        return database

    def in_turn(self, *measures: Callable[[], float]) -> list[Measured]:
        """Measure A B A B … for the requested rounds."""
        measured: list[list[float]] = [[] for _ in measures]
        peaks = [Memory() for _ in measures]
        for number in range(self.rounds):
            self.console.log(f"  round {number + 1} of {self.rounds}", style="dim")
            for side, measure in enumerate(measures):
                with self.watched() as peak:
                    measured[side].append(measure())
                peaks[side] = peaks[side].most(peak[0])
        return [Measured(median(values), peak) for values, peak in zip(measured, peaks, strict=True)]

    @contextmanager
    def watched(self) -> Iterator[list[Memory]]:
        """Poll the memory of all processes several times a second; at the end the list has the peaks."""
        peak = [Memory()]
        ended = threading.Event()

        def watch() -> None:
            while True:
                peak[0] = peak[0].most(self._memory())
                if ended.wait(SAMPLE_S):
                    return

        watcher = threading.Thread(target=watch, name="memory", daemon=True)
        watcher.start()
        try:
            yield peak
        finally:
            ended.set()
            watcher.join()

    def _memory(self) -> Memory:
        main = psutil.Process()
        processes = [main, *main.children(recursive=True)]
        workers = [process for process in processes if "pyspark.daemon" in _command(process)]
        driver = [process for process in processes if process not in workers]
        pid = self.server.pid()
        postgres = [psutil.Process(pid), *psutil.Process(pid).children()] if pid else []
        return Memory(*(sum(map(_mb, processes)) for processes in (driver, workers, postgres)))

    def _create(self) -> str:
        name = f"bench_{next(self._numbers)}"
        self.server.create_database(name)
        return self.server.dsn(name)


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _mb(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_full_info().pss) / 1e6
    return 0.0


@contextmanager
def bench(*, sizes: Sequence[int], rounds: int, console: Console, programs: Path) -> Iterator[Bench]:
    """Start a temporary server and a local session for a run, and remove them at the end."""
    for name in ("SPARK_REMOTE", "SPARK_MASTER"):
        os.environ.pop(name, None)  # both sides run on this machine
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        started(Path(directory), programs, console) as server,
        spark_session({"spark.log.level": "ERROR"}) as spark,
    ):
        yield Bench(server, spark, sizes, rounds, console)


def seconds_of(bench: Bench) -> Seconds:
    """Return the seconds of CPU until now: of this process, of its children, of Postgres."""
    driver = psutil.Process()
    pid = bench.server.pid()
    served = {pid, *(one.pid for one in psutil.Process(pid).children())} if pid else set()
    spent = {"jvm": 0.0, "workers": 0.0}
    for process in driver.children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if process.pid not in served:
                side = "workers" if "pyspark.daemon" in " ".join(process.cmdline()) else "jvm"
                spent[side] += _on_cpu(process)
    return Seconds(_on_cpu(driver), spent["jvm"], spent["workers"], of_server(bench.server))


def _on_cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def append_orders(connection: psycopg.Connection, label: str, numbers: range, events: int = EVENTS_PER_ORDER) -> None:
    """Append to new orders, by their numbers: placed, three lines, confirmed, or the first `events` of these."""
    for first in range(numbers.start, numbers.stop, ORDERS_PER_CALL):
        connection.execute(
            """
            select count(*) from event_store.append_events((
              select jsonb_agg(jsonb_build_object(
                'decider', 'order',
                'decider_id', %(label)s || '-' || s,
                'event', case n when 1 then 'order_placed' when 5 then 'order_confirmed' else 'order_line_added' end,
                'event_id', md5(%(label)s || s || '-' || n)::uuid,
                'command_id', md5(%(label)s || s || '-' || n)::uuid,
                'data', jsonb_build_object(
                  'customer_id', 'customer-' || s %% 1000, 'channel', 'web', 'product', 'casserole',
                  'quantity', n, 'amount', (s %% 10000) / 100.0, 'total', 0
                )
              ) order by n, s)
              from generate_series(%(first)s::int, %(last)s::int) s, generate_series(1, %(events)s::int) n
            ))
            """,
            {
                "label": label,
                "first": first,
                "last": min(first + ORDERS_PER_CALL, numbers.stop) - 1,
                "events": events,
            },
        )


def show(console: Console, results: Sequence[Result]) -> None:
    """Print the table."""
    table = Table(title="Rebuilding a read model")
    table.add_column("line", min_width=40)
    for heading in ("ours", "baseline", "unit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for heading in ("driver MB", "workers MB", "Postgres MB"):
        table.add_column(heading, justify="right")
    marks = {None: "", True: "[green]reached[/green]", False: "[red]missed[/red]"}
    for result in results:
        memory = result.ours.memory
        table.add_row(
            result.what,
            f"{result.ours.value:,.2f}" if result.ours.value < 100 else f"{result.ours.value:,.0f}",
            ""
            if result.baseline is None
            else f"{result.baseline.value:,.2f}"
            if result.baseline.value < 100
            else f"{result.baseline.value:,.0f}",
            result.unit,
            "" if result.ratio is None else f"{result.ratio:.2f} x",
            "" if result.target is None else f"{'≤' if result.at_most else '≥'} {result.target:.2f} x",
            marks[result.reached],
            *(f"{number:,.0f}" for number in (memory.driver, memory.workers, memory.postgres)),
        )
    console.print(table)
