"""Consumers of functions: how many events a second `consume` hands to a handler that does nothing.

Beside it is the loop that a user of fstore-sql writes: stream_events(100), then an ack_event each. Both sides have the
same backlog; the consumer has eight threads, and shares the machine with its server.
"""

import threading
import time
from functools import partial
from itertools import count

from benchmarks.event_store.bench import Bench, Database, Result, fill
from benchmarks.event_store.consumption import CHUNK, VIEW, consumed_per_second, stream_and_ack
from millrace.resources.consumers.consumer import consume
from millrace.resources.consumers.declaration import subscription
from millrace.resources.consumers.telling import Counters
from millrace.resources.event_store import LeasedEvent

WORKERS = 8
PATIENCE_S = 300
TARGET = 10_000


def rate(bench: Bench) -> list[Result]:
    """Measure the events per second, against the other schema's loop and against the target."""
    ours, theirs = bench.ours(), bench.theirs()
    for database in (ours, theirs):
        database.register_views(1)
    numbers = count()
    x, y = bench.in_turn(
        lambda: handled_per_second(ours, f"consume-{next(numbers)}", bench.size(10_000, 40)),
        lambda: consumed_per_second(
            theirs, f"consume-{next(numbers)}", bench.size(600, 20), partial(stream_and_ack, schema="", limit=CHUNK)
        ),
    )
    what = f"consume with {WORKERS} threads against stream_events({CHUNK}) + an ack each"
    return [
        Result(what, x, y, ratio=x / y, target=2.5),
        Result("the same against the target", x, TARGET, ratio=x / TARGET, target=1),
    ]


def handled_per_second(database: Database, label: str, streams: int) -> float:
    """Append to so many new streams, then consume until nothing is left; its beginning and dispatching count, too."""
    events = fill(database, label, streams)
    database.run("select event_store.sequence_events()")
    stop = threading.Event()
    counters: dict[str, Counters] = {}

    @subscription(view=VIEW, concurrency=WORKERS)
    def handle(_: LeasedEvent) -> None:
        pass

    began = time.perf_counter()
    consumer = threading.Thread(
        target=consume, args=(database.dsn, [handle]), kwargs={"stop": stop, "counters": counters}
    )
    consumer.start()
    try:
        while not counters or counters[VIEW].handled < events:
            if time.perf_counter() - began > PATIENCE_S:
                raise RuntimeError(f"Not all of {events} events were handled: {counters}")
            time.sleep(0.005)
        return events / (time.perf_counter() - began)
    finally:
        stop.set()
        consumer.join()
