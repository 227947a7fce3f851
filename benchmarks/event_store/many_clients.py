"""Hundreds of clients behind a pool in transaction mode append to 100,000 streams, some of which they share.

Most appends go to a stream of the client's own; one in ten goes to one of a hundred that all share, where clients meet
and all but one are refused. Beside them the sequencer runs. Somebody looks all the time which session waits for a lock.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from benchmarks.cpu import of_server, with_children
from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.workers import sequencing
from tests.support.crowd import Appended, Crowd, Waits, append_as
from tests.support.views.pooler import PROGRAM, pooled

CLIENTS = 500
FEW = 50
SESSIONS = 40
STREAMS = 100_000
SHARED = 100
PROCESSES = 2
TARGET_MS = 100


@dataclass
class Run:
    """What one crowd did, the longest waits that were seen, and the CPU per event of server and pooler."""

    done: Appended
    waits: Waits
    server_us: float
    pooler_us: float
    deadlocks: int


def behind_a_pool(bench: Bench) -> list[Result]:
    """500 clients against 50, on as many sessions of the server."""
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
            return run.done.events / run.done.seconds

        return rate

    many, few = bench.in_turn(measured(clients), measured(clients // 10))
    all_runs = runs[clients]
    conflicts = sum(run.done.conflicts for run in all_runs) / sum(run.done.events for run in all_runs)
    shared, other = (max(1000 * getattr(run.waits, kind) for run in all_runs) for kind in ("shared", "other"))
    what = f"{clients} clients behind a pool of {SESSIONS} sessions, {streams:,} streams"
    return [
        Result(f"{what}, against {clients // 10} clients", many, few, ratio=many / few),
        Result("  CPU of the server, sequencing included", *cpu(runs, clients, "server_us"), "us/event"),
        Result("  CPU of the pooler", *cpu(runs, clients, "pooler_us"), "us/event"),
        Result("  appends refused for another client's event", 100 * conflicts, unit="% of events"),
        Result("  longest wait for a stream that clients share", shared, unit="ms"),
        Result("  longest wait for any other lock", other, TARGET_MS, "ms", TARGET_MS / max(other, 1), 1),
        Result("  deadlocks", sum(run.deadlocks for run in all_runs), unit=""),
    ]


def cpu(runs: dict[int, list[Run]], clients: int, kind: str) -> tuple[float, float]:
    """Return the least that an event cost beside so many clients, and beside a tenth of them."""
    return min(getattr(run, kind) for run in runs[clients]), min(getattr(run, kind) for run in runs[clients // 10])


def appended(bench: Bench, database: Database, crowd: Crowd) -> Run:
    """Let a crowd append in processes of its own, and watch."""
    waits = Waits()
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as folder,
        pooled(database.dsn, Path(folder), SESSIONS, crowd.clients + 10) as address,
        sequencing(database),
        ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool,
        database.connect() as watching,
    ):
        pooler = int((Path(folder) / "pid").read_text())
        before = of_server(bench.server), with_children(pooler)
        bounds = [crowd.clients * n // PROCESSES for n in range(PROCESSES + 1)]
        futures: list[Future[Appended]] = [
            pool.submit(append_as, crowd, address, first, last) for first, last in pairwise(bounds)
        ]
        waits.watch(watching, lambda: all(future.done() for future in futures))
        parts = [future.result() for future in futures]
        server, pool_s = of_server(bench.server) - before[0], with_children(pooler) - before[1]
    for lock, seen in Counter(lock for lock, _ in waits.others).items():
        bench.console.log(f"  {seen} appends to streams of one client waited for a lock of the kind {lock}")
    ((deadlocks,),) = database.run("select deadlocks from pg_stat_database where datname = current_database()")
    done = Appended(
        sum(part.events for part in parts),
        sum(part.conflicts for part in parts),
        max(part.seconds for part in parts),
    )
    return Run(done, waits, server / done.events * 1e6, pool_s / done.events * 1e6, int(str(deadlocks)))
