"""Sequencing: events per second, also while somebody forgot a transaction that wrote."""

import time
from itertools import count

from benchmarks.event_store.bench import Bench, Database, Result, fill

TARGET = 300_000


def rate(bench: Bench) -> list[Result]:
    """With no open transaction, with one here, and with one in another database."""
    alone, here, elsewhere, other = bench.ours(), bench.ours(), bench.ours(), bench.ours()
    streams = bench.size(20_000, 500)
    numbers = count()

    def sequence(database: Database) -> float:
        events = fill(database, f"round-{next(numbers)}", streams)
        with database.connect() as connection:
            began = time.perf_counter()
            row = connection.execute("select event_store.sequence_events()").fetchone()
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

    a, b, c = bench.in_turn(
        lambda: sequence(alone), lambda: beside_forgotten(here, here), lambda: beside_forgotten(other, elsewhere)
    )
    return [
        Result("sequence_events", a, TARGET, ratio=a / TARGET, target=1),
        Result("sequence_events, a forgotten transaction", b, a, ratio=b / a, target=0.9),
        Result("sequence_events, one in another database", c, a, ratio=c / a, target=0.9),
    ]
