"""A single append on one connection: its CPU against a bare INSERT of the same row with the same indexes."""

from datetime import UTC, datetime
from itertools import count
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from benchmarks.cpu import backend_us
from benchmarks.event_store.bare import insert, make_bare
from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Bench, Result

VALUES = {
    "event": "'placed'",
    "event_id": "%(event_id)s",
    "decider": "'order'",
    "decider_id": "%(stream)s",
    "data": "%(data)s",
    "command_id": "%(event_id)s",
    "previous_id": "%(previous_id)s",
    "created_at": "%(now)s",
    '"offset"': "%(number)s",
    "offset": "%(number)s",
    "version": "%(version)s",
}


def single(bench: Bench) -> list[Result]:
    """Streams of five events, each event stating the one before it; both statements are prepared."""
    database = bench.ours()
    columns = make_bare(database)
    number = bench.size(2000, 20)
    numbers = count(1)

    with database.connect() as ours, database.connect() as bare:
        statements: dict[psycopg.Connection, bytes | sql.Composed] = {
            ours: b"select from event_store.append_event('placed', %(event_id)s, 'order', %(stream)s::text, %(data)s, "
            b"%(event_id)s, %(previous_id)s)",
            bare: insert(columns, VALUES),
        }

        def append(side: psycopg.Connection) -> None:
            stream, previous = "", None
            for n in range(number):
                if n % EVENTS_PER_STREAM == 0:
                    stream, previous = str(uuid4()), None
                arguments: dict[str, str | int | UUID | datetime | None] = {
                    "event_id": uuid4(),
                    "stream": stream,
                    "data": DATA,
                    "previous_id": previous,
                    "now": datetime.now(UTC),
                    "number": next(numbers),
                    "version": n % EVENTS_PER_STREAM + 1,
                }
                side.execute(statements[side], arguments, prepare=True)
                previous = arguments["event_id"]

        for side in (ours, bare):
            append(side)  # warm
        x, y = bench.in_turn(
            lambda: backend_us(ours, lambda: append(ours), number),
            lambda: backend_us(bare, lambda: append(bare), number),
        )
    return [Result("append_event against a bare INSERT, one connection", x, y, "us of CPU", y / x, 1 / 1.6)]
