"""Calls that find nothing new, as services repeat them: their CPU, and whether they write anything."""

from functools import partial

import psycopg

from benchmarks.cpu import backend_us
from benchmarks.event_store.bench import Bench, Result, fill

TARGET_US = 500
MEANT = ("sequence_events", "claim_batch")
CALLS = {
    "sequence_events": b"select event_store_platform.sequence_events()",
    "claim_batch": b"select * from event_store.claim_batch('bulk', 'me')",
    "claim_views": b"select * from event_store_platform.claim_views('{bulk}', 'me')",
    "stream_events": b"select * from event_store.stream_events('rows')",
    "dispatch_events": b"select event_store_platform.dispatch_events('rows')",
    "poll_views": b"select * from event_store_platform.poll_views()",
}


def calls(bench: Bench) -> list[Result]:
    """Each call in a store of some events, all of them consumed."""
    database = bench.ours()
    fill(database, "log", bench.size(2000, 20))
    database.run("select event_store_platform.sequence_events()")
    for mode in ("rows", "bulk"):
        database.run(f"select from event_store.register_view('{mode}', v_mode => '{mode}')")
    database.run("vacuum analyze")
    number = bench.size(200, 10)
    results = []
    with database.connect() as connection:

        def repeat(call: bytes) -> None:
            for _ in range(number):
                connection.execute(call, prepare=True).fetchall()

        for call in CALLS.values():
            repeat(call)  # warm
        taken = bench.in_turn(
            *(partial(backend_us, connection, partial(repeat, call), number) for call in CALLS.values())
        )
        for (name, call), us in zip(CALLS.items(), taken, strict=True):
            ratio, target = (TARGET_US / us, 1) if name in MEANT else (None, None)
            results.append(Result(f"{name}, nothing new", us, unit="us of CPU", ratio=ratio, target=target))
            wrote = sum(has_written(connection, call) for _ in range(number))
            results.append(Result(f"  calls of {name} that got a transaction id", wrote, unit=f"of {number}"))
    return results


def has_written(connection: psycopg.Connection, call: bytes) -> bool:
    """Return whether a call gets a transaction id, without which nothing can be written that outlives it."""
    with connection.transaction():
        connection.execute(call).fetchall()
        row = connection.execute("select pg_current_xact_id_if_assigned() is not null").fetchone()
    return row == (True,)
