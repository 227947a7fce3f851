"""What reading an event costs the Python client: its CPU against bare rows of the driver, by the same calls."""

from collections.abc import Callable
from functools import partial

import psycopg
from psycopg.types.string import TextLoader

from benchmarks.cpu import client_us
from benchmarks.event_store.bench import EVENTS_PER_STREAM, Bench, Result, fill
from millrace.resources.event_store import EventStore

RANGE = 500
CHUNK = 100
TARGET_US = 7


def events(bench: Bench) -> list[Result]:
    """read_log(500) and lease_events(100); the text of the data stays text on both sides."""
    database = bench.ours(log_partitions=1)
    streams, ranges = bench.size(4000, 300), bench.size(40, 2)
    held = fill(database, "log", streams)
    database.run("select event_store_platform.sequence_events()")
    database.run("select from event_store.register_view('rows', '-infinity', v_lock_timeout_s => 3600)")
    database.run("select event_store_platform.dispatch_events('rows', 100000, 100000)")
    with database.connect() as connection:
        store = EventStore(connection)

        def ours() -> None:
            for number in range(ranges):
                some = store.read_log(0, number * RANGE % (held - RANGE), RANGE)
                require(len(some), RANGE)

        def rows() -> None:
            for number in range(ranges):
                arguments = (0, number * RANGE % (held - RANGE), RANGE)
                require(len(fetched(connection, "select * from event_store.read_log(%s, %s, %s)", arguments)), RANGE)

        def leased(take: Callable[[], int]) -> None:
            for _ in range(bench.size(5, 1)):
                require(take(), CHUNK)
            store.end_locks("rows")

        lease = "select * from event_store.lease_events(%s, %s)"
        leases = bench.size(5, 1) * CHUNK
        a, b, c, d = bench.in_turn(
            partial(client_us, ours, ranges * RANGE),
            partial(client_us, rows, ranges * RANGE),
            partial(client_us, partial(leased, lambda: len(store.lease_events("rows", CHUNK))), leases),
            partial(client_us, partial(leased, lambda: len(fetched(connection, lease, ("rows", CHUNK)))), leases),
        )
    return [
        Result(f"read_log({RANGE}), client", a, TARGET_US, "us of CPU/event", TARGET_US / a, 1),
        Result(f"read_log({RANGE}) against bare rows, client", a, b, "us of CPU/event", b / a),
        Result(f"lease_events({CHUNK}) against bare rows, client", c, d, "us of CPU/event", d / c),
    ]


def fetched(connection: psycopg.Connection, query: str, arguments: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Return rows as the driver makes them, JSON as text."""
    with connection.cursor() as cursor:
        cursor.adapters.register_loader("jsonb", TextLoader)
        return cursor.execute(query.encode(), arguments).fetchall()


def require(found: int, expected: int) -> None:
    """Raise if a call gave another number of events."""
    if found != expected:
        raise RuntimeError(f"{found} events came, not {expected}; a stream has {EVENTS_PER_STREAM}.")
