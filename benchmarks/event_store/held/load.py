"""A store under load beside something that holds old row versions back, and the same load without it.

Two databases of one server take turns, tick by tick: 500 appends a second each, the sequencer, a rows and a bulk
consumer, a producer, a poller. Beside one of them a snapshot is open from the start, or a transaction is prepared, or
one is open that has appended 250,000 events, or a lagging standby tells what it still reads (each side is then a
server with a standby of its own, for each commit wakes who sends the log to it). Printed are the events that a side
takes per second on the CPU, and the median and 99 % of each call, with its time on the CPU, minute by minute: a cost
that grows shows there first.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from pathlib import Path
from statistics import median, quantiles
from typing import LiteralString

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.held.standby import another_server, reading, replica

TICK_S = 0.2
APPENDS = 100  # a tick: 500 a second
OPEN_EVENTS = 250_000
THROUGHPUT, P99 = 0.95, 0.5

_APPEND_MANY: LiteralString = """
    select count(*) from event_store.append_events((
      select jsonb_agg(jsonb_build_object(
        'decider', 'order', 'decider_id', gen_random_uuid(), 'event', 'placed', 'event_id', gen_random_uuid(),
        'command_id', gen_random_uuid(), 'data', '{}'::jsonb
      )) from generate_series(1, 1000) n
    ))
"""

Hold = Callable[[Database], AbstractContextManager[None]]


def snapshot(bench: Bench) -> list[Result]:
    """Load a store beside a repeatable-read snapshot, as a backup holds it."""

    @contextmanager
    def held(database: Database) -> Iterator[None]:
        with psycopg.connect(database.dsn) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from event_store.events")
            yield

    return _compare(bench, "a held snapshot", held)


def prepared(bench: Bench) -> list[Result]:
    """Load a store beside a prepared transaction that nobody ends."""
    with psycopg.connect(bench.server.dsn("postgres"), autocommit=True) as admin:
        admin.execute("alter system set max_prepared_transactions = 10")
    bench.server.stop()
    bench.server.start()

    @contextmanager
    def held(database: Database) -> Iterator[None]:
        with psycopg.connect(database.dsn) as holder:
            holder.execute("select pg_current_xact_id()")
            holder.execute("prepare transaction 'forgotten'")
            holder.commit()
            holder.autocommit = True
            yield
            holder.execute("rollback prepared 'forgotten'")

    return _compare(bench, "a prepared transaction", held)


def open_transaction(bench: Bench) -> list[Result]:
    """Load a store beside an open transaction that has appended many events."""

    @contextmanager
    def held(database: Database) -> Iterator[None]:
        with psycopg.connect(database.dsn) as holder:
            for _ in range(bench.size(OPEN_EVENTS, 2000) // 1000):
                holder.execute(_APPEND_MANY).fetchall()
            yield
            holder.rollback()

    return _compare(bench, "an open transaction with many events", held)


def standby(bench: Bench) -> list[Result]:
    """Load a store whose standby reads in an old snapshot and says so, beside one whose standby says nothing."""
    with another_server(bench) as primary:
        free, beside = bench.ours(), replace(bench, server=primary).ours()
        with replica(bench.server, tells=False), replica(primary, tells=True) as reader:
            return _between(bench, "a lagging standby", partial(reading, primary, reader), free, beside)


def _compare(bench: Bench, what: str, hold: Hold) -> list[Result]:
    return _between(bench, what, hold, bench.ours(), bench.ours())


def _between(bench: Bench, what: str, hold: Hold, without: Database, held: Database) -> list[Result]:
    free, beside = Load(without), Load(held)
    seconds = bench.size(round(bench.minutes * 60), 2)
    with hold(beside.database):
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            for load in (free, beside) if free.ticks % 2 else (beside, free):
                load.tick(int((now - begun) // 60))
            time.sleep(max(0.0, now + TICK_S - time.monotonic()))
    for load in (free, beside):
        load.connection.close()
    _print_minutes(bench, what, free, beside)
    rates = [load.per_cpu_second() for load in (beside, free)]
    results = [
        Result(
            f"events per second on the CPU, {what}",
            rates[0],
            rates[1],
            ratio=rates[0] / rates[1],
            target=THROUGHPUT,
        )
    ]
    for name in free.calls:
        ours, theirs = (_percentiles([call.seconds * 1000 for call in load.calls[name]])[1] for load in (beside, free))
        results.append(Result(f"{name}, 99 %, {what}", ours, theirs, "ms", ratio=theirs / ours, target=P99))
    return results


def _print_minutes(bench: Bench, what: str, free: "Load", beside: "Load") -> None:
    bench.console.print(f"{what}: per minute, p50 / p99 in ms and median CPU in us, free | beside it")
    for name in free.calls:
        minutes = []
        for both in zip(*(_by_minute(load.calls[name]) for load in (free, beside)), strict=False):
            sides = []
            for calls in both:
                half, most = _percentiles([call.seconds * 1000 for call in calls])
                sides.append(f"{half:.2f}/{most:.1f} {median(call.cpu for call in calls) / 1000:.0f}")
            minutes.append(" | ".join(sides))
        bench.console.print(f"  {name}: " + "; ".join(minutes), highlight=False)


def _by_minute(calls: "list[Call]") -> "list[list[Call]]":
    return [list(group) for _, group in groupby(calls, key=lambda call: call.minute)]


def _percentiles(numbers: list[float]) -> tuple[float, float]:
    return median(numbers), quantiles(numbers, n=100)[98] if len(numbers) > 1 else numbers[0]


@dataclass(frozen=True)
class Call:
    """One call: in which minute, how long it took, and the backend's nanoseconds on a CPU."""

    minute: int
    seconds: float
    cpu: int


class Load:
    """One database, the session whose calls are measured, and all of them."""

    def __init__(self, database: Database) -> None:
        """Register a view of each mode and a producer, and do each call once."""
        self.database = database
        self.connection = database.connect()
        self.calls: dict[str, list[Call]] = {}
        self.ticks = 0
        self._clock = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")
        self._minute = 0
        self._messages = count()
        self.connection.execute("select from event_store.register_view('rows', '-infinity')")
        self.connection.execute("select from event_store.register_view('bulk', '-infinity', v_mode => 'bulk')")
        self.connection.execute("select from event_store.register_producer('p', 0)")
        for _ in range(3):
            self.tick(0)
        self.calls.clear()
        self.ticks = 0

    def tick(self, minute: int) -> None:
        """Append what comes in a tick, and take it through everything."""
        self._minute = minute
        for _ in range(APPENDS):
            event_id = uuid.uuid4()
            self._call(
                "append_event",
                "select from event_store.append_event('placed', %s, 'order', %s, '{}', %s, null)",
                (event_id, str(event_id), event_id),
            )
        self._call("sequence_events", "select event_store_platform.sequence_events()")
        self._call("dispatch_events", "select event_store_platform.dispatch_events('rows')")
        for _ in range(APPENDS // 50):
            leased = self._call(
                "lease_events", 'select "offset", lease_token from event_store.lease_events(%s, 50)', ("rows",)
            )
            answers = tuple([row[n] for row in leased] for n in range(2))
            self._call("ack_events", "select event_store.ack_events('rows', %s, %s)", answers)
        claims = self._call(
            "claim_batch",
            "select partition, to_position, lease_token from event_store.claim_batch(%s, %s)",
            ("bulk", "me"),
        )
        columns = tuple([claim[n] for claim in claims] for n in range(3))
        self._call("commit_batch", "select event_store.commit_batch('bulk', %s, %s, %s)", columns)
        number = next(self._messages)
        self._call(
            "ingest_events",
            "select from event_store.ingest_events('p', 0, 1, %s, null, %s)",
            (number, json.dumps({"total": number})),
        )
        self._call("poll_views", "select * from event_store_platform.poll_views()")
        self._call("sequence_events, nothing new", "select event_store_platform.sequence_events()")
        self.ticks += 1

    def per_cpu_second(self) -> float:
        """Return how many events the backend takes through everything in a second on a CPU."""
        return self.ticks * APPENDS / sum(call.cpu for calls in self.calls.values() for call in calls) * 1e9

    def _call(self, name: str, query: LiteralString, arguments: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        cpu, began = self._on_cpu(), time.perf_counter()
        found = self.connection.execute(query, arguments, prepare=True).fetchall()
        ended = time.perf_counter()
        self.calls.setdefault(name, []).append(Call(self._minute, ended - began, self._on_cpu() - cpu))
        return found

    def _on_cpu(self) -> int:
        """Return the time that the backend has been on a CPU, in nanoseconds."""
        return int(self._clock.read_text().split()[0])
