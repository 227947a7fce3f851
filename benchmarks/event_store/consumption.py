"""Consuming: event by event and in bulk, and polls that find nothing.

Each round appends its events first, the same ones on both sides, and measures until all are consumed.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import LiteralString

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result, fill

Consume = Callable[[psycopg.Connection], int]
VIEW = "view-1"
CHUNK = 100


def row_by_row(bench: Bench) -> list[Result]:
    """Measure the three ways of a client that takes events one by one."""
    ours, theirs = bench.ours(), bench.theirs()
    for database in (ours, theirs):
        database.register_views(1)
    backlog, many = bench.size(4000, 40), bench.size(600, 20)
    numbers = count()
    for database in (ours, theirs):
        fill(database, "backlog", backlog)
    ours.run("select from event_store_platform.sequence_events()")
    ours.run(f"select from event_store_platform.dispatch_events('{VIEW}', 100000)")

    def rate(database: Database, streams: int, consume: Consume) -> Callable[[], float]:
        return lambda: consumed_per_second(database, f"rows-{next(numbers)}", streams, consume)

    single = bench.in_turn(
        lambda: one_by_one_per_second(ours, "event_store.", bench.size(500, 10)),
        lambda: one_by_one_per_second(theirs, "", bench.size(500, 10)),
    )
    for database, schema in ((ours, "event_store."), (theirs, "")):
        with database.connect() as connection:
            stream_and_ack(connection, schema, CHUNK)
    chunks = bench.in_turn(
        rate(ours, many, lambda c: stream_and_ack(c, "event_store.", CHUNK)),
        rate(ours, many, stream_and_ack_all),
        rate(theirs, many, lambda c: stream_and_ack(c, "", CHUNK)),
    )
    return [
        Result("stream_events(1) + ack", single[0], single[1], ratio=single[0] / single[1], target=2),
        Result(f"stream_events({CHUNK}) + an ack each", chunks[0], chunks[2], ratio=chunks[0] / chunks[2], target=1.1),
        Result(f"stream_events({CHUNK}) + ack_events", chunks[1], chunks[2], ratio=chunks[1] / chunks[2], target=6),
    ]


def in_bulk(bench: Bench) -> list[Result]:
    """One consumer that claims, reads by COPY and commits, against the other schema's best loop."""
    ours, theirs = bench.ours(), bench.theirs()
    theirs.register_views(1)
    ours.run("select from event_store.register_view('bulk', '-infinity', v_mode => 'bulk')")
    numbers = count()
    a, b = bench.in_turn(
        lambda: consumed_per_second(ours, f"bulk-{next(numbers)}", bench.size(20_000, 500), claim_read_commit),
        lambda: consumed_per_second(
            theirs, f"bulk-{next(numbers)}", bench.size(600, 20), lambda c: stream_and_ack(c, "", CHUNK)
        ),
    )
    return [Result(f"claim, read, commit against stream_events({CHUNK}) + ack", a, b, ratio=a / b, target=50)]


def empty_polls(bench: Bench) -> list[Result]:
    """Measure a poll that finds nothing: among a million idle streams against among a hundred."""
    many, few = bench.ours(), bench.ours()
    idle = bench.size(1_000_000, 5000)
    polls = bench.size(500, 50)
    results = []
    with many.connect() as a, few.connect() as b:
        for database, streams in ((many, idle), (few, 100)):
            fill(database, "idle", streams, events=1)
            with database.connect() as connection:
                while connection.execute("select event_store_platform.sequence_events()").fetchone() != (0,):
                    pass
            # from now on: to a view, what it has consumed and what it never wanted are the same
            for mode in ("rows", "bulk"):
                database.run(f"select from event_store.register_view('{mode}', v_mode => '{mode}')")
            database.run("vacuum analyze")

        for name, poll in (
            ("stream_events", lambda c: empty_stream_events(c, "rows", polls)),
            ("claim_batch", lambda c: empty_claim_batch(c, "bulk", polls)),
        ):
            x, y = bench.in_turn(partial(poll, a), partial(poll, b))
            what = f"{name}, nothing new, {idle:,} idle streams against 100"
            results.append(Result(what, x, y, "polls/s", ratio=x / y, target=0.9))
    return results


def empty_stream_events(connection: psycopg.Connection, view: str, polls: int) -> float:
    """Poll a rows view that has nothing to give; return the polls per second."""
    return empty_per_second(connection, "select * from event_store.stream_events(%s, %s::int)", (view, CHUNK), polls)


def empty_claim_batch(connection: psycopg.Connection, view: str, polls: int) -> float:
    """Poll a bulk view that has nothing to give; return the polls per second."""
    arguments = (view, "me", 1000)
    return empty_per_second(connection, "select * from event_store.claim_batch(%s, %s, %s)", arguments, polls)


def empty_per_second(
    connection: psycopg.Connection, sql: LiteralString, arguments: tuple[object, ...], polls: int
) -> float:
    """Run a prepared statement that finds nothing, as a client does that polls; return how often per second."""
    began = time.perf_counter()
    for _ in range(polls):
        if connection.execute(sql, arguments, prepare=True).fetchone() is not None:
            raise RuntimeError("The poll found something.")
    return polls / (time.perf_counter() - began)


def consumed_per_second(database: Database, label: str, streams: int, consume: Consume) -> float:
    """Append to so many new streams, then consume until nothing is left."""
    events = fill(database, label, streams)
    with database.connect() as connection:
        if database.ours:
            connection.execute("select event_store_platform.sequence_events()")
        began = time.perf_counter()
        if database.ours:
            # what an append of fstore-sql does for each view, `millrace run sequencer` does beside the consumers
            connection.execute(
                "select event_store_platform.dispatch_events(view) from event_store.views where mode = 'rows'"
            )
        consumed = consume(connection)
        seconds = time.perf_counter() - began
    if consumed != events:
        raise RuntimeError(f"{consumed} events were consumed, not {events}")
    return events / seconds


def one_by_one_per_second(database: Database, schema: str, number: int) -> float:
    """Take so many events of a backlog one by one and acknowledge each."""
    with database.connect() as connection:
        began = time.perf_counter()
        for _ in range(number):
            (event,) = connection.execute(
                f"select decider_id, \"offset\" from {schema}stream_events('{VIEW}')".encode()
            ).fetchall()
            connection.execute(f"select * from {schema}ack_event('{VIEW}', %s, %s)".encode(), event)
        return number / (time.perf_counter() - began)


def stream_and_ack(connection: psycopg.Connection, schema: str, limit: int) -> int:
    """Take events and acknowledge each."""
    take = f"select decider_id, \"offset\" from {schema}stream_events('{VIEW}', {limit})".encode()
    ack = f"select * from {schema}ack_event('{VIEW}', %s, %s)".encode()
    consumed = 0
    while events := connection.execute(take).fetchall():
        for event in events:
            connection.execute(ack, event)
        consumed += len(events)
    return consumed


def stream_and_ack_all(connection: psycopg.Connection) -> int:
    """Take events and acknowledge them at once."""
    consumed = 0
    while some := stream_and_ack_some(connection, VIEW, CHUNK):
        consumed += some
    return consumed


def stream_and_ack_some(connection: psycopg.Connection, view: str, limit: int) -> int:
    """Take up to so many events, acknowledge them at once; return how many."""
    rows = connection.execute(
        'select "offset" from event_store.stream_events(%s, %s::int, 300)', (view, limit)
    ).fetchall()
    if rows:
        connection.execute("select event_store.ack_events(%s, %s)", (view, [row[0] for row in rows]))
    return len(rows)


def claim_read_commit(connection: psycopg.Connection) -> int:
    """Claim, read and commit until nothing is left."""
    consumed = 0
    while claims := connection.execute(
        "select partition, to_position, lease_token from event_store.claim_batch('bulk', 'me', 100000)"
    ).fetchall():
        for partition, _, token in claims:
            sql = f"copy (select * from event_store.read_batch('bulk', {partition}, {token})) to stdout"
            with connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
                consumed += sum(bytes(block).count(b"\n") for block in copy)
        connection.execute(
            "select event_store.commit_batch('bulk', %s, %s, %s)",
            tuple([claim[n] for claim in claims] for n in range(3)),
        )
    return consumed
