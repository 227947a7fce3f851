"""Single appends: many clients, many views."""

import time
from uuid import UUID, uuid4

import psycopg

from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Bench, Result, append_script, cpu_per_event

VIEWS = 100


def clients_32(bench: Bench) -> list[Result]:
    """Measure 32 clients without a view."""
    ours, theirs = bench.ours(), bench.theirs()
    a, b = bench.in_turn(
        lambda: bench.pgbench(ours, append_script(ours), 32) * EVENTS_PER_STREAM,
        lambda: bench.pgbench(theirs, append_script(theirs), 32) * EVENTS_PER_STREAM,
    )
    what = "append_event, 32 clients, no view"
    return [Result(what, a, b, ratio=a / b, target=1.35), cpu_per_event(bench, what, ours, theirs, 1.35)]


def views_100(bench: Bench) -> list[Result]:
    """Measure 4 clients with 100 views, against the other schema and against ours without a view."""
    ours, alone, theirs = bench.ours(), bench.ours(), bench.theirs()
    for database in (ours, theirs):
        database.register_views(VIEWS)
    a, b, c = bench.in_turn(
        lambda: bench.pgbench(ours, append_script(ours), 4) * EVENTS_PER_STREAM,
        lambda: bench.pgbench(theirs, append_script(theirs), 4) * EVENTS_PER_STREAM,
        lambda: bench.pgbench(alone, append_script(alone), 4) * EVENTS_PER_STREAM,
    )
    what = f"append_event, 4 clients, {VIEWS} views"
    return [
        Result(what, a, b, ratio=a / b, target=8),
        cpu_per_event(bench, what, ours, theirs, 8),
        Result("the same against ours with no view", a, c, ratio=a / c, target=0.9),
    ]


def append_chain(
    connection: psycopg.Connection, stream: str, previous: UUID | None, number: int
) -> tuple[UUID | None, float]:
    """Append events one by one; return the last event_id and the seconds taken."""
    began = time.perf_counter()
    for _ in range(number):
        event_id = uuid4()
        connection.execute(
            "select from event_store.append_event('placed', %s, 'order', %s::text, %s, %s, %s)",
            (event_id, stream, DATA, event_id, previous),
        )
        previous = event_id
    return previous, time.perf_counter() - began
