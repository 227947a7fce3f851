"""Subscribing: how long an event takes from the commit of its append until a consumer that polls has it.

A writer appends a bounded number of events, one every few milliseconds; one consumer polls without a pause, so that the
delay is the store's and not that of a client's timer.

stream_events leaves sequencing to others where it cannot tell that its transaction ends with the call. So it is
measured in three situations: with bound parameters beside `millrace run sequencer`, as services are run; with bound
parameters and without a sequencer; and in the simple protocol, where stream_events can tell.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from uuid import UUID

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result
from benchmarks.event_store.workers import CHUNK, PATIENCE_S, Worked, begin, run_together, sequencing, write

PAUSE_S = 0.003
VIEW = "view-1"

Take = Callable[[psycopg.Connection], dict[UUID, float]]  # each event and when it came, before the acknowledgement


def delays(bench: Bench) -> list[Result]:
    """Measure the median and the 99 % of the delay, by stream_events and by claim_batch, against the other schema."""
    number = bench.size(600, 20)
    sides = {
        "stream_events beside millrace run sequencer": Side(rows_database(bench.ours()), take_rows, sequenced=True),
        "stream_events, nobody sequences": Side(rows_database(bench.ours()), take_rows),
        "stream_events, simple protocol": Side(rows_database(bench.ours()), take_simple),
        "claim_batch": Side(bulk_database(bench.ours()), take_bulk),
        "theirs": Side(rows_database(bench.theirs()), take_theirs),
    }
    bench.in_turn(*(partial(side.measure, number) for side in sides.values()))
    theirs = sides.pop("theirs")
    results = []
    for name, side in sides.items():
        for what, part in (("median", median), ("99 %", last_percent)):
            x, y = part(side.delays) * 1000, part(theirs.delays) * 1000
            results.append(Result(f"append to delivery by {name}, {what}", x, y, "ms", ratio=y / x))
    return results


@dataclass
class Side:
    """A database, how its consumer takes events, and what that took so far."""

    database: Database
    take: Take
    sequenced: bool = False
    delays: list[float] = field(default_factory=list)

    def measure(self, number: int) -> float:
        """Append so many events while somebody consumes; return the median of the delays."""
        works = [partial(write, self.database, number, PAUSE_S), partial(tail, self.database, self.take, number)]
        with sequencing(self.database) if self.sequenced else nullcontext():
            written, consumed = run_together(works)
        # the reply of a commit may come after the event was delivered
        some = [max(consumed.events[event] - at, 0) for event, at in written.events.items()]
        self.delays += some
        return median(some)


def rows_database(database: Database) -> Database:
    """Register a view that is consumed event by event."""
    database.register_views(1)
    return database


def bulk_database(database: Database) -> Database:
    """Register a view that is consumed in ranges."""
    database.run(f"select from event_store.register_view('{VIEW}', '-infinity', v_mode => 'bulk')")
    return database


def last_percent(values: list[float]) -> float:
    """Return the value that 99 % of the values do not exceed."""
    return quantiles(values, n=100, method="inclusive")[98]


def tail(database: Database, take: Take, number: int) -> Worked:
    """Poll until so many events were delivered; say when each was."""
    delivered: dict[UUID, float] = {}
    with database.connect() as connection:
        take(connection)
        began = begin()
        while len(delivered) < number:
            delivered = take(connection) | delivered
            if time.monotonic() > began + PATIENCE_S:
                raise RuntimeError(f"Only {len(delivered)} of {number} events came in {PATIENCE_S} s.")
    return Worked(began, time.monotonic(), delivered)


def take_rows(connection: psycopg.Connection) -> dict[UUID, float]:
    """Take a hundred events of ours and acknowledge them at once."""
    return take_by(connection.cursor())


def take_simple(connection: psycopg.Connection) -> dict[UUID, float]:
    """Do the same with literals in the simple protocol."""
    return take_by(psycopg.ClientCursor(connection))


def take_by(cursor: psycopg.Cursor) -> dict[UUID, float]:
    """Take a hundred events of ours and acknowledge them at once."""
    taken = cursor.execute(
        'select event_id, "offset" from event_store.stream_events(%s, %s::int)', (VIEW, CHUNK)
    ).fetchall()
    now = time.monotonic()
    if taken:
        cursor.execute("select event_store.ack_events(%s, %s)", (VIEW, [offset for _, offset in taken]))
    return {event: now for event, _ in taken}


def take_theirs(connection: psycopg.Connection) -> dict[UUID, float]:
    """Take a hundred events of the other schema and acknowledge each."""
    taken = connection.execute(
        'select event_id, decider_id, "offset" from stream_events(%s, %s::int)', (VIEW, CHUNK)
    ).fetchall()
    now = time.monotonic()
    for _, stream, offset in taken:
        connection.execute("select * from ack_event(%s, %s, %s)", (VIEW, stream, offset))
    return {event: now for event, _, _ in taken}


def take_bulk(connection: psycopg.Connection) -> dict[UUID, float]:
    """Claim, read and commit what is new."""
    claims = connection.execute(
        "select partition, to_position, lease_token from event_store.claim_batch(%s, 'me')", (VIEW,)
    ).fetchall()
    taken: dict[UUID, float] = {}
    for partition, _, token in claims:
        events = connection.execute(
            "select event_id from event_store.read_batch(%s, %s, %s)", (VIEW, partition, token)
        ).fetchall()
        now = time.monotonic()
        taken |= {event: now for (event,) in events}
    if claims:
        connection.execute(
            "select event_store.commit_batch(%s, %s, %s, %s)",
            (VIEW, *([claim[n] for claim in claims] for n in range(3))),
        )
    return taken
