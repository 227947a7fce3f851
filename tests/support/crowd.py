"""Many clients that append concurrently, mostly to their own streams, now and then to shared ones."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID, uuid4

import psycopg

SHARED = "shared"
DATA = '{"total": "19.90", "channel": "web"}'
CONFLICT = "MR001"
# Clients put values into the text of the query, so pg_stat_activity shows the stream that each waits for.
WAITING = """
select l.locktype, a.query, coalesce(extract(epoch from clock_timestamp() - l.waitstart), 0)::float
from pg_locks l
join pg_stat_activity a using (pid)
where not l.granted and a.datname = current_database()
"""


@dataclass(frozen=True)
class Crowd:
    clients: int
    appends: int
    streams: int
    shared: int
    shared_part: float = 0.1


@dataclass
class Appended:
    """The clients' results: stored events, and attempts that lost to another client's event.

    `seconds` is the total; the others are the seconds of the answers: the sum for stored events, the longest of them,
    and the sum for conflicts.
    """

    events: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    stored_s: float = 0.0
    longest_s: float = 0.0
    conflicts_s: float = 0.0


def append_as(crowd: Crowd, address: str, first: int, last: int) -> Appended:
    """Run the clients from `first` to before `last`: connect all, then let them append concurrently."""
    return asyncio.run(_all(crowd, address, range(first, last)))


async def _all(crowd: Crowd, address: str, numbers: range) -> Appended:
    done = Appended()
    connections = [
        await psycopg.AsyncConnection.connect(
            address, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.AsyncClientCursor
        )
        for _ in numbers
    ]
    began = time.monotonic()
    await asyncio.gather(*(_one(crowd, n, one, done) for n, one in zip(numbers, connections, strict=True)))
    done.seconds = time.monotonic() - began
    for connection in connections:
        await connection.close()
    return done


async def _one(crowd: Crowd, number: int, connection: psycopg.AsyncConnection, done: Appended) -> None:
    random = Random(number)
    own: dict[str, UUID] = {}
    for _ in range(crowd.appends):
        if random.random() < crowd.shared_part:
            stream = f"{SHARED}-{random.randrange(crowd.shared)}"
            while not await _append(connection, stream, await _head(connection, stream), done):
                pass
        else:
            stream = f"own-{number}-{random.randrange(crowd.streams // crowd.clients)}"
            stored = await _append(connection, stream, own.get(stream), done)
            assert stored, f"nobody else appends to {stream}"
            own[stream] = stored


async def _head(connection: psycopg.AsyncConnection, stream: str) -> UUID | None:
    cursor = await connection.execute("select last_event_id from event_store.stream_head(%s, 'order')", (stream,))
    row = await cursor.fetchone()
    return row[0] if row else None


async def _append(
    connection: psycopg.AsyncConnection, stream: str, previous: UUID | None, done: Appended
) -> UUID | None:
    """Append one event; return its id, or None if the stream has moved on."""
    event_id = uuid4()
    began = time.monotonic()
    try:
        await connection.execute(
            "select from event_store.append_event('placed', %s, 'order', %s::text, %s, %s, %s)",
            (event_id, stream, DATA, event_id, previous),
        )
    except psycopg.Error as error:
        if error.sqlstate != CONFLICT:
            raise
        done.conflicts += 1
        done.conflicts_s += time.monotonic() - began
        return None
    took = time.monotonic() - began
    done.events += 1
    done.stored_s += took
    done.longest_s = max(done.longest_s, took)
    return event_id


@dataclass
class Waits:
    """The longest observed waits for locks, in seconds: for a shared stream, and for others."""

    shared: float = 0.0
    other: float = 0.0
    others: set[tuple[str, str]] = field(default_factory=set)

    def watch(self, connection: psycopg.Connection, ended: Callable[[], bool]) -> None:
        while not ended():
            for lock, query, seconds in connection.execute(WAITING).fetchall():
                if f"'{SHARED}-" in query:
                    self.shared = max(self.shared, seconds)
                else:
                    self.other = max(self.other, seconds)
                    self.others.add((lock, query))
            time.sleep(0.005)
