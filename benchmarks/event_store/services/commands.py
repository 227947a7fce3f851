"""Commands: `handle` on long streams whose state is a fold's row, against the append alone."""

import time
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.event_store.bench import DATA, Bench, Result
from benchmarks.event_store.single_appends import fill_stream
from millrace.resources.commands.decider import Decider, Emit
from millrace.resources.commands.handle import handle
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.fold import fold
from millrace.resources.read_models.declared.fold_event import FoldEvent, State
from millrace.resources.read_models.stored.versions import ensure_version

LENGTH, STREAMS, COMMANDS = 10_000, 10, 10


@fold(view="placed", deciders=["order"], key="order_id", columns={"n": "bigint"})
def placed(state: State | None, event: FoldEvent) -> State | None:
    """How many events an order has."""
    return {"n": (state or {"n": 0})["n"] + (event.event == "placed")}


ORDER: Decider[State | None, dict[str, str]] = Decider(
    name="order", initial=None, decide=lambda command, _: [Emit("placed", command)], evolve=placed
)


def with_snapshots(bench: Bench) -> list[Result]:
    """`handle` with a snapshot that is a few events old, against `append_event`, on streams of 10,000 events."""
    database = bench.ours()
    length, streams = bench.size(LENGTH, 1000), [f"long-{n}" for n in range(STREAMS)]
    with database.connect() as connection:
        store = EventStore(connection)
        ensure_version(connection, placed)
        for stream in streams:
            fill_stream(connection, stream, length)

        def handled() -> float:
            take_snapshots(connection)
            began = time.perf_counter()
            for stream in streams:
                for _ in range(COMMANDS):
                    handle(store, ORDER, stream, {"data": DATA})
            return len(streams) * COMMANDS / (time.perf_counter() - began)

        def appended() -> float:
            began = time.perf_counter()
            for stream in streams:
                head = store.stream_head(stream, "order")
                assert head is not None
                for number in range(COMMANDS):
                    version = head.version + number
                    store.append_event(
                        "placed", uuid4(), "order", stream, {"data": DATA}, uuid4(), None, expected_version=version
                    )
            return len(streams) * COMMANDS / (time.perf_counter() - began)

        handled()
        a, b = bench.in_turn(handled, appended)
    what = f"handle on streams of {length:,} events with a snapshot against append_event"
    return [Result(what, a, b, "commands/s", ratio=a / b, target=1 / 2)]


def take_snapshots(connection: psycopg.Connection) -> None:
    """Write the rows that a drain would write now."""
    while connection.execute("select event_store_platform.sequence_events()").fetchone() != (0,):
        pass
    connection.execute(
        """
        insert into read_models.placed_state (partition, order_id, _position, _state, n)
        select l.partition, e.decider_id, max(l.position), %s::json, count(*)
        from event_store.events e join event_store.event_log l using ("offset")
        group by 1, 2
        on conflict (order_id, partition) do update set _position = excluded._position
        """,
        (Jsonb({"n": LENGTH}),),
    )
