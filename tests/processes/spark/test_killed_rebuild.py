"""A rebuild in a process of its own, as a run of Dagster is one, killed between filling its tables and swapping."""

from typing import TYPE_CHECKING

import psycopg

from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from tests.support.building.drains import (
    Everything,
    all_blocked,
    assert_equals_a_clean_run,
    drain,
    fill,
    held,
    observer,
    rows_of,
    things,
)
from tests.support.building.killed_drains import killed_in_the_end
from tests.support.factories import Connect, rows
from tests.support.patience import patience, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["observer", "things"]

VICTIM = """
import sys
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.spark import spark_session
from tests.support.building.drains import Everything
with spark_session() as spark, Consumer.open(sys.argv[1], Everything, lambda: spark, "victim", lease_s=600) as consumer:
    consumer.rebuild(*range(16))
"""
NEW_TABLES = r"select relname from pg_class where relname ~ '^_new_\d+_p\d+$'"


def test_after_a_kill_between_filling_and_swapping_the_next_rebuild_drops_what_was_left(
    things: EventStore, dsn: str, spark: "SparkSession", connect: Connect, observer: psycopg.Connection
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    before = rows_of(things.connection, Everything)
    with held(connect(), "select from read_models.everything"), killed_in_the_end(VICTIM, dsn) as process:
        wait_until(lambda: all_blocked(observer, "detach partition"), "its tables are filled")
        process.kill()
        process.wait(patience())
        wait_until(lambda: not all_blocked(observer, "detach partition"), "the server noticed")
    assert len(rows(observer, NEW_TABLES)) == 16
    assert rows_of(observer, Everything) == before
    things.release_owner("victim")
    with Consumer.open(dsn, Everything, lambda: spark, "next") as consumer:
        consumer.rebuild(3)
        assert len(rows(observer, NEW_TABLES)) == 15
        consumer.rebuild(*range(16))
    assert rows(observer, NEW_TABLES) == []
    assert_equals_a_clean_run(things)
