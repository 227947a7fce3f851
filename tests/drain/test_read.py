"""Spark's tasks read the leased events: the same as `read_batch`, without the streams that have a lock."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.drain.commit import Work
from millrace.drain.limits import Limits
from millrace.drain.read import leased_events
from millrace.event_store import Lease
from millrace.event_store.platform import PlatformStore
from tests.sql.drain.test_claim_batch import bulk
from tests.support.building.drains import Counted
from tests.support.factories import append_to, ids_of_one_partition
from tests.support.views.failing_streams import at, failure, streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bulk", "streams"]

Read = replace(Counted, view="v", deciders=None, events=None)


def delivered(store: PlatformStore, leases: Sequence[Lease]) -> list[tuple[str, int]]:
    return sorted((e.decider_id, e.offset) for lease in leases for e in store.read_batch("v", lease))


def test_it_reads_ranges_without_locked_streams(
    bulk: PlatformStore, dsn: str, spark: "SparkSession", streams: list[str]
) -> None:
    due, waiting, good = streams
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=4)
    append_to(bulk, due, due, good)
    (lease,) = bulk.claim_batch("v", "me")
    assert bulk.locked_partitions("v", [lease]) == []
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(due)])
        bulk.commit_batch("v", [lease])
    at(bulk, 3)
    append_to(bulk, waiting, good)
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(waiting)])
        bulk.commit_batch("v", [lease])

    at(bulk, 5)
    append_to(bulk, due, waiting, good, elsewhere)
    leases = bulk.claim_batch("v", "me")
    locked = bulk.locked_partitions("v", leases)
    assert [(each.partition, each.retries) for each in locked] == [(0, 1)]
    expected = delivered(bulk, leases)
    assert [decider_id for decider_id, _ in expected] == sorted([due, due, due, good, elsewhere])

    # events appended now are not in it
    append_to(bulk, due, good)
    bulk.sequence_events()

    work = Work(Read, tuple(leases), tuple(locked))

    def read(*, new: bool = True, retries: bool = True) -> list[tuple[str, int]]:
        events = leased_events(spark, dsn, work, new=new, retries=retries, streams=True)
        return sorted((row["decider_id"], row["offset"]) for row in events.frame.collect())

    assert read() == expected
    assert {decider_id for decider_id, _ in read(retries=False)} == {good, elsewhere}
    assert {decider_id for decider_id, _ in read(new=False)} == {due}
    # a task for retries beside the one for ranges
    assert len(leased_events(spark, dsn, work).reader.parts) == 2
    # but only one task if only one may read
    assert len(leased_events(spark, dsn, work, Limits(live_readers=1)).reader.parts) == 1
    alone = leased_events(spark, dsn, work, Limits(live_readers=1), streams=True).frame
    assert sorted((row["decider_id"], row["offset"]) for row in alone.collect()) == expected
