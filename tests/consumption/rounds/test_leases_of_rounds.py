"""Leases of a round that takes long, that others take over, or that several kinds of consumers want at once."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.rounds import drain as draining
from millrace.resources.consumption.rounds.drain import SharedDrain
from millrace.resources.consumption.rounds.leaf import WHERE, Reader, Task, union
from millrace.resources.errors import LeaseLost, PartitionLeased
from millrace.resources.event_log_source import LogRange
from millrace.resources.event_log_source.arrow import arrow_connection
from millrace.resources.event_store import EventStore
from tests.long import seeds
from tests.support.building.drains import busiest, drain, fill, later, observer, thing, things
from tests.support.building.poison import poison
from tests.support.building.shared_drains import FEW, TOGETHER, assert_as_alone, positions, share, why_away
from tests.support.building.waiting import Waiting, let_go, met, stop_at
from tests.support.factories import Connect, start, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]


def test_a_round_that_is_slower_than_its_leases_keeps_them(
    things: EventStore, dsn: str, spark: "SparkSession", observer: psycopg.Connection, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    fill(things, 40)
    things.append_events([stop_at(told)])
    models = [*FEW, Waiting]
    with SharedDrain(dsn, models, lambda: spark, "rounds", lease_s=1) as shared:
        running = start(lambda: shared.run(budget_s=patience(), idle_s=0))
        met(told)
        until = "select min(leased_until) from event_store.checkpoints where lease_owner = 'rounds'"
        first = value(observer, until)
        # they would have ended long ago
        wait_until(
            lambda: (
                value(observer, "select clock_timestamp() > %s + interval '2 s'", first)
                and value(observer, until) > first
            ),
            "the leases are extended",
        )
        claimed = things.claim_views([model.view for model in models], "thief", lease_s=1)
        let_go(told)
        running.result(patience())
        assert claimed == {}
        away = why_away(shared)
        # it held up the others; all that it built is committed
        assert "of a round" in (away.pop("waiting") or "")
        assert away == {model.view: None for model in FEW}
    assert_as_alone(things, dsn, spark, models)


def test_what_others_took_over_and_committed_between_read_and_commit_is_not_doubled(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    told = tmp_path / "told"
    fill(things, 80)
    things.append_events([stop_at(told)])
    models = [*FEW, Waiting]
    running = start(lambda: share(dsn, spark, models))
    met(told)
    for model in FEW:
        assert drain(later(dsn), spark, model, "thief").events == 81
    let_go(told)
    running.result(patience())
    share(dsn, spark, models)
    assert_as_alone(things, dsn, spark, models)


def test_of_leases_that_end_while_the_task_looks_it_reads_nothing(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([poison("bad")])
    drain(dsn, spark)
    things.append_events([thing("bad", text="it waits with the one before")])
    ((lease,),) = things.claim_views(["everything"], "rounds").values()
    # a clock that goes on by a second with each look, and a lease that ends after the first one
    things.connection.execute(
        "create or replace function event_store_private.clock() returns timestamptz language plpgsql volatile as $$"
        " declare n int := coalesce(nullif(current_setting('a.look', true), ''), '0');"
        " begin perform set_config('a.look', (n + 1)::text, false);"
        " return timestamptz '2030-01-01 00:00Z' + n * interval '1 s'; end $$"
    )
    things.connection.execute(
        "update event_store.checkpoints set leased_until = '2030-01-01 00:00:00.5Z', revision = revision + 1"
        " where view = 'everything' and partition = %s",
        (lease.partition,),
    )
    reader = Reader(0, "everything", None, None)
    task = Task(dsn, "rounds", WHERE, {}, None, None, (reader,), pa.schema([]), 2**20)
    with arrow_connection(dsn) as connection:
        assert task._look(connection).leases == []


def test_the_ranges_of_views_that_are_far_apart_are_read_without_what_lies_between() -> None:
    leases = [
        ("a", 3, 0, 10, 1),
        ("b", 3, 5, 12, 2),
        ("c", 3, 12, 20, 3),
        ("d", 3, 10**6, 10**6 + 5, 4),
        ("a", 1, 7, 8, 5),
    ]
    assert union(leases) == [LogRange(1, 7, 8), LogRange(3, 0, 20), LogRange(3, 10**6, 10**6 + 5)]


def reached(store: EventStore) -> int:
    return sum(positions(store.connection, model.view) for model in TOGETHER)


# the same seed would give the same events, which are stored already
@pytest.mark.parametrize("seed", seeds(2))
def test_shared_drains_drains_of_a_view_and_rebuilds_at_once_while_events_come_leave_what_one_alone_builds(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.1)
    fill(things, 100, seed)
    share(dsn, spark)
    writer = EventStore(connect())
    done = threading.Event()

    def again_and_again(work: Callable[[int], object]) -> Callable[[], int]:
        def run() -> int:
            times = 0
            while not done.is_set():
                times += 1
                work(times)
            return times

        return run

    def rebuild(times: int) -> None:
        model = TOGETHER[(seed + times) % len(TOGETHER)]
        with (
            suppress(PartitionLeased, LeaseLost),
            Consumer.open(dsn, model, lambda: spark, "rebuilding") as consumer,
        ):
            consumer.rebuild(partition, wait_s=1)

    partition = busiest(things)
    dice = random.Random(seed)
    works: list[Callable[[int], object]] = [
        lambda _: share(dsn, spark, TOGETHER, "A"),
        lambda _: share(dsn, spark, TOGETHER, "B"),
        lambda times: drain(dsn, spark, TOGETHER[times % len(TOGETHER)], "own"),
        rebuild,
    ]
    running = [start(again_and_again(work)) for work in works]
    for number in range(12):
        before = reached(writer)
        fill(writer, dice.randrange(1, 40), (seed + 1) * 100 + number)
        wait_until(lambda before=before: reached(writer) > before, "somebody consumes")  # type: ignore[misc]
    done.set()
    assert all(one.result(patience()) >= 1 for one in running)
    share(dsn, spark)
    assert_as_alone(things, dsn, spark)
