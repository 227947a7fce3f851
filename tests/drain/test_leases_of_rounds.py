"""Leases of a long round, leases that others take over, and leases that several kinds of consumers want at once."""

from pathlib import Path

import pyarrow as pa
from psycopg import Connection

from millrace.drain.collected_task import WHERE, Reader, Task
from millrace.spark.log_source.arrow import arrow_connection
from tests.support.building.drains import thing
from tests.support.building.lab import Lab
from tests.support.building.poison import poison
from tests.support.building.shared_drains import FEW, why_away
from tests.support.building.waiting import Waiting, let_go, met, stop_at
from tests.support.factories import start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events


def test_a_round_that_is_slower_than_its_leases_keeps_them(lab: Lab, observer: Connection, tmp_path: Path) -> None:
    told = tmp_path / "told"
    lab.fill(40)
    append_events(lab, [stop_at(told)])
    models = [*FEW, Waiting]
    with lab.together(models, lease_s=1) as shared:
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
        claimed = lab.claim_views([model.view for model in models], "thief", lease_s=1)
        let_go(told)
        running.result(patience())
        assert claimed == {}
        assert why_away(shared) == {model.view: None for model in models}
    lab.is_clean(*models)


def test_what_others_committed_between_read_and_commit_comes_once(lab: Lab, tmp_path: Path) -> None:
    told = tmp_path / "told"
    lab.fill(80)
    append_events(lab, [stop_at(told)])
    models = [*FEW, Waiting]
    running = start(lambda: lab.share(models))
    met(told)
    for model in FEW:
        assert lab.later().drain(model, "thief").events == 81
    let_go(told)
    running.result(patience())
    lab.share(models)
    lab.is_clean(*models)


def test_of_leases_that_end_while_it_looks_a_task_reads_nothing(lab: Lab) -> None:
    append_events(lab, [poison("bad")])
    lab.drain()
    append_events(lab, [thing("bad", text="it waits with the one before")])
    ((lease,),) = lab.claim_views(["everything"], "rounds").values()
    # a clock that advances by a second at each reading, and a lease that ends after the first
    lab.execute(
        "create or replace function event_store_private.clock() returns timestamptz language plpgsql volatile as $$"
        " declare n int := coalesce(nullif(current_setting('a.look', true), ''), '0');"
        " begin perform set_config('a.look', (n + 1)::text, false);"
        " return timestamptz '2030-01-01 00:00Z' + n * interval '1 s'; end $$"
    )
    lab.execute(
        "update event_store.checkpoints set leased_until = '2030-01-01 00:00:00.5Z', revision = revision + 1"
        " where view = 'everything' and partition = %s",
        (lease.partition,),
    )
    reader = Reader(0, "everything", None, None)
    task = Task(lab.dsn, "rounds", WHERE, {}, None, None, (reader,), pa.schema([]), 2**20)
    with arrow_connection(lab.dsn) as connection:
        assert task._read_leased(connection).leases == []
