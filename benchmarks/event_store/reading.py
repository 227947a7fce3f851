"""Reads against a bare select of the same columns, and a command that is handled against an append."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

import psycopg

from benchmarks.cpu import backend_us
from benchmarks.event_store.bench import DATA, Bench, Result, fill
from millrace import Decider, Emit, EventStore, NewEvent, fold, handle, testing
from millrace.event_store.platform import PlatformStore
from millrace.event_store.rows import STORED
from millrace.read_models.declared.fold_event import FoldEvent

PAGE, STREAM = 500, 100
BARE_LOG = (
    f'select {STORED}, position from event_store.event_log join event_store.events using ("offset") '
    "where partition = 0 and position >= %s and position < %s order by position"
)
BARE_STREAM = (
    f"select {STORED} from event_store.events where decider = 'order' and decider_id = %s and version >= 1 "
    "order by version limit 500"
)


@fold(view="counted", deciders=["order"], key="order_id", columns={"placed": "int"})
def counted(state: dict[str, int] | None, event: FoldEvent) -> dict[str, int]:
    """Count the events of an order."""
    return {"placed": (state or {"placed": 0})["placed"] + (event.event == "placed")}


ORDER: Decider[dict[str, int] | None, int] = Decider(
    name="order", initial=None, decide=lambda n, _: [Emit("placed", {"n": n})], evolve=counted
)


def both_sides(connection: psycopg.Connection, work: Callable[[], object], number: int) -> float:
    """Return the CPU time of some work, the connection's backend included, in us per each of `number`."""
    before = time.process_time()
    server = backend_us(connection, work, number)
    return server + (time.process_time() - before) / number * 1e6


def reads(bench: Bench) -> list[Result]:
    """Measure reads of the log in pages of 500, and of streams of 100."""
    database = bench.ours(log_partitions=1)
    streams, times = bench.size(400, 10), bench.size(100, 2)
    fill(database, "read", streams, STREAM)
    with database.connect() as one, database.connect() as other:
        PlatformStore(one).sequence_events()
        one.execute("vacuum analyze")
        ids = [row[0] for row in one.execute("select decider_id from event_store.events where version = 1").fetchall()]
        store, bare = EventStore(one), other.cursor(binary=True)
        pages = [n * PAGE for n in range(streams * STREAM // PAGE)]

        def log(read: Callable[[int], Sequence[object]]) -> None:
            for first in islice(cycle(pages), times):
                assert len(read(first)) == PAGE

        def stream(read: Callable[[str], Sequence[object]]) -> None:
            for number in islice(cycle(ids), times * PAGE // STREAM):
                assert len(read(number)) == STREAM

        sides = [
            (other, partial(log, lambda n: bare.execute(BARE_LOG, (n, n + PAGE), prepare=True).fetchall())),
            (one, partial(log, lambda n: [*store.read_log(0, n, PAGE)])),
            (other, partial(stream, lambda n: bare.execute(BARE_STREAM, (n,), prepare=True).fetchall())),
            (one, partial(stream, lambda n: [*store.read("order", n)])),
        ]
        for _, work in sides:
            work()  # warm
        a, b, c, d = bench.in_turn(*[partial(both_sides, *side, times * PAGE) for side in sides])
    what = "against a bare select, an event: CPU of client and server"
    return [
        Result(f"read_log of {PAGE} {what}", b, a, "us", a / b, 1 / 1.4),
        Result(f"a stream of {STREAM} {what}", d, c, "us", c / d, 1 / 1.3),
    ]


def handled(bench: Bench) -> list[Result]:
    """Measure a command on a stream whose state a read model has, against an append to such a stream."""
    database, number = bench.ours(), bench.size(1000, 20)
    fill(database, "handled", 2 * number * (1 + bench.rounds))
    testing.given(dsn=database.dsn).when(counted)
    data = json.loads(DATA)
    with database.connect() as one, database.connect() as other:
        one.execute("vacuum analyze")
        # use each stream once: it has no events after its state
        streams = iter(one.execute("select decider_id from event_store.events where version = 1").fetchall())
        decided, appended = EventStore(one), EventStore(other)

        def commands() -> None:
            for (stream,) in islice(streams, number):
                handle(decided, ORDER, stream, 1)

        def appends() -> None:
            for (stream,) in islice(streams, number):
                appended.append("order", stream, NewEvent("placed", data))

        commands()
        appends()
        a, b = bench.in_turn(partial(both_sides, one, commands, number), partial(both_sides, other, appends, number))
    return [Result("handle with a snapshot against an append: CPU of client and server", a, b, "us", b / a, 1 / 1.8)]
