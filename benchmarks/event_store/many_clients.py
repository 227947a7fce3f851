"""Many concurrent clients: hundreds behind a pool in transaction mode, and 32 that all append to one stream.

One append in ten of the hundreds goes to one of a hundred shared streams, where all but one are refused. The sequencer
runs meanwhile, and the benchmark polls for sessions that wait for a lock.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from uuid import UUID, uuid4

import psycopg

from benchmarks.cpu import backend_us, of_server, with_children
from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.single_appends import append_chain
from benchmarks.event_store.workers import sequencing
from tests.support.crowd import CONFLICT, Appended, Crowd, Waits, append_as
from tests.support.views.pooler import PROGRAM, pooled

CLIENTS = 500
FEW = 50
SESSIONS = 40
STREAMS = 100_000
SHARED = 100
PROCESSES = 2
TARGET_MS = 100
ON_ONE_STREAM = 32


@dataclass
class Run:
    """The result of one crowd: its appends, the longest waits seen, and the CPU per event of server and pooler."""

    total: Appended
    waits: Waits
    server_us: float
    pooler_us: float
    deadlocks: int


def behind_a_pool(bench: Bench) -> list[Result]:
    """Measure 500 clients against 50, on the same number of server sessions."""
    if PROGRAM is None:
        bench.console.log("  pgbouncer is not installed: apt-get install pgbouncer")
        return []
    clients, events = bench.size(CLIENTS, 40), bench.size(20_000, 800)
    streams = bench.size(STREAMS, 1000)
    runs: dict[int, list[Run]] = {clients: [], clients // 10: []}

    def measured(number: int) -> Callable[[], float]:
        crowd = Crowd(number, events // number, streams, SHARED)

        def rate() -> float:
            run = appended(bench, bench.ours(), crowd)
            runs[number].append(run)
            return run.total.events / run.total.seconds

        return rate

    many, few = bench.in_turn(measured(clients), measured(clients // 10))
    all_runs = runs[clients]
    conflicts = sum(run.total.conflicts for run in all_runs) / sum(run.total.events for run in all_runs)
    shared, other = (max(1000 * getattr(run.waits, kind) for run in all_runs) for kind in ("shared", "other"))
    what = f"{clients} clients behind a pool of {SESSIONS} sessions, {streams:,} streams"
    return [
        Result(f"{what}, against {clients // 10} clients", many, few, ratio=many / few, target=0.9),
        Result("  CPU of the server, sequencing included", *cpu(runs, clients, "server_us"), "us/event"),
        Result("  CPU of the pooler", *cpu(runs, clients, "pooler_us"), "us/event"),
        Result("  appends refused for another client's event", 100 * conflicts, unit="% of events"),
        Result("  longest wait for a stream that clients share", shared, unit="ms"),
        Result("  longest wait for any other lock", other, TARGET_MS, "ms", TARGET_MS / max(other, 1), 1),
        Result("  deadlocks", sum(run.deadlocks for run in all_runs), unit=""),
    ]


def cpu(runs: dict[int, list[Run]], clients: int, kind: str) -> tuple[float, float]:
    """Return the lowest CPU per event with `clients` clients, and with a tenth of them."""
    return min(getattr(run, kind) for run in runs[clients]), min(getattr(run, kind) for run in runs[clients // 10])


def appended(bench: Bench, database: Database, crowd: Crowd) -> Run:
    """Run a crowd of writers behind a pool, and watch for waits."""
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(database.dsn, Path(folder), SESSIONS, crowd.clients + 10) as address,
        sequencing(database),
    ):
        pooler = int((Path(folder) / "pid").read_text())
        before = of_server(bench.server), with_children(pooler)
        total, waits = watched(database, crowd, address)
        server, pool_s = of_server(bench.server) - before[0], with_children(pooler) - before[1]
    for lock, number in Counter(lock for lock, _ in waits.others).items():
        bench.console.log(f"  {number} appends to streams of one client waited for a lock of the kind {lock}")
    ((deadlocks,),) = database.run("select deadlocks from pg_stat_database where datname = current_database()")
    return Run(total, waits, server / total.events * 1e6, pool_s / total.events * 1e6, int(str(deadlocks)))


def watched(database: Database, crowd: Crowd, address: str) -> tuple[Appended, Waits]:
    """Run a crowd of writers in separate processes, and watch which sessions wait."""
    waits = Waits()
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool, database.connect() as watching:
        bounds = [crowd.clients * n // PROCESSES for n in range(PROCESSES + 1)]
        futures: list[Future[Appended]] = [
            pool.submit(append_as, crowd, address, first, last) for first, last in pairwise(bounds)
        ]
        waits.watch(watching, lambda: all(future.done() for future in futures))
        parts = [future.result() for future in futures]
    return Appended(
        events=sum(part.events for part in parts),
        conflicts=sum(part.conflicts for part in parts),
        seconds=max(part.seconds for part in parts),
        stored_s=sum(part.stored_s for part in parts),
        longest_s=max(part.longest_s for part in parts),
        conflicts_s=sum(part.conflicts_s for part in parts),
    ), waits


def on_one_stream(bench: Bench) -> list[Result]:
    """Measure 32 clients on one stream: the cost of a conflict against a stored event, and the waits for locks."""
    crowd = Crowd(ON_ONE_STREAM, bench.size(20, 2), streams=1, shared=1, shared_part=1)
    runs: list[tuple[Appended, Waits]] = []
    number = bench.size(1000, 20)
    alone = bench.ours()
    with alone.connect() as one, alone.connect() as other:
        first, _ = append_chain(other, "stream", None, 1)
        append_chain(other, "stream", first, 1)

        def crowded() -> float:
            database = bench.ours()
            runs.append(watched(database, crowd, database.dsn))
            total = runs[-1][0]
            return 1000 * total.stored_s / total.events

        stored_us, conflict_us, stored_ms, conflict_ms = bench.in_turn(
            lambda: backend_us(one, lambda: append_chain(one, str(uuid4()), None, number), number),
            lambda: backend_us(other, lambda: refused(other, "stream", first, number), number),
            crowded,
            lambda: 1000 * runs[-1][0].conflicts_s / runs[-1][0].conflicts,
        )
    what = f"{ON_ONE_STREAM} clients on one stream"
    waited, longest = (1000 * max(seconds) for seconds in zip(*((w.shared, d.longest_s) for d, w in runs), strict=True))
    conflicts = sum(total.conflicts for total, _ in runs) / sum(total.events for total, _ in runs)
    return [
        less(f"{what}: the answer of a conflict against that of a stored event", conflict_ms, stored_ms, "ms", 1.2),
        less("  CPU of the backend, one client", conflict_us, stored_us, "us", 1.2),
        less("  longest wait for a lock against the longest append", waited, longest, "ms", 1),
        Result("  conflicts for each stored event", conflicts, unit=""),
    ]


def less(what: str, ours: float, other: float, unit: str, most: float) -> Result:
    """Return a line whose first number may be at most `most` times the other one."""
    return Result(what, ours, other, unit, other / max(ours, 0.001), 1 / most)


def refused(connection: psycopg.Connection, stream: str, previous: UUID | None, number: int) -> None:
    """Try `number` appends after an event that is no longer the last one."""
    for _ in range(number):
        try:
            append_chain(connection, stream, previous, 1)
        except psycopg.Error as error:
            if error.sqlstate != CONFLICT:
                raise
        else:
            raise RuntimeError(f"An event was stored behind {previous}, which another one followed.")
