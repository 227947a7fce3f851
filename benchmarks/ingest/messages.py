"""Exactly-once producers: the cost of a message against a plain append, and how fast duplicates are answered.

On each side the same client sends the same events, made before, each in a separate stream. The plain side commits each
call by itself.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from random import Random
from uuid import uuid4

import psycopg

from benchmarks.event_store.bench import DATA, Bench, Database, Result
from benchmarks.event_store.workers import Worked, begin, run_together, seconds_of
from millrace.event_store import EventStore, NewEvent, StreamEvents, on
from millrace.producers import IdempotentProducer, ProducerStore
from millrace.producers.exactly_once import ExactlyOnce

Send = Callable[[list[StreamEvents]], object]
Sender = Callable[[str], AbstractContextManager[Send]]

# events of a message -> messages of each client, about one second of them
MESSAGES = {1: 1000, 10: 600, 100: 120}
CLIENTS = (1, 4)
FEW = 1000
DATA_JSON = json.loads(DATA)


def exactly_once(bench: Bench) -> list[Result]:
    """Measure messages in one call, and in a transaction that the client opens and commits, against append_events."""
    sides = [(bench.ours(), sender) for sender in (in_one_call, in_transaction, plainly)]
    results = []
    for clients in CLIENTS:
        for size, messages in MESSAGES.items():
            number = bench.size(messages, 20)
            call, process, plain = bench.in_turn(
                *(partial(sent_per_second, database, sender, clients, number, size) for database, sender in sides)
            )
            what = f"messages of {size} event{'s' * (size > 1)}, {clients} client{'s' * (clients > 1)}"
            results.append(Result(f"ingest_events, {what}", call, plain, "commits/s", call / plain, 0.5))
            results.append(Result(f"ExactlyOnce.process, {what}", process, plain, "commits/s", process / plain, 0.5))
    return results


def duplicates(bench: Bench) -> list[Result]:
    """Measure answers to duplicates of any age, of a producer with a long past against one with a short past."""
    many, calls = bench.size(1_000_000, 10_000), bench.size(3000, 100)
    database = bench.ours()
    for producer, messages in (("many", many), ("few", FEW)):
        make_past(database, producer, messages)
    database.run("vacuum analyze")
    seeds = count()
    with database.connect() as connection:
        x, y = bench.in_turn(
            lambda: answers_per_second(connection, "many", many, calls, next(seeds)),
            lambda: answers_per_second(connection, "few", FEW, calls, next(seeds)),
        )
    return [Result(f"duplicates among {many:,} messages against {FEW:,}", x, y, "answers/s", x / y, 0.9)]


def sent_per_second(database: Database, sender: Sender, clients: int, number: int, size: int) -> float:
    """Let `clients` clients send `number` messages each; return the committed messages per second."""
    worked = run_together([partial(send, database, sender, number, size)] * clients)
    return clients * number / seconds_of(worked)


def send(database: Database, sender: Sender, number: int, size: int) -> Worked:
    """Send `number` messages of `size` events each."""
    messages = [[new_event() for _ in range(size)] for _ in range(number)]
    with sender(database.dsn) as commit:
        commit([new_event()])
        began = begin()
        for message in messages:
            commit(message)
        return Worked(began, time.monotonic(), {})


def new_event() -> StreamEvents:
    """Make the first event of a stream."""
    event_id = uuid4()
    return on("order", event_id, NewEvent("placed", DATA_JSON, event_id=event_id, command_id=event_id))


@contextmanager
def in_one_call(dsn: str) -> Iterator[Send]:
    """Yield the send function of a producer that has the whole message before its call."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = ProducerStore(connection)
        producer = IdempotentProducer.register(store, str(uuid4()))

        def commit(events: list[StreamEvents]) -> None:
            stamp = producer.issue()
            received = store.ingest_events(stamp.producer_id, stamp.partition, stamp.epoch, stamp.sequence, events)
            if received.status != "committed":
                raise RuntimeError(f"{stamp} was {received.status}")

        yield commit


@contextmanager
def in_transaction(dsn: str) -> Iterator[Send]:
    """Yield the send function of a producer that appends inside its own transaction."""
    with ExactlyOnce(dsn) as once:
        producer = once.register(str(uuid4()))

        def commit(events: list[StreamEvents]) -> None:
            stamp = producer.issue()
            if once.process(stamp, lambda transaction: transaction.append_all(events)).duplicate:
                raise RuntimeError(f"{stamp} was a duplicate")

        yield commit


@contextmanager
def plainly(dsn: str) -> Iterator[Send]:
    """Yield the send function of a plain client, which cannot know the outcome when the answer is lost."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield EventStore(connection).append_all


def make_past(database: Database, producer: str, messages: int) -> None:
    """Give a producer a past of `messages` messages, set-based: one by one a million takes ten minutes."""
    with database.connect() as connection, connection.transaction():
        registered = ProducerStore(connection).register_producer(producer)
        connection.execute(
            """
            insert into event_store.producer_results (producer_id, partition, sequence, outcome, result, offsets, ended_at)
            select %s, %s, n, 'committed', jsonb_build_object('count', n), array[n], clock_timestamp()
            from generate_series(0, %s - 1) n
            """,
            (registered.producer_id, registered.partition, messages),
        )
        connection.execute(
            """
            update event_store.producer_progress
            set next_sequence = %(messages)s, received = %(messages)s, opened = %(messages)s, committed = %(messages)s
            where producer_id = %(producer)s
            """,
            {"producer": producer, "messages": messages},
        )


def answers_per_second(connection: psycopg.Connection, producer: str, messages: int, calls: int, seed: int) -> float:
    """Send messages of the past again, of any age; return the answers per second."""
    store = ProducerStore(connection)
    (statistics,) = store.producer_statistics(producer)
    again = Random(seed).choices(range(messages), k=calls)
    events = [new_event()]
    began = time.perf_counter()
    for sequence in again:
        answer = store.ingest_events(producer, 0, statistics.epoch, sequence, events)
        if answer.result != {"count": sequence}:
            raise RuntimeError(f"message {sequence} was {answer.status}: {answer.result}")
    return calls / (time.perf_counter() - began)
