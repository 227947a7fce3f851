"""Rebuilding a read model from all its events, beside the per-event loop of the other schema."""

from functools import partial
from itertools import count

from benchmarks.event_store.bench import Database
from benchmarks.event_store.consumption import CHUNK, consumed_per_second, stream_and_ack
from benchmarks.spark.bench import ORDERS, Bench, Result, timed
from benchmarks.spark.drains import drained
from benchmarks.spark.reads import growth
from resources.consumer import Consumer


def from_postgres(bench: Bench) -> list[Result]:
    """Every log partition of a model, one after the other, from the events in Postgres."""
    theirs = bench.theirs()
    numbers = count()
    few = min(500, bench.sizes[0] // 10)

    def loop(limit: int) -> float:
        label = f"rebuild-{next(numbers)}"
        return consumed_per_second(theirs, label, few, lambda connection: stream_and_ack(connection, "", limit))

    results: list[Result] = []
    rates = []
    for events in bench.sizes:
        log = bench.log(events)
        drained(bench, log)
        ours, single, chunks = bench.in_turn(
            partial(rebuild_rate, bench, log, events), lambda: loop(1), lambda: loop(CHUNK)
        )
        rates.append(ours)
        target = 100.0 if events == bench.sizes[-1] else None
        what = f"rebuild from {events:,} events"
        results += [
            Result(
                f"{what}; stream_events(1) + ack_event", ours, single, ratio=ours.value / single.value, target=target
            ),
            Result(f"{what}; stream_events({CHUNK}) + ack_event", ours, chunks, ratio=ours.value / chunks.value),
        ]
    return [*results, *growth("rebuild", bench, rates)]


def rebuild_rate(bench: Bench, log: Database, events: int) -> float:
    """Rebuild all log partitions and return the events per second."""
    with log.connect() as connection:
        partitions = connection.execute("select partition from event_store.partitions order by 1").fetchall()
    with Consumer(log.dsn, ORDERS, lambda: bench.spark, "bench") as consumer:
        built: list[int] = []
        seconds = timed(lambda: built.extend(consumer.rebuild(partition).events for (partition,) in partitions))
    if sum(built) != events:
        raise RuntimeError(f"{sum(built)} events were rebuilt, not {events}")
    return events / seconds
