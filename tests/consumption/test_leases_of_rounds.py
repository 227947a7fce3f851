"""Leases of a round that takes long, that others take over, or that several kinds of consumers want at once."""

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa

from millrace.resources.consumption.collected_task import WHERE, Reader, Task
from millrace.resources.consumption.drain import Drain
from millrace.resources.event_log_source.arrow import arrow_connection
from millrace.resources.event_store import EventStore
from tests.support.building.drains import assert_equals_a_clean_run, drain, fill, later, observer, thing, things
from tests.support.building.poison import poison
from tests.support.building.shared_drains import FEW, share, why_away
from tests.support.building.waiting import Waiting, let_go, met, stop_at
from tests.support.factories import start, value
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
    with Drain(dsn, models, lambda: spark, "rounds", lease_s=1) as shared:
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
        assert why_away(shared) == {model.view: None for model in models}
    assert_equals_a_clean_run(things, *models)


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
    assert_equals_a_clean_run(things, *models)


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
