"""Positions: moving those of a view, and asking for those of all views."""

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import LiteralString

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result, fill

PARTITIONS = 16
VIEWS = 100
LAG_TARGETS_MS = {"all": 20, "rows": 20, "placed": 200, "other": 200}
LOADS: dict[str, LiteralString] = {
    "view_info()": "select * from event_store.view_info()",
    "view_info(view)": "select * from event_store.view_info('view-1')",
    "poll_views()": "select * from event_store_platform.poll_views()",
    "view_lag(view)": "select * from event_store.view_lag('view-1')",
}


def save(bench: Bench) -> list[Result]:
    """commit_batch of all log partitions against a bare UPDATE of as many rows of the same table.

    The claim between two commits does not count. Each commit moves every checkpoint by one event.
    """
    database = bench.ours()
    moves = bench.size(300, 10)
    for view in ("bulk", "bare"):
        database.run(f"select from event_store.register_view('{view}', '-infinity', v_mode => 'bulk')")
    # what the smallest log partition holds must last for all rounds
    fill(database, "log", moves * bench.rounds * PARTITIONS // 4 + 100)
    database.run("select event_store_platform.sequence_events()")
    database.run("vacuum analyze")
    positions = count(1)
    with database.connect() as a, database.connect() as b:
        ours, bare = bench.in_turn(
            lambda: moves / sum(commit_seconds(a) for _ in range(moves)),
            lambda: moves / sum(update_seconds(b, next(positions)) for _ in range(moves)),
        )
    what = f"commit_batch of {PARTITIONS} checkpoints against a bare UPDATE"
    return [Result(what, ours, bare, "moves/s", ratio=ours / bare)]


def load(bench: Bench) -> list[Result]:
    """Asking where views stand: with many views against with one."""
    many, few = bench.ours(), bench.ours()
    calls = bench.size(500, 10)
    for database, views in ((many, bench.size(VIEWS, 10)), (few, 1)):
        register(database, views)
    results = []
    with many.connect() as a, few.connect() as b:
        for name, query in LOADS.items():
            x, y = bench.in_turn(partial(calls_per_second, a, query, calls), partial(calls_per_second, b, query, calls))
            what = f"{name}, {bench.size(VIEWS, 10)} views against 1"
            results.append(Result(what, x, y, "calls/s", ratio=x / y))
    return results


def behind(bench: Bench) -> list[Result]:
    """view_lag of views that have everything before them, against the target in ms."""
    database = bench.ours()
    fill(database, "log", bench.size(300_000, 200))
    while database.run("select event_store_platform.sequence_events()")[0][0]:
        pass
    database.run("select from event_store.register_view('all', '-infinity', v_mode => 'bulk')")
    database.run(
        "select from event_store.register_view('placed', '-infinity', v_mode => 'bulk', v_events => '{placed}')"
    )
    database.run("select from event_store.register_view('other', '-infinity', v_mode => 'bulk', v_events => '{other}')")
    database.run("select from event_store.register_view('rows', '-infinity')")
    database.run("select event_store_platform.dispatch_events('rows')")
    calls = bench.size(5, 2)

    def lag_ms(connection: psycopg.Connection, view: str) -> float:
        query = "select * from event_store.view_lag(%s)"
        return 1000 * seconds(lambda: [connection.execute(query, (view,)).fetchall() for _ in range(calls)]) / calls

    with database.connect() as connection:
        found = bench.in_turn(*(partial(lag_ms, connection, view) for view in LAG_TARGETS_MS))
    events = database.run("select sum(high_water_mark) from event_store.partitions")[0][0]
    return [
        Result(f"view_lag of {view}, {events} events behind", ms, target, "ms", ratio=target / ms, target=1)
        for (view, target), ms in zip(LAG_TARGETS_MS.items(), found, strict=True)
    ]


def register(database: Database, views: int) -> None:
    """Register views that are behind by some events, half of them with a lock per stream."""
    fill(database, "log", 100)
    database.register_views(views)
    database.run("select event_store_platform.sequence_events()")
    database.run(
        "select event_store_platform.dispatch_events(view) from event_store.views order by view"
        " limit (select count(*) / 2 from event_store.views)"
    )
    database.run("vacuum analyze")


def commit_seconds(connection: psycopg.Connection) -> float:
    """Claim everything, and commit the first event of each log partition."""
    claims = connection.execute(
        "select partition, from_position + 1, lease_token from event_store.claim_batch('bulk', 'me', 1000000000)"
    ).fetchall()
    if len(claims) != PARTITIONS:
        raise RuntimeError(f"{len(claims)} log partitions were claimed, not {PARTITIONS}")
    arguments = tuple([claim[n] for claim in claims] for n in range(3))
    return seconds(
        lambda: connection.execute("select event_store.commit_batch('bulk', %s, %s, %s)", arguments, prepare=True)
    )


def update_seconds(connection: psycopg.Connection, position: int) -> float:
    """Move the checkpoints of the other view by hand."""
    arguments = list(range(PARTITIONS)), [position] * PARTITIONS
    return seconds(
        lambda: connection.execute(
            """
            update event_store.checkpoints c
            set position = b.to_position
            from unnest(%s::int[], %s::bigint[]) b(partition, to_position)
            where c.view = 'bare' and c.partition = b.partition
            """,
            arguments,
            prepare=True,
        )
    )


def calls_per_second(connection: psycopg.Connection, query: LiteralString, calls: int) -> float:
    """Ask so many times."""
    return calls / seconds(lambda: [connection.execute(query, prepare=True).fetchall() for _ in range(calls)])


def seconds(work: Callable[[], object]) -> float:
    """Say how long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
