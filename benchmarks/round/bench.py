"""How each line is measured: a server, Spark Connect as in `millrace up`, a shop's events, seconds of CPU."""

import os
import random
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import UUID

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from millrace.event_store import NewEvent, StreamEvents, on
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.examples.shop.events import register_shop
from millrace.examples.shop.lives import Step, plan_life
from millrace.platform_defs.local.services import free_port, shared_session, spark_service
from millrace.platform_defs.local.supervisor import Supervisor
from millrace.postgres.embedded import PROGRAMS, EmbeddedPostgres
from millrace.settings import Settings
from millrace.spark.java import find_java
from millrace.spark.session import SPARK_TOKEN

LIVES_AT_ONCE = 500
PER_CALL = 5000


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU: of this process, Spark's server, its Python workers, Postgres."""

    driver: float
    spark: float
    workers: float
    postgres: float

    @property
    def all(self) -> float:
        """The sum."""
        return self.driver + self.spark + self.workers + self.postgres

    def since(self, before: "Cpu") -> "Cpu":
        """Return the difference to an earlier reading."""
        return Cpu(*(getattr(self, one) - getattr(before, one) for one in ("driver", "spark", "workers", "postgres")))


class Shop:
    """The endless events of a shop with many concurrent orders."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._numbers = count()
        self._lives: list[list[Step]] = []

    def events(self, number: int) -> list[StreamEvents]:
        """Return the next events."""
        return [self._next() for _ in range(number)]

    def _next(self) -> StreamEvents:
        while len(self._lives) < LIVES_AT_ONCE:
            life = plan_life(self._chance, str(next(self._numbers)))
            self._lives.append([*life.start, *life.rest][::-1])
        place = self._chance.randrange(len(self._lives))
        step = self._lives[place].pop()
        if not self._lives[place]:
            self._lives.pop(place)
        ids = [UUID(int=self._chance.getrandbits(128)) for _ in range(2)]
        return on(
            step.decider,
            step.decider_id,
            NewEvent(step.event, step.data, event_id=ids[0], command_id=ids[1], final=step.final),
        )


@dataclass
class Bench:
    """The servers for one run."""

    server: EmbeddedPostgres
    spark_pid: int
    _numbers: Iterator[int] = field(default_factory=count)

    def store(self) -> str:
        """Make a new store that knows the shop's events, and return its DSN."""
        name = f"views_{next(self._numbers)}"
        self.server.create_database(name)
        dsn = self.server.dsn(name)
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            register_shop(PlatformStore(connection))
        return dsn

    def copy(self, dsn: str) -> str:
        """Copy a store without open connections, and return the copy's DSN."""
        name, of = f"views_{next(self._numbers)}", conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"create database {name} template {of} strategy file_copy".encode())
        return self.server.dsn(name)

    def cpu(self) -> Cpu:
        """Return the seconds of CPU until now."""
        times = os.times()
        spark = psutil.Process(self.spark_pid)
        below = spark.children(recursive=True)
        daemons = [process for process in below if "pyspark" in _command(process)]
        postgres = self.server.pid()
        assert postgres is not None
        others = [process for process in below if process not in daemons]
        return Cpu(
            times.user + times.system,
            _seconds(spark) + sum(map(_seconds, others)),
            sum(map(_seconds, daemons)),
            sum(_seconds(process) for process in (psutil.Process(postgres), *psutil.Process(postgres).children())),
        )


def append(dsn: str, events: list[StreamEvents]) -> None:
    """Append events and sequence them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        for first in range(0, len(events), PER_CALL):
            store.append_all(events[first : first + PER_CALL])
        while store.sequence_events():
            pass


@contextmanager
def bench(programs: Path = PROGRAMS) -> Iterator[Bench]:
    """Start a temporary Postgres and a Spark Connect server, and remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        folder = Path(directory)
        settings, port = Settings(home=folder / "home"), free_port()
        env = {
            **os.environ,
            "JAVA_HOME": str(find_java(settings.home / "java").home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            SPARK_TOKEN: secrets.token_urlsafe(32),
        }
        service = spark_service(settings, port, env)
        with EmbeddedPostgres(folder / "postgres", programs) as server, Supervisor(settings.home, [service]) as running:
            os.environ |= {"SPARK_REMOTE": shared_session(port), SPARK_TOKEN: env[SPARK_TOKEN]}
            yield Bench(server, _pid(running))


def _pid(running: Supervisor) -> int:
    (state,) = running.states()
    assert state.pid is not None
    return state.pid


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _seconds(process: psutil.Process) -> float:
    """Return the seconds of a process and of its children that have ended."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
