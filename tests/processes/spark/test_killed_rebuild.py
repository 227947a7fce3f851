"""A rebuild in a separate process, like a run of Dagster, killed between two log partitions."""

import psycopg
from pyspark.sql import SparkSession

from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from tests.support.building.drains import Everything, all_blocked, assert_equals_a_clean_run, drain, fill, held
from tests.support.building.killed_drains import killed_in_the_end
from tests.support.factories import Connect, rows
from tests.support.patience import patience, wait_until

STATE = "select partition, thing_id, s::text from read_models.everything_state s order by 1, 2"
VICTIM = """
import sys
from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session
from tests.support.building.drains import Everything
with spark_session() as spark, ViewDrain(sys.argv[1], Everything, lambda: spark, "victim", lease_s=600) as consumer:
    consumer.rebuild(*range(16))
"""


def test_a_killed_rebuild_leaves_each_log_partition_whole(
    things: PlatformStore, dsn: str, spark: SparkSession, connect: Connect, observer: psycopg.Connection
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    right = rows(observer, STATE)
    things.connection.execute("update read_models.everything_state set units = -1")
    damaged = rows(observer, STATE)
    (*_, before, last) = sorted({partition for partition, *_ in right})
    with (
        held(connect(), f"select from read_models.everything_state where partition = {last} for update"),
        killed_in_the_end(VICTIM, dsn) as process,
    ):
        wait_until(lambda: all_blocked(observer, "with put as"), "it writes the last log partition")
        process.kill()
        process.wait(patience())
    there = "select from pg_stat_activity where datname = current_database() and query ilike 'with put as%%'"
    wait_until(lambda: not rows(observer, there), "the server noticed")
    assert rows(observer, STATE) == [
        *(row for row in right if row[0] <= before),
        *(row for row in damaged if row[0] == last),
    ]
    things.release_owner("victim")
    with ViewDrain(dsn, Everything, lambda: spark, "next") as consumer:
        # the killed process owns the staged rows no more
        assert consumer.rebuild(*range(16)).rows == sum(row[0] == last for row in right)
    assert_equals_a_clean_run(things)
