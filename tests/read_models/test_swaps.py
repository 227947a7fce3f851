"""New tables of a rebuild: filled side by side, dropped where a rebuild fails or died, never those of another one."""

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.filling import filled_children
from millrace.resources.errors import LeaseLost
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.stored.merge import (
    StagedRows,
    StagedRowsLost,
    fill_child,
    next_batch,
    swap_children,
)
from millrace.resources.read_models.stored.tables import new_child_table
from millrace.resources.read_models.stored.versions import ensure_version
from tests.read_models.test_tables import new_children
from tests.support.building.drains import (
    Everything,
    all_blocked,
    assert_equals_a_clean_run,
    busiest,
    drain,
    fill,
    held,
    observer,
    rows_of,
    things,
)
from tests.support.factories import Connect, refusal, start, terminate, value
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]


class Building:
    """Gives a session when it is told to: the leases are there then."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        self._asked, self._told = threading.Event(), threading.Event()

    def __call__(self) -> "SparkSession":
        self._asked.set()
        assert self._told.wait(patience())
        return self._spark

    def wait(self) -> None:
        assert self._asked.wait(patience())

    def go(self) -> None:
        self._told.set()


def staged(store: EventStore, partition: int, number: int) -> tuple[int, list[StagedRows]]:
    """Stage rows of a log partition as a task does; return their batch."""
    batch = next_batch(store.connection)
    store.connection.execute(
        "insert into read_models.everything_staging (partition, thing_id, events, batch, attempt)"
        " select %s, 'thing-' || n, 1, %s, 7 from generate_series(1, %s) n",
        (partition, batch, number),
    )
    return batch, [StagedRows(7, number)]


@pytest.fixture
def empty(things: EventStore) -> EventStore:
    ensure_version(things.connection, Everything)
    return things


# how the fill of a table begins
FILLING = 'select exists (select from "read_models"'


def test_tables_are_filled_on_as_many_connections_as_allowed_at_the_same_time(
    empty: EventStore, dsn: str, connect: Connect, observer: psycopg.Connection
) -> None:
    batch, rows_ = staged(empty, 0, 3000)

    def filled() -> int:
        with filled_children(dsn, connect(), Everything, range(16), batch, rows_, 3) as found:
            return sum(found.values())

    with held(connect(), "lock table read_models.everything_staging in access exclusive mode"):
        running = start(filled)
        wait_until(lambda: len(all_blocked(observer, FILLING)) == 3, "three tables are filled")
    assert running.result(patience()) == 3000
    assert len(new_children(observer)) == 16
    assert rows_of(observer, Everything) == []


def test_a_table_that_cannot_be_filled_ends_all_others_and_leaves_none(
    empty: EventStore, dsn: str, connect: Connect, observer: psycopg.Connection
) -> None:
    batch, rows_ = staged(empty, 0, 3000)

    def filled() -> None:
        with filled_children(dsn, connect(), Everything, range(16), batch, rows_, 3):
            pytest.fail("it was filled")

    with held(connect(), "lock table read_models.everything_staging in access exclusive mode"):
        running = start(filled)
        wait_until(lambda: len(all_blocked(observer, FILLING)) == 3, "three tables are filled")
        terminate(observer, all_blocked(observer, FILLING)[1])
        # although the others wait for a lock that nobody gives them
        with pytest.raises(psycopg.errors.AdminShutdown):
            running.result(patience())
    assert new_children(observer) == []


def test_a_rebuild_that_lost_its_staged_rows_or_its_lease_swaps_nothing_in_and_the_next_one_drops_what_was_left(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect, observer: psycopg.Connection
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    before, partition = rows_of(things.connection, Everything), busiest(things)

    def rebuild(owner: str, building: Building, *partitions: int) -> None:
        with Consumer.open(dsn, Everything, building, owner) as consumer:
            consumer.rebuild(*partitions)

    building = Building(spark)
    running = start(lambda: rebuild("crashed", building, *range(16)))
    building.wait()
    with held(connect(), "select from event_store.checkpoints for update"):
        building.go()
        wait_until(lambda: all_blocked(observer, "commit_batch"), "its tables are filled")
        # as after a crash of the server
        observer.execute("truncate read_models.everything_staging")
    refusal(StagedRowsLost, lambda: running.result(patience()))
    assert new_children(observer) == []
    assert rows_of(observer, Everything) == before

    late = Building(spark)
    losing = start(lambda: rebuild("late", late, partition))
    late.wait()
    things.release_owner("late")
    lease = things.claim_partition("everything", partition, "next", 600)
    theirs = next_batch(observer)
    fill_child(observer, Everything, partition, theirs, [])
    with held(connect(), "select from event_store.checkpoints for update"):
        late.go()
        wait_until(lambda: all_blocked(observer, "commit_batch"), "both have filled a table")
        assert new_children(observer) != [new_child_table(theirs, partition)]
    refusal(LeaseLost, lambda: losing.result(patience()))
    assert new_children(observer) == [new_child_table(theirs, partition)]
    with observer.transaction():
        things.release_batch("everything", [lease])
        swap_children(observer, Everything, [partition], theirs, [])
    assert value(observer, "select count(*) from read_models.everything_state where partition = %s", partition) == 0

    # as a rebuild leaves it that was killed before it swapped
    for left in (partition, (partition + 1) % 16):
        fill_child(observer, Everything, left, next_batch(observer), [])
    with Consumer.open(dsn, Everything, lambda: spark, "next") as consumer:
        consumer.rebuild(partition)
        assert len(new_children(observer)) == 1
        consumer.rebuild(*range(16))
    assert new_children(observer) == []
    assert_equals_a_clean_run(things)
