"""Does a call cost more in a large store? Two stores take turns, one with 100,000 events and one with many more.

Each round appends some events and takes them through the log, a rows view and a bulk view that are not behind. The
numbers are CPU of the backend. Then the bytes per event of each table and index.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from statistics import median
from typing import LiteralString
from uuid import uuid4

from benchmarks.cpu import backend_us
from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Bench, Database, Result, fill
from benchmarks.event_store.consumption import stream_and_ack_some

FEW = 100_000
SLICE = 20_000  # streams
BATCH = 500
PAGES = 50 * 8192
TARGET = 1 / 1.2
APPEND: LiteralString = "select from event_store.append_event('placed', %s, 'order', %s::text, %s, %s, null)"
READS: dict[str, LiteralString] = {
    "get_events": "select * from event_store.get_events(md5('log-0-' || %s), 'order')",
    "log_position": "select * from event_store.log_position(md5('log-0-' || %s || '-1')::uuid)",
    "stream_head": "select * from event_store.stream_head(md5('log-0-' || %s), 'order')",
}
LOOKS: dict[str, LiteralString] = {
    "sequence_events, nothing new": "select event_store.sequence_events()",
    "claim_batch, nothing new": "select * from event_store.claim_batch('bulk', 'me')",
    "poll_views": "select * from event_store.poll_views()",
    "view_info": "select * from event_store.view_info()",
    "view_lag": "select * from event_store.view_lag('bulk')",
    "partition_info": "select * from event_store.partition_info()",
}


def calls(bench: Bench) -> list[Result]:
    """Each call in the large store against the small one, and the sizes of both."""
    few, many = bench.size(FEW, 500), max(bench.events, bench.size(FEW, 500))
    large, small = Store(bench, many), Store(bench, few)
    bench.in_turn(large.measure, small.measure)
    results = []
    for name, taken in large.taken.items():
        x, y = median(taken), median(small.taken[name])
        what = f"{name}, {large.events:,} events against {small.events:,}"
        results.append(Result(what, x, y, "us of CPU", y / x, TARGET))
    sizes = small.sizes()
    for name, size in large.sizes().items():
        results.append(Result(f"size of {name}", size, sizes.get(name, 0), "bytes/event"))
    for store in (large, small):
        store.connection.close()
    return results


class Store:
    """A store of so many events, two views at its end, and the CPU that calls took."""

    def __init__(self, bench: Bench, events: int) -> None:
        self._bench = bench
        self._database: Database = bench.ours()
        self._numbers = count()
        self._random = Random(events)
        self.taken: dict[str, list[float]] = {}
        self.events = 0
        slices = count()
        while self.events < events:
            streams = min(SLICE, (events - self.events) // EVENTS_PER_STREAM)
            self.events += fill(self._database, f"log-{next(slices)}", streams)
            self._database.run("select event_store.sequence_events()")
        for mode in ("rows", "bulk"):
            self._database.run(f"select from event_store.register_view('{mode}', v_mode => '{mode}')")
        self._database.run("vacuum analyze")
        self.connection = self._database.connect()

    def measure(self) -> float:
        """Append a batch and take it through everything."""
        some = self._bench.size(BATCH, 20)
        self._take("append_event", self._append, some)
        self._take("append_events, an event of 1,000", self._fill, 1000)
        appended = some + 1000
        self._take("sequence_events, an event", self._sequence, appended)
        self._take("dispatch_events, an event", self._dispatch, appended)
        self._take("stream_events(100) + ack_events, an event", self._consume, appended)
        self._take("claim_batch + commit_batch, an event", self._claim, appended)
        first = min(SLICE, self.events // EVENTS_PER_STREAM)
        for name, query in READS.items():
            self._take(name, partial(self._ask, query, some, first), some)
        for name, query in LOOKS.items():
            self._take(name, partial(self._ask, query, 50, None), 50)
        return 0

    def sizes(self) -> dict[str, float]:
        """Return the bytes per event of each table and index that has more than a few pages."""
        found = self._database.run(
            """
            select c.relname, pg_relation_size(c.oid)::float
            from pg_class c
            where c.relnamespace = 'event_store'::regnamespace and c.relkind in ('r', 'i')
            order by 2 desc
            """
        )
        return {str(name): float(str(size)) / self.events for name, size in found if float(str(size)) > PAGES}

    def _take(self, name: str, work: Callable[[], None], number: int) -> None:
        self.taken.setdefault(name, []).append(backend_us(self.connection, work, number))

    def _append(self) -> None:
        for _ in range(self._bench.size(BATCH, 20)):
            event_id = uuid4()
            self.connection.execute(APPEND, (event_id, str(event_id), DATA, event_id), prepare=True)

    def _fill(self) -> None:
        self.connection.execute(
            """
            select count(*) from event_store.append_events((
              select jsonb_agg(jsonb_build_object(
                'decider', 'order', 'decider_id', gen_random_uuid(), 'event', 'placed', 'event_id', gen_random_uuid(),
                'command_id', gen_random_uuid(), 'data', %s::jsonb
              )) from generate_series(1, 1000)
            ))
            """,
            (DATA,),
        )

    def _sequence(self) -> None:
        self.connection.execute("select event_store.sequence_events()")

    def _dispatch(self) -> None:
        self.connection.execute("select event_store.dispatch_events('rows')")

    def _consume(self) -> None:
        while stream_and_ack_some(self.connection, "rows", 100):
            pass

    def _claim(self) -> None:
        claims = self.connection.execute(
            "select partition, to_position, lease_token from event_store.claim_batch('bulk', 'me', 100000)"
        ).fetchall()
        self.connection.execute(
            "select event_store.commit_batch('bulk', %s, %s, %s)",
            tuple([claim[n] for claim in claims] for n in range(3)),
        )

    def _ask(self, query: LiteralString, calls: int, streams: int | None) -> None:
        for _ in range(calls):
            arguments = (str(self._random.randint(1, streams)),) if streams else ()
            self.connection.execute(query, arguments, prepare=True).fetchall()
