"""The cost of scheduled events and of a process's steps, where a million others wait: CPU of client and server."""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import psycopg

from benchmarks.cpu import of_server
from benchmarks.event_store.bench import DATA, EVENTS_PER_STREAM, Bench, Database, Result, fill
from benchmarks.event_store.reading import both_sides
from millrace import Decider, Emit, EventStore, NewEvent, on, subscription
from millrace.commands import Do, process, starts
from millrace.event_store import Delivery, Event
from millrace.event_store.platform import PlatformStore
from millrace.handlers.consumer import Consumer
from millrace.handlers.trial import consumed
from millrace.sequencer import _Rounds

WAITING, SLICE, BATCH = 1_000_000, 20_000, 1000
DAY = timedelta(days=1)
ROLES = ["postgres", "event_store_writer", "event_store_consumer"]
WAIT = """
    insert into event_store.scheduled_events (
      decider, decider_id, name, event_id, event, event_version, data, command_id, final, due_at, next_at, since_version,
      opens, made_by, made_at, done_at, outcome
    ) select
      'order', %(label)s || n, 'pay', gen_random_uuid(), 'placed', 1, %(data)s, gen_random_uuid(), false, w.due_at, w.due_at, 1,
      false, (%(roles)s::name[])[1 + n %% cardinality(%(roles)s::name[])], now(), case when %(done)s then now() end,
      case when %(done)s then 'fired' end
    from generate_series(1, %(number)s) n, lateral (select now() + %(after)s * (1 + n::float / %(number)s) as due_at) w
"""
SENT = Decider[int, int](name="sent", initial=0, decide=lambda *_: [Emit("placed", {})], evolve=lambda n, _: n + 1)


@subscription(view="writes", deciders=["writes"], concurrency=4)
def writes(event: Delivery, connection: psycopg.Connection) -> None:
    """Write a row."""
    connection.execute("insert into written values (%s)", (event.event_id,))


@subscription(view="appends", deciders=["appends"], concurrency=4)
def appends(event: Delivery, connection: psycopg.Connection) -> None:
    """Append an event."""
    EventStore(connection).append("sent", event.decider_id, NewEvent("placed", {"n": 1}))


def steps(view: str, ask: Callable[[Do, str], None]) -> Any:  # noqa: ANN401 - a class, to type checkers
    """Make a process whose steps ask for the same."""

    @process(view=view, key={view: "decider_id"}, concurrency=4)
    class Steps:
        @starts("placed")
        def placed(self, event: Event, do: Do) -> None:
            ask(do, event.decider_id)

    return Steps


SIDES: dict[str, Any] = {
    "writes": writes,
    "appends": appends,
    "times": steps("times", lambda do, _: do.timer("pay", after=DAY, event="placed")),
    "commands": steps("commands", lambda do, stream: do.command(SENT, stream, 1)),
}


def costs(bench: Bench) -> list[Result]:
    """Measure each side in turn, then idle calls with and without others that wait."""
    full, empty = store_of(bench), store_of(bench)
    number, labels = bench.size(BATCH, 20), (f"{n}-" for n in count())
    with full.connect() as one, empty.connect() as other:
        for state in ("waiting", "done"):
            wait(one, state, bench.size(WAITING, 100), state)
            one.execute("vacuum analyze")
        store, platform, new = EventStore(one), PlatformStore(one), partial(NewEvent, "placed", json.loads(DATA))

        def each(work: Callable[[str], object]) -> float:
            opened = streams(one, "order", next(labels), number)
            return both_sides(one, lambda: [work(stream) for stream in opened], number)

        def fired() -> float:
            streams(one, "order", label := next(labels), number)
            wait(one, label, number, "due")
            return both_sides(one, lambda: [*iter(lambda: platform.fire_scheduled_events().done, 0)], number)

        def idle(call: Callable[[], object], connection: psycopg.Connection) -> float:
            return both_sides(connection, lambda: [call() for _ in range(number)], number)

        def delivered(view: str) -> float:
            streams(one, view, next(labels), number)
            before = time.process_time() + of_server(bench.server)
            assert consumed(full.dsn, SIDES[view])[0].handled == number
            return (time.process_time() + of_server(bench.server) - before) / number * 1e6

        append, schedule, fire = bench.in_turn(
            partial(each, lambda stream: store.append("order", stream, new())),
            partial(each, lambda stream: store.schedule("order", stream, new(), name="a", after=DAY)),
            fired,
        )
        looks = (partial(idle, PlatformStore(each).fire_scheduled_events, each) for each in (one, other))
        looked, looked_empty = bench.in_turn(*looks)
        passed, passed_empty = bench.in_turn(*(partial(idle, _Rounds(each).work, each) for each in (one, other)))
        for side in SIDES.values():
            Consumer(full.dsn, side).register()  # their views begin now, and cost passes
        row, event, timer, command = bench.in_turn(*(partial(delivered, view) for view in SIDES))
    return [
        Result(what, ours, baseline, "us", baseline / ours, most and 1 / most)
        for what, ours, baseline, most in (
            ("a scheduled event that is fired, against an append", fire, append, 1.5),
            ("schedule, against an append", schedule, append, None),
            ("an idle look where they wait, against where none does", looked, looked_empty, 1.1),
            ("the sequencer's idle pass, likewise", passed, passed_empty, 1.1),
            ("a step that sets a timer, against a handler's append", timer, event, 2.5),
            ("a step with a command, likewise", command, event, 2.5),
            ("a step that sets a timer, against a handler's row", timer, row, 2.5),
            ("a step with a command, likewise", command, row, 2.5),
        )
    ]


def store_of(bench: Bench) -> Database:
    """Make a store with as many events as the run was asked for."""
    database = bench.ours()
    for first in range(0, bench.events, SLICE * EVENTS_PER_STREAM):
        fill(database, f"old-{first}", SLICE)
    database.run("select event_store_platform.sequence_events()")
    database.run("vacuum analyze")
    database.run("create table written (event_id uuid primary key)")
    for decider in ("sent", *SIDES):
        database.run(f"select from event_store.register_decider_event('{decider}', 'placed', '')")
    return database


def streams(connection: psycopg.Connection, decider: str, label: str, number: int) -> list[str]:
    """Append the first event of each of some new streams; return the streams."""
    made = [f"{label}{n}" for n in range(1, number + 1)]
    EventStore(connection).append_all(on(decider, stream, NewEvent("placed")) for stream in made)
    return made


def wait(connection: psycopg.Connection, label: str, number: int, state: str) -> None:
    """Schedule an event in each stream that is due, that waits, or that is done."""
    roles, after = (ROLES[:1], -DAY) if state == "due" else (ROLES, 10 * DAY)
    given = {"label": label, "number": number, "after": after, "roles": roles, "done": state == "done", "data": DATA}
    connection.execute(WAIT, given)
