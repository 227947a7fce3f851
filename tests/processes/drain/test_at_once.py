"""Concurrent shared drains, drains of a view and rebuilds, at random, while events come."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from millrace.drain import loop as draining
from millrace.drain.view_drain import ViewDrain
from millrace.errors import LeaseLost, PartitionLeased
from millrace.event_store.platform import PlatformStore
from tests.long import seeds
from tests.support.building.drains import assert_equals_a_clean_run, busiest, drain, fill
from tests.support.building.shared_drains import TOGETHER, positions, share
from tests.support.factories import Connect, start
from tests.support.patience import patience, wait_until


def reached(store: PlatformStore) -> int:
    return sum(positions(store.connection, model.view) for model in TOGETHER)


# a seed gives the same events each time, which would be stored already
@pytest.mark.parametrize("seed", seeds(2))
def test_drains_and_rebuilds_at_once_leave_what_one_alone_builds(
    things: PlatformStore, dsn: str, spark: SparkSession, connect: Connect, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(draining, "MEMBERS_EVERY_S", 0.1)
    fill(things, 100, seed)
    share(dsn, spark)
    writer = PlatformStore(connect())
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
        with suppress(PartitionLeased, LeaseLost), ViewDrain(dsn, model, lambda: spark, "rebuilding") as consumer:
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
    assert_equals_a_clean_run(things, *TOGETHER)
