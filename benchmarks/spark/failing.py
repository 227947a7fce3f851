"""Streams that fail: a drain of a log in which many do, beside one of a log in which none does, in CPU seconds."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

import psutil

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import Database
from benchmarks.spark.bench import ORDERS, Bench, Measured, Memory, Result
from benchmarks.spark.drains import drained
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.versions import reset_model

FEW = (100, 10_000)
# where the largest log has so many events
MANY = (1_000, 1_000_000)

# the amounts of the lines that failing streams get: no number, and maybe one behind it
AMOUNTS = (("a lot",), ("a lot", "1.5"))
TARGETS = {1: 1.3, 2: 2.0}

_labels = count()


@dataclass(frozen=True)
class Seconds:
    """How long everybody was on a CPU."""

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


def failing_streams(bench: Bench) -> list[Result]:
    """Drain 10,000 streams of which 100 fail; if the largest log has so many events, 1,000,000 of which 1,000 fail."""
    streams = min(FEW[1], bench.sizes[-1])
    sizes = [(streams // 100, streams), *([MANY] if bench.sizes[-1] >= MANY[1] else [])]
    return [result for size in sizes for amounts in AMOUNTS for result in _drains(bench, *size, amounts)]


def _drains(bench: Bench, failing: int, streams: int, amounts: tuple[str, ...]) -> list[Result]:
    healthy, sick = (_standing(bench.orders(streams, events=1)) for _ in range(2))
    for amount in amounts:
        _append_lines(sick, failing, streams, amount)
    taken: list[Seconds] = []

    def drain(database: Database, wanted: int) -> float:
        with database.connect() as connection:
            reset_model(connection, ORDERS)
            connection.execute("delete from event_store.stream_locks")
        before = seconds_of(bench)
        report = drained(bench, database)
        took = seconds_of(bench).since(before)
        if (report.failed_streams, report.failed) != (wanted, {}):
            raise RuntimeError(f"{report.failed_streams} streams failed, not {wanted}: {report.failed}")
        if wanted:
            taken.append(took)
        return took.all

    for database, wanted in ((healthy, 0), (sick, failing)):
        drain(database, wanted)  # warms up
    taken.clear()
    ours, none = bench.in_turn(partial(drain, sick, failing), partial(drain, healthy, 0))
    followed = ", each with a good event behind" if len(amounts) > 1 else ""
    what = f"a drain of {streams:,} streams of which {failing:,} fail{followed}; none fails"
    last = taken[-1]
    shares = ", ".join(f"{name} {getattr(last, name):.1f}" for name in ("driver", "jvm", "workers", "postgres"))
    return [
        Result(what, ours, none, "CPU s", ratio=ours.value / none.value, target=TARGETS[len(amounts)], at_most=True),
        Result(f"  of its last round: {shares}", Measured(last.all, Memory()), unit="CPU s"),
    ]


def _standing(database: Database) -> Database:
    """Stop the store's clock: no stream is tried again while a long drain goes on."""
    return Database(f"{database.dsn}&options=-c%20event_store.clock%3D2030-01-01T00:00:00Z", ours=True)


def _append_lines(database: Database, failing: int, streams: int, amount: str) -> None:
    """Append to some orders, all over the log, a line of an amount."""
    with database.connect() as connection:
        connection.execute(
            """
            select count(*) from event_store.append_events((
              select jsonb_agg(jsonb_build_object(
                'decider', 'order', 'decider_id', 'o-' || 1 + n * (%(streams)s / %(failing)s),
                'event', 'order_line_added', 'event_id', md5(%(label)s || n)::uuid, 'command_id', md5(%(label)s || n)::uuid,
                'data', jsonb_build_object('product', 'whisk', 'quantity', 1, 'amount', %(amount)s::text)
              ))
              from generate_series(0, %(failing)s - 1) n
            ))
            """,
            {"streams": streams, "failing": failing, "label": f"line-{next(_labels)}-", "amount": amount},
        )
        EventStore(connection).sequence_events()


def seconds_of(bench: Bench) -> Seconds:
    """Return the seconds on a CPU until now: of this process, of those below it, of Postgres."""
    own = psutil.Process()
    pid = bench.server.pid()
    served = {pid, *(one.pid for one in psutil.Process(pid).children())} if pid else set()
    spent = {"jvm": 0.0, "workers": 0.0}
    for process in own.children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if process.pid not in served:
                side = "workers" if "pyspark.daemon" in " ".join(process.cmdline()) else "jvm"
                spent[side] += _on_cpu(process)
    return Seconds(_on_cpu(own), spent["jvm"], spent["workers"], of_server(bench.server))


def _on_cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
