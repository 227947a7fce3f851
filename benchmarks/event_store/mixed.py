"""Writers and consumers at once: both in the same time, and how much more several consumers do than one."""

from functools import partial
from itertools import count
from statistics import median

from benchmarks.event_store.bench import Bench, Database, Result, fill
from benchmarks.event_store.workers import (
    Step,
    bulk_step,
    consume,
    rows_step,
    run_together,
    seconds_of,
    sequencing,
    their_step,
    write,
)

WRITERS = 4
CONSUMERS = 2
VIEW = "view-1"


def load(bench: Bench) -> list[Result]:
    """Four writers append single events while two consumers take them, until all is consumed."""
    ours, bulk, theirs = bench.ours(), bench.ours(), bench.theirs()
    for database in (ours, theirs):
        database.register_views(1)
    bulk.run(f"select from event_store.register_view('{VIEW}', '-infinity', v_mode => 'bulk')")
    number = bench.size(1500, 20)
    consumed: dict[Database, list[float]] = {ours: [], bulk: [], theirs: []}

    def appended_per_second(database: Database, step: Step) -> float:
        works = [partial(write, database, number)] * WRITERS
        with sequencing(database):
            worked = run_together([*works, *[partial(consume, database, step, number * WRITERS)] * CONSUMERS])
        consumed[database].append(number * WRITERS / seconds_of(worked))
        return number * WRITERS / seconds_of(worked[:WRITERS])

    rows_rate, bulk_rate, their_rate = bench.in_turn(
        partial(appended_per_second, ours, partial(rows_step, view=VIEW)),
        partial(appended_per_second, bulk, partial(bulk_step, view=VIEW, limit=100_000)),
        partial(appended_per_second, theirs, partial(their_step, view=VIEW)),
    )
    results = []
    for name, database, rate in (("rows", ours, rows_rate), ("bulk", bulk, bulk_rate)):
        mine, other = median(consumed[database]), median(consumed[theirs])
        load = f"{WRITERS} writers, {CONSUMERS} consumers of a {name} view"
        results.append(Result(f"{load}: appended", rate, their_rate, ratio=rate / their_rate))
        results.append(Result(f"{load}: consumed", mine, other, ratio=mine / other))
    return results


def claims(bench: Bench) -> list[Result]:
    """One, two and four consumers of a backlog, on a bulk view and on a rows view."""
    results = []
    for mode, streams, step in (
        ("bulk", bench.size(20_000, 200), partial(bulk_step, view=VIEW, limit=5000)),
        ("rows", bench.size(2000, 100), partial(rows_step, view=VIEW)),
    ):
        database = bench.ours()
        database.run(f"select from event_store.register_view('{VIEW}', '-infinity', v_mode => '{mode}')")
        numbers = count()
        one, two, four = bench.in_turn(
            *(partial(consumed_per_second, database, numbers, streams, step, consumers) for consumers in (1, 2, 4))
        )
        for consumers, rate in ((2, two), (4, four)):
            what = f"{consumers} consumers of one {mode} view against 1"
            results.append(Result(what, rate, one, ratio=rate / one))
    return results


def consumed_per_second(database: Database, numbers: "count[int]", streams: int, step: Step, consumers: int) -> float:
    """Append to so many new streams, then let so many consumers take all of it."""
    events = fill(database, f"backlog-{next(numbers)}", streams)
    database.run("select event_store_platform.sequence_events()")
    with sequencing(database):
        worked = run_together([partial(consume, database, step, events)] * consumers)
    return events / seconds_of(worked)
