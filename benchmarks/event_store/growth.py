"""Whether a call costs more in a large store: a store with 100,000 events and one with many more take turns.

Each round appends some events and takes them through the log, a rows view and a bulk view that are not behind. Batches
have random ids or ids that rise with time. The numbers are CPU of the backend. Also measured are the WAL of an event of
a batch, a purge, and the bytes per event of each table and index.
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

FEW = 100_000
SLICE = 20_000  # streams
BATCH = 500
PAGES = 50 * 8192
TARGET = 1 / 1.2
APPEND: LiteralString = "select from event_store.append_event('placed', %s, 'order', %s::text, %s, %s, null)"
RANDOM: LiteralString = "gen_random_uuid()"
RISING: LiteralString = """
  (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
    || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
"""
PURGED = 10_000  # positions of a log partition
READS: dict[str, LiteralString] = {
    "get_events": "select * from event_store.get_events(md5('log-0-' || %s), 'order')",
    "log_position": "select * from event_store.log_position(md5('log-0-' || %s || '-1')::uuid)",
    "stream_head": "select * from event_store.stream_head(md5('log-0-' || %s), 'order')",
}
QUERIES: dict[str, LiteralString] = {
    "sequence_events, nothing new": "select event_store_platform.sequence_events()",
    "claim_batch, nothing new": "select * from event_store.claim_batch('bulk', 'me')",
    "poll_views": "select * from event_store_platform.poll_views()",
    "view_info": "select * from event_store.view_info()",
    "view_lag": "select * from event_store.view_lag('bulk')",
    "partition_info": "select * from event_store.partition_info()",
}


def calls(bench: Bench) -> list[Result]:
    """Measure each call in the large store against the small one, and the sizes of both."""
    few, many = bench.size(FEW, 500), max(bench.events, bench.size(FEW, 500))
    large, small = Store(bench, many), Store(bench, few)
    bench.in_turn(large.measure, small.measure)
    results = []
    for name, costs in large.costs.items():
        x, y = median(costs), median(small.costs[name])
        what = f"{name}, {large.events:,} events against {small.events:,}"
        results.append(Result(what, x, y, "us of CPU", y / x, TARGET))
    for name, large_store, small_store in (
        ("WAL of append_events, random ids, an event", large.wal(RANDOM), small.wal(RANDOM)),
        ("WAL of append_events, ids that rise, an event", large.wal(RISING), small.wal(RISING)),
    ):
        results.append(Result(name, large_store, small_store, "bytes"))
    results.append(Result("purge_events, an event", large.purge(), small.purge(), "us of CPU"))
    sizes = small.sizes()
    for name, size in large.sizes().items():
        results.append(Result(f"size of {name}", size, sizes.get(name, 0), "bytes/event"))
    for store in (large, small):
        store.connection.close()
    return results


class Store:
    """A store with `events` events, two views at its end, and the CPU that calls took."""

    def __init__(self, bench: Bench, events: int) -> None:
        self._bench = bench
        self._database: Database = bench.ours()
        self._numbers = count()
        self._random = Random(events)
        self.costs: dict[str, list[float]] = {}
        self.events = 0
        slices = count()
        while self.events < events:
            streams = min(SLICE, (events - self.events) // EVENTS_PER_STREAM)
            self.events += fill(self._database, f"log-{next(slices)}", streams)
            self._database.run("select event_store_platform.sequence_events()")
        for mode in ("rows", "bulk"):
            self._database.run(f"select from event_store.register_view('{mode}', v_mode => '{mode}')")
        self._database.run("vacuum analyze")
        self.connection = self._database.connect()

    def measure(self) -> float:
        """Append a batch and take it through the log and both views."""
        some = self._bench.size(BATCH, 20)
        self._take("append_event", self._append, some)
        self._take("append_events, random ids, an event of 1,000", partial(self._fill, RANDOM), 1000)
        self._take("append_events, ids that rise, an event of 1,000", partial(self._fill, RISING), 1000)
        appended = some + 2000
        self._take("sequence_events, an event", self._sequence, appended)
        self._take("dispatch_events, an event", self._dispatch, appended)
        self._take("stream_events(100) + ack_events, an event", self._consume, appended)
        self._take("claim_batch + commit_batch, an event", self._claim, appended)
        first = min(SLICE, self.events // EVENTS_PER_STREAM)
        for name, query in READS.items():
            self._take(name, partial(self._run_query, query, some, first), some)
        for name, query in QUERIES.items():
            self._take(name, partial(self._run_query, query, 50, None), 50)
        return 0

    def wal(self, ids: LiteralString) -> float:
        """Return the bytes of WAL per event of a batch, after a checkpoint."""
        self.connection.execute("checkpoint")
        before = self._wal_position()
        for _ in range(10):
            self._fill(ids)
        return (self._wal_position() - before) / 10_000

    def purge(self) -> float:
        """Delete the oldest events of a log partition, once the views have consumed all; return the CPU per event."""
        self._sequence()
        self._claim()
        self._dispatch()
        self._consume()
        to_position = self._bench.size(PURGED, 20)
        (held,) = self._database.run("select high_water_mark from event_store.partitions where partition = 0")
        to_position = min(to_position, int(str(held[0])))
        for call in ("mark_archived", "raise_low_water_mark"):
            self._database.run(f"select event_store_platform.{call}(0, {to_position})")
        return backend_us(
            self.connection,
            lambda: self.connection.execute("select event_store_platform.purge_events(0, %s)", (to_position,)),
            to_position,
        )

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

    def _wal_position(self) -> int:
        ((position,),) = self._database.run("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        return int(str(position))

    def _take(self, name: str, work: Callable[[], None], number: int) -> None:
        self.costs.setdefault(name, []).append(backend_us(self.connection, work, number))

    def _append(self) -> None:
        for _ in range(self._bench.size(BATCH, 20)):
            event_id = uuid4()
            self.connection.execute(APPEND, (event_id, str(event_id), DATA, event_id), prepare=True)

    def _fill(self, ids: LiteralString) -> None:
        self.connection.execute(
            f"""
            select count(*) from event_store.append_events((
              select jsonb_agg(jsonb_build_object(
                'decider', 'order', 'decider_id', {ids}, 'event', 'placed', 'event_id', {ids},
                'command_id', gen_random_uuid(), 'data', %s::jsonb
              )) from generate_series(1, 1000)
            ))
            """,
            (DATA,),
        )

    def _sequence(self) -> None:
        self.connection.execute("select event_store_platform.sequence_events()")

    def _dispatch(self) -> None:
        self.connection.execute("select event_store_platform.dispatch_events('rows')")

    def _consume(self) -> None:
        while rows := self.connection.execute(
            "select \"offset\" from event_store.stream_events('rows', 100, 300)"
        ).fetchall():
            self.connection.execute("select event_store.ack_events('rows', %s)", ([offset for (offset,) in rows],))

    def _claim(self) -> None:
        claims = self.connection.execute(
            "select partition, to_position, lease_token from event_store.claim_batch('bulk', 'me', 100000)"
        ).fetchall()
        self.connection.execute(
            "select event_store.commit_batch('bulk', %s, %s, %s)",
            tuple([claim[n] for claim in claims] for n in range(3)),
        )

    def _run_query(self, query: LiteralString, calls: int, streams: int | None) -> None:
        for _ in range(calls):
            arguments = (str(self._random.randint(1, streams)),) if streams else ()
            self.connection.execute(query, arguments, prepare=True).fetchall()
