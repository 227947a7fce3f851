"""Appends on one connection: CPU of client and server against a bare INSERT of the same row with the same indexes."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from random import Random
from statistics import median
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from benchmarks.cpu import backend_us
from benchmarks.event_store.bare import insert, make_bare
from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Bench, Result
from millrace import NO_STREAM, AsyncEventStore, Conflict, EventStore, NewEvent

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
COROUTINES, CONFLICTS = 32, 0.05
# events of an append -> its target cost in bare INSERTs per event: client and server together, and the server alone
TARGETS = {1: (2.4, 2.9), 3: (1.3, 1.3), 10: (0.9, 0.9)}


def single(bench: Bench) -> list[Result]:
    """Measure streams of five events: one, three and ten per call; both sides prepare their statements."""
    database = bench.ours()
    columns = make_bare(database)
    number = bench.size(3000, 30)
    numbers, data = count(1), json.loads(DATA)
    statement = insert(columns, VALUES) + sql.SQL(' returning event_id, "offset", version')

    def bare(connection: psycopg.Connection) -> None:
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
            connection.execute(statement, arguments, prepare=True).fetchall()
            previous = arguments["event_id"]

    def ours(store: EventStore, size: int) -> None:
        stream = ""
        for n in range(0, number, size):
            if n % EVENTS_PER_STREAM < size:
                stream = str(uuid4())
            store.append("order", stream, *[NewEvent("placed", data) for _ in range(size)])

    results = []
    with database.connect() as one, database.connect() as other:
        store = EventStore(one)
        sides: list[tuple[psycopg.Connection, Callable[[], None]]] = [(other, partial(bare, other))]
        sides += [(one, partial(ours, store, size)) for size in TARGETS]
        for _, work in sides:
            work()  # warm
        server: list[list[float]] = [[] for _ in sides]

        def both(side: int) -> float:
            connection, work = sides[side]
            before = time.process_time()
            server[side].append(backend_us(connection, work, number))
            return server[side][-1] + (time.process_time() - before) / number * 1e6

        plain, *calls = bench.in_turn(*[partial(both, side) for side in range(len(sides))])
        for (size, (target, of_server)), each, costs in zip(TARGETS.items(), calls, server[1:], strict=True):
            what = f"append of {size} against a bare INSERT, an event: CPU of "
            results.append(Result(f"{what}client and server", each, plain, "us", plain / each, 1 / target))
            a, b = median(costs), median(server[0])
            results.append(Result(f"{what}the server", a, b, "us", b / a, 1 / of_server))
    return results


def gathered(bench: Bench) -> list[Result]:
    """Measure many coroutines on one connection against one; each appends one event after the other to new streams."""
    database, number = bench.ours(), bench.size(4000, 100)
    data = json.loads(DATA)

    def per_second(coroutines: int, conflicts: float) -> float:
        async def appends(store: AsyncEventStore, chance: Random) -> None:
            for _ in range(number // coroutines):
                wrong = 7 if chance.random() < conflicts else NO_STREAM
                with suppress(Conflict):
                    await store.append("order", uuid4(), NewEvent("placed", data), expected_version=wrong)

        async def main() -> float:
            async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
                store = AsyncEventStore(connection)
                began = time.perf_counter()
                await asyncio.gather(*(appends(store, Random(n)) for n in range(coroutines)))
                return number / (time.perf_counter() - began)

        return asyncio.run(main())

    per_second(COROUTINES, 0.0)  # warm
    one, many, refused = bench.in_turn(
        lambda: per_second(1, 0.0), lambda: per_second(COROUTINES, 0.0), lambda: per_second(COROUTINES, CONFLICTS)
    )
    what = f"{COROUTINES} coroutines on one connection against one"
    return [
        Result(what, many, one, "events/s", many / one, 6),
        Result(f"{what}, {CONFLICTS:.0%} conflicts", refused, one, "calls/s", refused / one, 3),
    ]
