"""Reading ranges of the log by COPY: read_log and read_batch against a bare COPY of the same rows.

One log partition, so that its ranges are ranges of "offset", too: the bare COPY takes the same rows from `events` by
their primary key. The COPY looks up no position, no lease and no lock.
"""

import time
from functools import partial

import psycopg

from benchmarks.event_store.bench import EVENTS_PER_STREAM, Bench, Result, fill

BARE = (
    "select event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, created_at, "
    '"offset" from event_store.events where "offset" > {0} - {1} and "offset" <= {0} order by "offset"'
)


def reads(bench: Bench) -> list[Result]:
    """Ranges of 100 to 100,000 events at the end of the log, and how the rate grows with the range."""
    database = bench.ours(log_partitions=1)
    database.run("select from event_store.register_view('bulk', '-infinity', v_mode => 'bulk')")
    sizes = bench.size(100_000, 1000), bench.size(10_000, 300), bench.size(1000, 100), bench.size(100, 10)
    held = fill(database, "log", sizes[0] // EVENTS_PER_STREAM)
    database.run("select event_store_platform.sequence_events()")
    ((last,),) = database.run('select max("offset") from event_store.event_log')
    database.run("vacuum analyze")
    rates: dict[str, list[float]] = {"read_log": [], "read_batch": [], "bare": []}
    with database.connect() as connection:
        for size in sizes:
            number = max(bench.size(200_000, 2000) // size, 1)
            log = f"select * from event_store.read_log(0, {held - size}, {size})"
            bare = BARE.format(last, size)
            taken = bench.in_turn(
                partial(events_per_second, connection, log, size, number),
                partial(batches_per_second, connection, held, size, number),
                partial(events_per_second, connection, bare, size, number),
            )
            for values, value in zip(rates.values(), taken, strict=True):
                values.append(value)
    results = []
    for name in ("read_log", "read_batch"):
        for size, ours, bare_rate in zip(sizes, rates[name], rates["bare"], strict=True):
            what = f"{name}, ranges of {size:,}, against a bare COPY"
            results.append(Result(what, ours, bare_rate, ratio=ours / bare_rate))
    for name, values in rates.items():
        what = f"{'a bare COPY' if name == 'bare' else name}, ranges of {sizes[0]:,} against {sizes[-1]:,}"
        results.append(Result(what, values[0], values[-1], ratio=values[0] / values[-1]))
    return results


def events_per_second(connection: psycopg.Connection, query: str, size: int, number: int) -> float:
    """Copy the rows of a query so many times."""
    began = time.perf_counter()
    for _ in range(number):
        copy_out(connection, query, size)
    return number * size / (time.perf_counter() - began)


def batches_per_second(connection: psycopg.Connection, held: int, size: int, number: int) -> float:
    """Claim the end of the log, copy it so many times, and give it back; only the copies count."""
    connection.execute(
        "select from event_store_platform.seek_view('bulk', 'EXACT_OFFSET', %s, null, 0)", (held - size,)
    )
    claimed = connection.execute("select lease_token from event_store.claim_batch('bulk', 'me')").fetchone()
    if claimed is None:
        raise RuntimeError("There was nothing to claim.")
    rate = events_per_second(connection, f"select * from event_store.read_batch('bulk', 0, {claimed[0]})", size, number)
    connection.execute("select event_store.release_batch('bulk', '{0}', %s)", ([claimed[0]],))
    return rate


def copy_out(connection: psycopg.Connection, query: str, size: int) -> None:
    """Copy the rows of a query."""
    with connection.cursor() as cursor, cursor.copy(f"copy ({query}) to stdout".encode()) as copy:
        rows = sum(bytes(block).count(b"\n") for block in copy)
    if rows != size:
        raise RuntimeError(f"{rows} rows were read, not {size}")
