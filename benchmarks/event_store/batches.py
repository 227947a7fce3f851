"""Batches: append_events against a bare COPY of the same rows, in events per second of the backend's CPU.

Both sides get prepared text. The COPY writes into the same columns and indexes; it advances no stream, checks nothing,
and returns nothing.
"""

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypedDict
from uuid import uuid4

import psycopg

from benchmarks.cpu import backend_us
from benchmarks.event_store.bare import copy_into, make_bare
from benchmarks.event_store.bench import DATA, Bench, Result

Name = Callable[[int, int], str]


class Event(TypedDict):
    """One event in the form that append_events takes."""

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
    """Measure batches of 1,000 events in several shapes."""
    results = []
    number = bench.size(20, 3)
    for shape, name in SHAPES.items():
        ours, bare = bench.ours(), bench.ours()
        with ours.connect() as a, bare.connect() as b:
            append, copy = appender(a, name, 1000, number), copier(b, make_bare(bare), name, 1000, number)
            append(), copy()  # warm
            x, y = bench.in_turn(append, copy)
        results.append(Result(f"append_events, {shape}, against COPY", x, y, "events/CPU s", x / y, 0.6))
    return results


def appender(connection: psycopg.Connection, name: Name, size: int, number: int) -> Callable[[], float]:
    """Make a function that appends `number` batches and returns the events per second of CPU."""
    batches = count()

    def append() -> float:
        texts = [json.dumps(make_batch(name, next(batches), size)).encode() for _ in range(number)]
        return 1e6 / backend_us(connection, lambda: append_batches(connection, texts, size), number * size)

    return append


def copier(
    connection: psycopg.Connection, columns: Sequence[str], name: Name, size: int, number: int
) -> Callable[[], float]:
    """Make a function that copies `number` batches and returns the events per second of CPU."""
    batches, offsets = count(), count(1, size)

    def copy() -> float:
        texts = [copy_text(columns, make_batch(name, next(batches), size), next(offsets)) for _ in range(number)]
        return 1e6 / backend_us(connection, lambda: copy_batches(connection, columns, texts), number * size)

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


def append_batches(connection: psycopg.Connection, texts: Sequence[bytes], size: int) -> None:
    """Append batches without parsing the answers, so that Python's part is small."""
    for text in texts:
        answer = connection.pgconn.exec_params(b"select * from event_store.append_events($1)", [text])
        if answer.ntuples != size:
            raise RuntimeError(answer.error_message.decode())


def copy_text(columns: Sequence[str], events: list[Event], offset: int) -> bytes:
    """Write the same rows in COPY's text format."""
    lines = []
    for number, event in enumerate(events, offset):
        values = {
            **event,
            "data": json.dumps(event["data"]),
            "created_at": "2026-01-01 00:00:00+00",
            "offset": str(number),
            "version": str(number),
        }
        lines.append("\t".join(str(values.get(column, "\\N")) for column in columns))
    return ("\n".join(lines) + "\n").encode()


def copy_batches(connection: psycopg.Connection, columns: Sequence[str], texts: Sequence[bytes]) -> None:
    """Copy batches."""
    for text in texts:
        with connection.cursor() as cursor, cursor.copy(copy_into(columns)) as copying:
            copying.write(text)
