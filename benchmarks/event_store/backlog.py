"""Waiting and parked streams: polls, deliveries and commits beside a hundred thousand of them against beside a hundred.

`waiting` streams of the rows view are free: dispatch_events made their locks. The benchmark writes the other states
set-based into stream_locks, as fail_event and fail_streams leave them, because those functions take minutes for so many
streams. `parked` streams failed at the only attempt; `waiting` ones of the bulk view wait for a retry, which does not
come while we measure. Rounds consume new streams of one event.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import LiteralString

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result, fill
from benchmarks.event_store.consumption import empty_claim_batch, empty_stream_events

FEW = 100
POLL_VIEWS: LiteralString = "select * from event_store_platform.poll_views()"


def waiting(bench: Bench) -> list[Result]:
    """Beside streams that wait: for a consumer (rows), for their retry (bulk)."""
    return beside(bench, "waiting", parks=False)


def parked(bench: Bench) -> list[Result]:
    """Beside dead letters."""
    return beside(bench, "parked", parks=True)


def beside(bench: Bench, state: str, *, parks: bool) -> list[Result]:
    """Measure among many and among a hundred such streams."""
    streams, calls = bench.size(100_000, 500), bench.size(200, 10)
    many, few = bench.ours(), bench.ours()
    for database, number in ((many, streams), (few, FEW)):
        make_backlog(database, number, parks=parks)
    results: list[Result] = []
    with many.connect() as a, few.connect() as b:

        def compare(what: str, unit: str, measure: Callable[[Database, psycopg.Connection], float]) -> None:
            x, y = bench.in_turn(lambda: measure(many, a), lambda: measure(few, b))
            results.append(Result(f"{what}, {streams:,} {state} streams against {FEW}", x, y, unit, ratio=x / y))

        compare("poll_views", "polls/s", lambda _, c: polls_per_second(c, calls))
        if parks:
            compare("stream_events, nothing new", "polls/s", lambda _, c: empty_stream_events(c, "rows", calls))
        compare("claim_batch, nothing new", "polls/s", lambda _, c: empty_claim_batch(c, "bulk", calls))
        numbers = count()
        compare("stream_events(1) + ack", "events/s", lambda d, c: acked_per_second(d, c, next(numbers), calls))
        compare("claim_batch(1) + commit", "events/s", lambda d, c: committed_per_second(d, c, next(numbers), calls))
    return results


def make_backlog(database: Database, streams: int, *, parks: bool) -> None:
    """Let so many streams wait or be parked in a rows view and in a bulk view."""
    for mode in ("rows", "bulk"):
        attempts = 1 if parks else 5
        database.run(
            f"select from event_store.register_view('{mode}', '-infinity', v_mode => '{mode}', v_max_attempts => {attempts})"
        )
    append(database, "first", FEW)
    append(database, "backlog", streams - FEW)
    database.run("vacuum analyze")
    state = (
        "locked_until = 'infinity', parked_at = clock_timestamp()"
        if parks
        else "locked_until = clock_timestamp() + interval '1 day'"
    )
    failed = f"update event_store.stream_locks set attempts = 1, last_error = 'refused', {state} where view = "
    database.run(
        """
        insert into event_store.stream_locks (
          view, decider, decider_id, partition, last_offset, last_version, created_at, updated_at
        )
        select 'bulk', decider, decider_id, partition, last_offset, last_version, created_at, updated_at
        from event_store.stream_locks where view = 'rows'
        """
    )
    database.run(
        """
        update event_store.checkpoints c set position = p.high_water_mark
        from event_store.partitions p where p.partition = c.partition and c.view = 'bulk'
        """
    )
    database.run(f"{failed} 'bulk'")
    if parks:
        database.run(f"{failed} 'rows'")
    database.run("vacuum analyze")


def append(database: Database, label: str, streams: int) -> None:
    """Append one event to each of so many new streams, and make their locks."""
    fill(database, label, streams, events=1)
    with database.connect() as connection:
        until_none(connection, "select event_store_platform.sequence_events()")
        until_none(connection, "select event_store_platform.dispatch_events('rows', v_max_waiting => 1000000)")


def until_none(connection: psycopg.Connection, query: LiteralString) -> None:
    """Repeat what says how much it did until it did nothing."""
    while connection.execute(query).fetchone() != (0,):
        pass


def polls_per_second(connection: psycopg.Connection, calls: int) -> float:
    """Ask for all views, as the sensors do."""
    began = time.perf_counter()
    for _ in range(calls):
        connection.execute(POLL_VIEWS, prepare=True).fetchall()
    return calls / (time.perf_counter() - began)


def acked_per_second(database: Database, connection: psycopg.Connection, number: int, calls: int) -> float:
    """Append so many events, then take as many one by one, and acknowledge each."""
    append(database, f"acked-{number}", calls)
    began = time.perf_counter()
    for _ in range(calls):
        (event,) = connection.execute(
            'select decider_id, "offset" from event_store.stream_events(%s)', ("rows",), prepare=True
        ).fetchall()
        connection.execute("select from event_store.ack_event(%s, %s::text, %s)", ("rows", *event), prepare=True)
    return calls / (time.perf_counter() - began)


def committed_per_second(database: Database, connection: psycopg.Connection, number: int, calls: int) -> float:
    """Append so many events, then claim as many one by one, and commit each."""
    append(database, f"committed-{number}", calls)
    began = time.perf_counter()
    for _ in range(calls):
        claims = connection.execute(
            "select partition, to_position, lease_token from event_store.claim_batch(%s, %s, %s)",
            ("bulk", "me", 1),
            prepare=True,
        ).fetchall()
        if not claims:
            raise RuntimeError("There was nothing to claim.")
        commit(connection, claims)
    return calls / (time.perf_counter() - began)


def commit(connection: psycopg.Connection, claims: Sequence[tuple[int, int, int]]) -> None:
    """Commit all of what was claimed."""
    connection.execute(
        "select event_store.commit_batch('bulk', %s, %s, %s)",
        tuple([claim[n] for claim in claims] for n in range(3)),
        prepare=True,
    )
