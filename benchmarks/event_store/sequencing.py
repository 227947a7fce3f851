"""Sequencing: events per second, also while somebody forgot a transaction that wrote."""

import time
from itertools import count

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result, fill

TARGET = 330_000


def rate(bench: Bench) -> list[Result]:
    """With no open transaction, with one here, and with one in another database."""
    alone, here, elsewhere, other = bench.ours(), bench.ours(), bench.ours(), bench.ours()
    streams = bench.size(20_000, 500)
    numbers = count()

    def sequence(database: Database) -> float:
        events = fill(database, f"round-{next(numbers)}", streams)
        with database.connect() as connection:
            began = time.perf_counter()
            row = connection.execute("select event_store_platform.sequence_events()").fetchone()
            seconds = time.perf_counter() - began
        if row is None or row[0] != events:
            raise RuntimeError(f"{row} events were sequenced, not {events}")
        return events / seconds

    def beside_forgotten(place: Database, database: Database) -> float:
        with place.connect() as forgotten:
            forgotten.execute("begin")
            forgotten.execute("insert into event_store.deciders values ('forgotten', 'event', 1, '')")
            rate = sequence(database)
            forgotten.execute("rollback")
        return rate

    def calls(database: Database) -> float:
        """Return how many calls a second find nothing new."""
        number = bench.size(2000, 20)
        with database.connect() as connection:
            connection.execute("select event_store_platform.sequence_events()")
            began = time.perf_counter()
            for _ in range(number):
                connection.execute("select event_store_platform.sequence_events()")
            return number / (time.perf_counter() - began)

    def beside_large(database: Database) -> float:
        with database.connect() as large:
            large.execute("begin")
            append_open(large, bench.size(250_000, 1000))
            rate = calls(database)
            large.execute("rollback")
        return rate

    a, b, c = bench.in_turn(
        lambda: sequence(alone), lambda: beside_forgotten(here, here), lambda: beside_forgotten(other, elsewhere)
    )
    idle, beside = bench.in_turn(lambda: calls(alone), lambda: beside_large(here))
    return [
        Result("sequence_events", a, TARGET, ratio=a / TARGET, target=1),
        Result("sequence_events, a forgotten transaction", b, a, ratio=b / a, target=0.9),
        Result("sequence_events, one in another database", c, a, ratio=c / a, target=0.9),
        Result("idle calls, a transaction open with 250,000 events", beside, idle, "calls/s", beside / idle, 0.9),
    ]


def append_open(connection: psycopg.Connection, events: int) -> None:
    """Append first events in the transaction that is open here."""
    connection.execute(
        """
        select from event_store.append_events((
          select jsonb_agg(jsonb_build_object(
            'decider', 'order', 'decider_id', gen_random_uuid(), 'event', 'placed', 'event_id', gen_random_uuid(),
            'command_id', gen_random_uuid(), 'data', '{}'::jsonb
          )) from generate_series(1, %s)
        ))
        """,
        (events,),
    )
