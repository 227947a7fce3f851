"""Batches: append_events against a bare COPY into the same table, and what the size of a batch does.

The COPY writes the same rows with the same indexes; it moves no stream, checks nothing, and returns nothing. Both
sides are given ready text and leave the answer as it comes, so that Python's part in it is small.
"""

import json
import time
from collections.abc import Callable
from itertools import count
from typing import TypedDict
from uuid import uuid4

import psycopg

from benchmarks.event_store.bench import DATA, Bench, Result

COPY = (
    "copy event_store.events (event, event_id, event_version, decider, decider_id, data, command_id, previous_id, final, "
    'created_at, "offset") from stdin'
)

Name = Callable[[int, int], str]


class Event(TypedDict):
    """One event as append_events takes it."""

    decider: str
    decider_id: str
    event: str
    event_id: str
    command_id: str
    data: object


NEW = "1,000 new streams x 1 event"
SHAPES: dict[str, Name] = {
    NEW: lambda batch, n: f"new-{batch}-{n}",
    "50 streams x 20 events": lambda batch, n: f"some-{batch % 7}-{n % 50}",
    "1,000 known streams x 1 event": lambda batch, n: f"known-{batch % 3}-{n}",
}


def against_copy(bench: Bench) -> list[Result]:
    """Batches of 1,000 events in several shapes."""
    results = []
    number = bench.size(20, 3)
    for shape, name in SHAPES.items():
        ours, bare = bench.ours(), bench.ours()
        with ours.connect() as a, bare.connect() as b:
            b.execute("set event_store.streams_advanced = 'on'")
            append, copy = appender(a, name, 1000, number), copier(b, name, 1000, number)
            append(), copy()  # warm
            x, y = bench.in_turn(append, copy)
        results.append(Result(f"append_events, {shape}, against COPY", x, y, ratio=x / y, target=0.5))
    return results


def sizes(bench: Bench) -> list[Result]:
    """Batches of 1 to 1,000 events, each event in a stream of its own."""
    results = []
    for size in (1, 10, 100, 1000):
        with bench.ours().connect() as connection:
            number = max(bench.size(4000, 200) // size, 2)
            (rate,) = bench.in_turn(appender(connection, SHAPES[NEW], size, number))
        results.append(Result(f"append_events, batches of {size:,}", rate))
    return results


def appender(connection: psycopg.Connection, name: Name, size: int, number: int) -> Callable[[], float]:
    """Make a function that appends so many batches and returns the events per second."""
    batches = count()

    def append() -> float:
        texts = [json.dumps(make_batch(name, next(batches), size)).encode() for _ in range(number)]
        return number * size / sum(append_seconds(connection, text, size) for text in texts)

    return append


def copier(connection: psycopg.Connection, name: Name, size: int, number: int) -> Callable[[], float]:
    """Make a function that copies so many batches and returns the events per second."""
    batches, offsets = count(), count(1, size)

    def copy() -> float:
        texts = [copy_text(make_batch(name, next(batches), size), next(offsets)) for _ in range(number)]
        return number * size / sum(copy_seconds(connection, text) for text in texts)

    return copy


def make_batch(name: Name, batch: int, size: int) -> list[Event]:
    """Make a batch's events."""
    data = json.loads(DATA)
    return [
        Event(
            decider="order",
            decider_id=name(batch, n),
            event="placed",
            event_id=str(uuid4()),
            command_id=str(uuid4()),
            data=data,
        )
        for n in range(size)
    ]


def append_seconds(connection: psycopg.Connection, text: bytes, size: int) -> float:
    """Append one batch."""
    began = time.perf_counter()
    answer = connection.pgconn.exec_params(b"select * from event_store.append_events($1)", [text])
    seconds = time.perf_counter() - began
    if answer.ntuples != size:
        raise RuntimeError(answer.error_message.decode())
    return seconds


def copy_text(events: list[Event], offset: int) -> bytes:
    """Write the same rows in COPY's text format."""
    lines = []
    for number, event in enumerate(events):
        fields = [
            event["event"],
            event["event_id"],
            "1",
            event["decider"],
            event["decider_id"],
            json.dumps(event["data"]),
            event["command_id"],
            "\\N",
            "f",
            "2026-01-01 00:00:00+00",
            str(offset + number),
        ]
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()


def copy_seconds(connection: psycopg.Connection, text: bytes) -> float:
    """Copy one batch."""
    began = time.perf_counter()
    with connection.cursor() as cursor, cursor.copy(COPY.encode()) as copy:
        copy.write(text)
    return time.perf_counter() - began
