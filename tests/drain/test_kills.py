"""Drains that lose their process, their connection or their staged rows at a step: the model equals a clean run."""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from psycopg import Connection, sql

from millrace.drain.commit import StagedBatch, Work, commit_rebuild
from millrace.drain.view_drain import ViewDrain
from millrace.event_store.platform import PlatformStore
from millrace.postgres import connecting
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.merge import StagedRows, next_batch, unmerged_rows
from millrace.read_models.stored.tables import listed, merged_columns, relation, state_schema, stored_columns
from millrace.read_models.stored.versions import ensure_version
from tests.support.building import drains, killed_drains
from tests.support.building import read_models as models
from tests.support.building.drains import Counted, Crossing, Everything, close, held, machines, rows_of, staged
from tests.support.building.killed_drains import consumed, kill_at, lease_taken, rows_staged, some_commits, victim
from tests.support.building.lab import Lab
from tests.support.building.poison import WORTHS, assert_holds_all_but, locks, offsets_of, poison
from tests.support.building.read_models import expected_uses
from tests.support.building.shared_drains import TOGETHER
from tests.support.factories import Connect, rows, start, terminate, value
from tests.support.patience import patience
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Uses = cast("ReadModel", models.uses)
STATE, PARTS = "read_models.crossing_state", "read_models.crossing_state_parts"
NAMES = {"everything": "Everything", "machines": "machines", "uses": "uses"}


# folds read stored states, and functions read whole streams: a kill must leave both as they were
@pytest.mark.usefixtures("spark_remote")
@pytest.mark.parametrize(("model", "step"), [(machines, lease_taken), (Everything, rows_staged), (Uses, some_commits)])
def test_after_a_kill_at_a_step_the_next_run_is_clean(
    lab: Lab, connect: Connect, model: ReadModel, step: Callable[[Connection], bool]
) -> None:
    lab.fill(100)
    ensure_version(lab.connection, model)
    with victim(lab.dsn, batch_events=40, model=NAMES[model.name]) as process:
        kill_at(process, connect(), step)
    assert consumed(lab.connection) < 100
    lab.later().drain(model)
    if model is Uses:
        assert close(lab.rows_of(Uses)) == close(expected_uses(drains.all_events(lab)))
    else:
        lab.is_clean(model)


@pytest.mark.usefixtures("spark_remote")
def test_a_kill_between_failing_streams_and_commit_changes_nothing(lab: Lab, connect: Connect) -> None:
    lab.fill(40)
    append_events(lab, [poison("bad")])
    ensure_version(lab.connection, WORTHS)
    holder = connect()
    with (
        held(holder, "lock table read_models.worths_state in share mode"),
        victim(lab.dsn, batch_events=1000, model="Worths") as process,
    ):
        kill_at(process, connect(), killed_drains.merged_but_not_committed)
    assert (locks(lab), consumed(lab.connection)) == ([], 0)
    assert lab.later().drain(WORTHS).failed_streams == 1
    assert locks(lab) == [("bad", 1)]
    assert_holds_all_but(lab, offsets_of(lab, "bad"), WORTHS)


@pytest.mark.usefixtures("spark_remote")
def test_a_kill_between_the_commits_of_two_views_changes_nothing(lab: Lab, connect: Connect) -> None:
    lab.fill(100)
    for model in TOGETHER:
        ensure_version(lab.connection, model)
    holder = connect()
    with (
        held(holder, "lock table read_models.going_state in share mode"),
        killed_drains.sharing_victim(lab.dsn, 40) as process,
    ):
        kill_at(process, connect(), killed_drains.some_views_committed_and_one_waits)
    assert consumed(lab.connection) < 100 * len(TOGETHER)
    lab.later().share()
    lab.is_clean(*TOGETHER)


def test_wherever_a_rebuild_dies_rows_are_what_their_parts_add_up_to(lab: Lab, connect: Connect) -> None:
    lab.fill(60).drain(Crossing)
    connection, model, columns = lab.connection, Crossing, ", ".join(state_schema(Crossing))
    gone, less, more = (p for (p,) in rows(connection, f"select distinct partition from {PARTS} order by 1 limit 3"))
    right = rows_of(connection, model)
    for statement in (
        f"create table right_parts as table {PARTS}",
        f"delete from {PARTS} where partition = {gone}",
        f"update {PARTS} set events = events + 1 where partition = {less}",
        f"insert into {PARTS} (owner, event, partition, events, units, mean_sum, mean_count) values ('x', 'x', {more}, 1, 1, 1, 1)",
        f"truncate {STATE}",
        f"insert into {STATE} (owner, event, {', '.join(stored_columns(model))}) {merged_from_parts(model)}",
        f"create table wrong_parts as table {PARTS}",
        f"create table wrong_rows as table {STATE}",
    ):
        connection.execute(statement.encode())
    observer, done = connect(), False
    for step in itertools.count(1):
        batch = next_batch(connection)
        for statement in (
            f"truncate {STATE}, {PARTS}, read_models.crossing_staging",
            f"insert into {STATE} table wrong_rows",
            f"insert into {PARTS} table wrong_parts",
            f"insert into read_models.crossing_staging ({columns}, batch, attempt) select {columns}, {batch}, 1 from right_parts",
        ):
            connection.execute(statement.encode())
        staged_rows = [StagedRows(1, value(connection, "select count(*) from right_parts"))]
        leases = [lab.claim_partition(model.view, p, "doomed", 600) for p in (gone, less, more)]
        whole = tuple(replace(lease, from_position=0) for lease in leases)
        work = Work(model, whole, rebuild=True, rows=StagedBatch(batch, tuple(staged_rows)))
        with (
            suppress(psycopg.OperationalError),
            connecting.connect(lab.dsn, cursor_factory=dying(observer, step)) as doomed,
        ):
            commit_rebuild(PlatformStore(doomed), work)
            done = True
        if done:
            break
        lab.release_owner("doomed")
        assert unmerged_rows(connection, model) == 0, step
        for partition in (gone, less, more):
            one = " union all ".join(
                f"(select {columns} from {a} where partition = {partition} except all select {columns} from {b})"
                for a, b in ((PARTS, "right_parts"), ("right_parts", PARTS))
            )
            assert bool(rows(connection, one)) is (partition not in work.rebuilt.rows_of), (step, partition)
    assert step > 30
    assert rows_of(connection, model) == right
    assert unmerged_rows(connection, model) == 0


def dying(observer: Connection, step: int) -> type[psycopg.Cursor[Any]]:
    """Return a cursor class that loses its session before statement number `step`."""
    statements = itertools.count(1)

    class Dying(psycopg.Cursor[Any]):
        def execute(self, *query: Any, **options: Any) -> Any:  # noqa: ANN401 - as psycopg has it
            if next(statements) == step:
                terminate(observer, self.connection.info.backend_pid)
            return super().execute(*query, **options)

    return Dying


def merged_from_parts(model: ReadModel) -> str:
    keys = listed(model.keys)
    query, parts = sql.SQL("select {}, {} from {} group by {}"), relation(model.parts_table)
    return query.format(keys, merged_columns(model), parts, keys).as_string()


def test_a_connection_that_ends_during_the_merge_is_replaced(lab: Lab, connect: Connect) -> None:
    lab.fill(100)
    ensure_version(lab.connection, Counted)
    observer, holder = connect(), connect()
    with held(holder, "lock table read_models.counted_state in share mode"):
        running = start(lambda: lab.drain(Counted))
        terminate(observer, drains.wait_blocked_in(observer, 'insert into "read_models"'))
    assert running.result(patience()).events == 100
    lab.is_clean(Counted)


def test_of_vanished_staged_rows_the_batch_is_built_again(lab: Lab, connect: Connect) -> None:
    lab.fill(60)
    ensure_version(lab.connection, Counted)
    observer, holder = connect(), connect()
    claimed = threading.Event()
    interfered = threading.Event()
    builds: list[int] = []

    def building() -> "SparkSession":
        builds.append(1)
        claimed.set()
        assert interfered.wait(patience())
        return lab.spark

    with ViewDrain(lab.dsn, Counted, building, "next") as consumer:
        running = start(lambda: staged(consumer).drain(budget_s=patience(), idle_s=0))
        assert claimed.wait(patience())
        with held(holder, "select from event_store.checkpoints for update"):
            interfered.set()
            drains.wait_blocked_in(observer, "commit_batch")
            observer.execute("truncate read_models.counted_staging")
        report = running.result(patience())
    assert (report.batches, report.events, len(builds)) == (1, 60, 2)
    lab.is_clean(Counted)
