"""Waking: from the commit of an append to a consumer that waits for a word, beside one that polls; what idling costs.

A writer appends, rarely or two hundred times a second; one consumer takes what there is and then waits, as a service
does. Both sides run beside `millrace run sequencer`. Where they poll, the sequencer gets no word of appends either, as
on a server with prepared transactions, and looks every 0.2 s; so does the consumer.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from uuid import UUID

import psutil

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.subscription import last_percent, rows_database, take_rows
from benchmarks.event_store.workers import PATIENCE_S, Worked, begin, run_together, sequencing, write
from millrace.resources.consumers import consumer
from millrace.resources.consumers.declaration import subscription
from millrace.resources.event_store import Delivery
from millrace.resources.event_store.wake_ups import POLL_S, Wakeups

# without a word a consumer looks once a second
LONGEST_WAIT_S = 1.0
LOADS = {"quiet store": (0.3, 40), "200 events/s": (0.004, 800)}
IDLERS, MOST_IDLE_MS = 40, 50.0
MOST_MS = {"median": 20.0, "99 %": 100.0}


def delays(bench: Bench) -> list[Result]:
    """Measure the median and the 99 % of the delay, woken against polling, and against the most that is allowed."""
    results = []
    for load, (pause_s, number) in LOADS.items():
        woken = Side(rows_database(bench.ours()), polls=False)
        polling = Side(without_words(rows_database(bench.ours())), polls=True)
        some = bench.size(number, 5)
        bench.in_turn(*(partial(side.measure, some, pause_s) for side in (woken, polling)))
        for what, part in (("median", median), ("99 %", last_percent)):
            x, y = part(woken.delays) * 1000, part(polling.delays) * 1000
            results += [
                Result(f"commit to consumer, {load}, {what}: woken against polling", x, y, "ms", y / x),
                Result(f"the same against {MOST_MS[what]:.0f} ms", x, MOST_MS[what], "ms", MOST_MS[what] / x, 1),
            ]
    return results


def idling(bench: Bench) -> list[Result]:
    """Measure the CPU of a sequencer without events, itself and its server, asleep against polling."""
    seconds = bench.size(60, 2)
    asleep, polling = bench.ours(), without_words(bench.ours())
    a, b = (idle_ms(bench, database, seconds) * 60 / seconds for database in (asleep, polling))
    return [
        Result("CPU of an idle `millrace run sequencer` and its server, asleep against polling", a, b, "ms/min", b / a)
    ]


def idle_consumers(bench: Bench) -> list[Result]:
    """Measure the CPU of forty consumers without events in one process, with a sequencer and their server."""
    seconds, database = bench.size(60, 2), bench.ours()
    stop = threading.Event()
    idlers = [subscription(view=f"idle-{number}", concurrency=1)(do_nothing) for number in range(IDLERS)]
    consuming = threading.Thread(target=consumer.consume, args=(database.dsn, idlers), kwargs={"stop": stop})
    consuming.start()
    try:
        taken = idle_ms(bench, database, seconds, settled_s=bench.size(20, 2)) / seconds
    finally:
        stop.set()
        consuming.join()
    what = f"{IDLERS} idle consumers of one process, the sequencer and their server, against the most"
    return [Result(what, taken, MOST_IDLE_MS, "ms/s", MOST_IDLE_MS / taken, 1)]


def do_nothing(_: Delivery) -> None:
    """Handle an event; none comes."""


def idle_ms(bench: Bench, database: Database, seconds: float, settled_s: float = 2) -> float:
    """Return for how many milliseconds what this process runs, and the server, were on a CPU in so many seconds."""
    own = psutil.Process().pid
    with sequencing(database):
        time.sleep(settled_s)  # they begin with more work
        before = of_server(bench.server) + process_s(own)
        time.sleep(seconds)
        return (of_server(bench.server) + process_s(own) - before) * 1000


def process_s(pid: int) -> float:
    """Return how many seconds a process was on a CPU, without its children: the server may be one."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def without_words(database: Database) -> Database:
    """Let appends to a database notify nobody."""
    database.run(
        "create or replace function event_store_private.notifies_appends() returns boolean language sql as 'select false'"
    )
    return database


@dataclass
class Side:
    """A database, whether its consumer polls, and what the delays were so far."""

    database: Database
    polls: bool
    delays: list[float] = field(default_factory=list)

    def measure(self, number: int, pause_s: float) -> float:
        """Append so many events while somebody consumes; return the median of the delays."""
        works = [
            partial(write, self.database, number, pause_s),
            partial(consume, self.database, number, polls=self.polls),
        ]
        with sequencing(self.database):
            written, consumed = run_together(works)
        # the reply of a commit may come after the event was delivered
        some = [max(consumed.events[event] - at, 0) for event, at in written.events.items()]
        self.delays += some
        return median(some)


@contextmanager
def words(database: Database, *, polls: bool) -> Iterator[Wakeups | None]:
    """Yield what a consumer waits with; None where it polls."""
    if polls:
        yield None
        return
    with Wakeups(database.dsn) as found:
        yield found


def consume(database: Database, number: int, *, polls: bool) -> Worked:
    """Take events until there were so many, and wait where there is none; say when each came."""
    delivered: dict[UUID, float] = {}
    stop = threading.Event()
    with database.connect() as connection, words(database, polls=polls) as positions:
        take_rows(connection)
        began = begin()
        while len(delivered) < number:
            if taken := take_rows(connection):
                delivered = taken | delivered
            elif positions is None:
                stop.wait(POLL_S)
            else:
                positions.wait(LONGEST_WAIT_S)
            if time.monotonic() > began + PATIENCE_S:
                raise RuntimeError(f"Only {len(delivered)} of {number} events came in {PATIENCE_S} s.")
    return Worked(began, time.monotonic(), delivered)
