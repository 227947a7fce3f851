"""How each line is measured: the server, its databases, rounds in turn, pgbench, and the table of results."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.cpu import of_server
from benchmarks.servers import started
from millrace.event_store.migrations import migrate
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres

# A page of the schema begins with the page's own text and line numbers; the SQL begins here.
FIRST_LINE = "-- ####"
DATA = '{"customer_id": "customer-17", "total": "19.90", "lines": [{"sku": "sku-1", "quantity": 2}], "channel": "web"}'
EVENTS_PER_STREAM = 5


@dataclass(frozen=True)
class Result:
    """One row of the table: two numbers of the same unit and their ratio."""

    what: str
    ours: float
    baseline: float | None = None
    unit: str = "events/s"
    ratio: float | None = None
    target: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is at least the target; None without a target."""
        return None if self.ratio is None or self.target is None else self.ratio >= self.target


@dataclass(frozen=True)
class Database:
    """One database, with our schema or the other one, and how its functions are called."""

    dsn: str
    ours: bool

    @property
    def schema(self) -> str:
        """The prefix of its functions."""
        return "event_store." if self.ours else ""

    def connect(self) -> psycopg.Connection:
        """Connect with autocommit."""
        return psycopg.connect(self.dsn, autocommit=True)

    def run(self, sql: str) -> list[tuple[object, ...]]:
        """Run one statement in a new session."""
        with self.connect() as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def register_views(self, number: int) -> None:
        """Register views that want every event."""
        if number:
            start = "'-infinity'" if self.ours else "'-infinity'::timestamp"
            self.run(
                f"select from generate_series(1, {number}) n, lateral {self.schema}register_view('view-' || n, {start}) v"
            )


@dataclass
class Bench:
    """A server for one run, and how much to measure."""

    server: EmbeddedPostgres
    other_schema: str
    rounds: int
    small: bool
    console: Console
    events: int = 0
    # CPU of the server in runs of pgbench, by database: microseconds per transaction
    cpu_us: dict[Database, list[float]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def size(self, full: int, small: int) -> int:
        """Return how many to measure: the full number, or few for a trial run."""
        return small if self.small else full

    def ours(self, log_partitions: int = 16) -> Database:
        """Make a new database of ours."""
        database = Database(self._create("ours"), ours=True)
        migrate(database.dsn, log_partitions=log_partitions)
        return self._registered(database)

    def theirs(self) -> Database:
        """Make a new database with the other schema."""
        database = Database(self._create("theirs"), ours=False)
        with database.connect() as connection:
            connection.execute(self.other_schema.encode())
        return self._registered(database)

    def in_turn(self, *measures: Callable[[], float]) -> list[float]:
        """Measure A B A B … for the requested rounds, and return the median of each."""
        measured: list[list[float]] = [[] for _ in measures]
        for number in range(self.rounds):
            self.console.log(f"  round {number + 1} of {self.rounds}", style="dim")
            for measure, values in zip(measures, measured, strict=True):
                values.append(measure())
        return [median(values) for values in measured]

    def pgbench(self, database: Database, script: str, clients: int) -> float:
        """Run a script with `clients` clients for some seconds, and return its transactions per second."""
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            seconds = str(self.size(5, 1))
            jobs = str(min(clients, os.cpu_count() or 1))
            command = [str(PROGRAMS / "pgbench"), "-n", "-M", "prepared", "-f", file.name, "-c", str(clients)]
            before = of_server(self.server)
            completed = subprocess.run(
                [*command, "-j", jobs, "-T", seconds, database.dsn],
                env={**os.environ, "LD_LIBRARY_PATH": str(PROGRAMS.parent / "lib")},
                capture_output=True,
                text=True,
                check=False,
            )
        found = re.search(r"tps = ([\d.]+)", completed.stdout)
        transactions = re.search(r"actually processed: (\d+)", completed.stdout)
        if completed.returncode != 0 or found is None or transactions is None:
            raise RuntimeError(f"pgbench failed: {completed.stderr or completed.stdout}")
        used = (of_server(self.server) - before) / int(transactions[1]) * 1e6
        self.cpu_us.setdefault(database, []).append(used)
        return float(found[1])

    def _create(self, kind: str) -> str:
        name = f"{kind}_{next(self._numbers)}"
        self.server.create_database(name)
        return self.server.dsn(name)

    def _registered(self, database: Database) -> Database:
        database.run(f"select from {database.schema}register_decider_event('order', 'placed', 'An order was placed.')")
        return database


@contextmanager
def bench(
    other_schema: Path,
    *,
    rounds: int,
    small: bool,
    console: Console,
    programs: Path = PROGRAMS,
    events: int = 0,
) -> Iterator[Bench]:
    """Start a temporary server for a run, and remove it at the end: ours, or other programs with their own settings."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        started(Path(directory), programs, console) as server,
    ):
        yield Bench(server, schema_in(other_schema.read_text()), rounds, small, console, 0 if small else events)


def schema_in(text: str) -> str:
    """Return the SQL in a text that may begin with other text of a web page."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith(FIRST_LINE)), 0)
    return "\n".join(lines[start:])


def cpu_per_event(bench: Bench, what: str, ours: Database, theirs: Database, target: float | None) -> Result:
    """Return the server's CPU per event of `append_script` on both sides, from the runs of pgbench so far."""
    a, b = (median(bench.cpu_us[database]) / EVENTS_PER_STREAM for database in (ours, theirs))
    return Result(f"{what}: CPU of the server", a, b, "us/event", b / a, target)


def append_script(database: Database, events: int = EVENTS_PER_STREAM) -> str:
    """Write a pgbench script: a new stream of events, each in a transaction, each with the id of the one before."""
    cast = "" if database.ours else "::uuid"
    lines = ["\\set stream random(1, 9000000000000000000)"]
    for number in range(events):
        previous = "null" if number == 0 else f"md5(:stream::text || '-{number - 1}')::uuid"
        lines.append(
            f"select * from {database.schema}append_event('placed', md5(:stream::text || '-{number}')::uuid, 'order', "
            f"md5(:stream::text){cast}, '{DATA}', md5(:stream::text)::uuid, {previous});"
        )
    return "\n".join(lines) + "\n"


def fill(database: Database, label: str, streams: int, events: int = EVENTS_PER_STREAM) -> int:
    """Append `events` chained events to each of `streams` new streams; return the number of events."""
    event_id = f"md5('{label}-' || s || '-' || n)::uuid"
    previous = f"case when n > 1 then md5('{label}-' || s || '-' || n - 1)::uuid end"
    if database.ours:
        for first in range(1, streams + 1, 2000):
            last = min(first + 1999, streams)
            database.run(
                f"""
                select count(*) from event_store.append_events((
                  select jsonb_agg(jsonb_build_object(
                    'decider', 'order', 'decider_id', md5('{label}-' || s), 'event', 'placed', 'event_id', {event_id},
                    'data', '{DATA}'::jsonb, 'command_id', {event_id}, 'previous_id', {previous}
                  ) order by n, s)
                  from generate_series({first}, {last}) s, generate_series(1, {events}) n
                ))
                """
            )
    else:
        database.run(
            f"""
            select count(*)
            from (
              select s, n from generate_series(1, {streams}) s, generate_series(1, {events}) n order by n, s
            ) e,
            lateral append_event(
              'placed', {event_id}, 'order', md5('{label}-' || s)::uuid, '{DATA}', {event_id}, {previous}
            ) a
            """
        )
    return streams * events


def show(console: Console, results: Sequence[Result], title: str = "Event store") -> None:
    """Print the table."""
    table = Table(title=title)
    table.add_column("line", min_width=40)
    for heading in ("ours", "baseline", "unit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("")
    marks = {None: "", True: "[green]reached[/green]", False: "[red]missed[/red]"}
    for result in results:
        table.add_row(
            result.what,
            f"{result.ours:,.1f}",
            "" if result.baseline is None else f"{result.baseline:,.1f}",
            result.unit,
            "" if result.ratio is None else f"{result.ratio:.2f} x",
            "" if result.target is None else f"{result.target:.2f} x",
            marks[result.reached],
        )
    console.print(table)
