"""Writers and consumers that work at the same time, in processes of their own: threads wait for each other's Python.

Belongs here: starting them together, the work of one writer and of one consumer, and when they end. Not here: the
comparisons.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from threading import Event, Thread
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import psycopg

from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Database
from millrace.resources.sequencer import run_sequencer

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Barrier

CHUNK = 100
PATIENCE_S = 300

Step = Callable[[psycopg.Connection], int]


@dataclass(frozen=True)
class Worked:
    """When a worker began and ended, and when it was done with each event, by the clock that all processes share."""

    began: float
    ended: float
    events: dict[UUID, float]


@dataclass
class Together:
    """What the workers of one measurement share: a start and a count of what is consumed."""

    barrier: "Barrier"
    consumed: "Synchronized[int]"


_shared: list[Together] = []  # of this process, set when it starts


def _join(barrier: "Barrier", consumed: "Synchronized[int]") -> None:
    _shared[:] = [Together(barrier, consumed)]


def run_together(works: Sequence[Callable[[], Worked]]) -> list[Worked]:
    """Do each work in a process of its own; they begin when all are ready."""
    context = get_context("spawn")  # a fork would share this process's connections
    shared = context.Barrier(len(works)), context.Value("q", 0)
    with ProcessPoolExecutor(len(works), context, _join, shared) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


@contextmanager
def sequencing(database: Database) -> Iterator[None]:
    """Do what `millrace run sequencer` does beside a database of ours; the other schema needs nobody."""
    stop = Event()
    loop = Thread(target=run_sequencer, args=(database.dsn, stop))
    if database.ours:
        loop.start()
    try:
        yield
    finally:
        stop.set()
        if database.ours:
            loop.join()


def begin() -> float:
    """Wait until all workers are ready; say when that was."""
    _shared[0].barrier.wait(PATIENCE_S)
    return time.monotonic()


def write(database: Database, number: int, pause_s: float = 0) -> Worked:
    """Append so many events, each a transaction, streams one after the other."""
    append = (
        f"select from {database.schema}append_event('placed', %s, 'order', %s::{'text' if database.ours else 'uuid'}, "
        f"'{DATA}', %s, %s)"
    ).encode()
    committed: dict[UUID, float] = {}
    stream, previous = "", None
    with database.connect() as connection:
        connection.execute("select")
        began = begin()
        for n in range(number):
            if n % EVENTS_PER_STREAM == 0:
                stream, previous = str(uuid4()), None
            event_id = uuid4()
            connection.execute(append, (event_id, stream, event_id, previous))
            committed[event_id] = time.monotonic()
            previous = event_id
            if pause_s:
                time.sleep(pause_s)
    return Worked(began, time.monotonic(), committed)


def consume(database: Database, step: Step, total: int) -> Worked:
    """Take steps until all consumers together consumed so many events."""
    shared = _shared[0]
    with database.connect() as connection:
        connection.execute("select")
        began = begin()
        while shared.consumed.value < total:
            if some := step(connection):
                with shared.consumed.get_lock():
                    shared.consumed.value += some
            elif time.monotonic() > began + PATIENCE_S:
                raise RuntimeError(f"Only {shared.consumed.value} of {total} events came in {PATIENCE_S} s.")
        if shared.consumed.value != total:
            raise RuntimeError(f"{shared.consumed.value} events were consumed, not {total}")
    return Worked(began, time.monotonic(), {})


def rows_step(connection: psycopg.Connection, view: str) -> int:
    """Take up to a hundred events of ours and acknowledge them at once."""
    taken = connection.execute('select "offset" from event_store.stream_events(%s, %s::int)', (view, CHUNK)).fetchall()
    if taken:
        connection.execute("select event_store.ack_events(%s, %s)", (view, [offset for (offset,) in taken]))
    return len(taken)


def their_step(connection: psycopg.Connection, view: str) -> int:
    """Take up to a hundred events of the other schema and acknowledge each: it has no other way."""
    taken = connection.execute('select decider_id, "offset" from stream_events(%s, %s::int)', (view, CHUNK)).fetchall()
    for event in taken:
        connection.execute("select * from ack_event(%s, %s, %s)", (view, *event))
    return len(taken)


def bulk_step(connection: psycopg.Connection, view: str, limit: int) -> int:
    """Claim a batch of ours, read it by COPY and commit it."""
    claims = connection.execute(
        "select partition, to_position, lease_token from event_store.claim_batch(%s, pg_backend_pid()::text, %s)",
        (view, limit),
    ).fetchall()
    if not claims:
        return 0
    read = 0
    for partition, _, token in claims:
        query = f"copy (select * from event_store.read_batch('{view}', {partition}, {token})) to stdout"
        with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            read += sum(bytes(block).count(b"\n") for block in copy)
    connection.execute(
        "select event_store.commit_batch(%s, %s, %s, %s)", (view, *([claim[n] for claim in claims] for n in range(3)))
    )
    return read


def seconds_of(worked: Sequence[Worked]) -> float:
    """From the first beginning to the last end."""
    return max(work.ended for work in worked) - min(work.began for work in worked)
