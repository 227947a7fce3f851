"""Work without end: a function, a lock that Spark's task waits for, a server that does not answer.

No view waits for such work longer than a limit, and its process ends. Each test waits until that limit.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.sql import SparkSession

from millrace.drain.limits import Limits
from millrace.drain.loop import Drain
from millrace.drain.report import PartitionsFailed
from millrace.drain.view_drain import ViewDrain
from millrace.errors import Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.read_models.built import fold_task
from millrace.spark import bounded, spark_session
from tests.support.building.drains import Counted, assert_equals_a_clean_run, fill, thing, wait_blocked_in
from tests.support.building.hanging import Hanging, all_over, hang_at, processes
from tests.support.building.relay import Relay
from tests.support.building.shared_drains import FEW, locking_events, positions, share, why_away
from tests.support.factories import Connect, rows, start
from tests.support.patience import patience, wait_until
from tests.support.project import PROJECT
from tests.support.running.programs import ran
from tests.support.sql_calls import append_events

Other, Third = (replace(Counted, name=name, view=name) for name in ("other", "third"))
WELL = [Counted, Other, Third]
ALL_WELL: dict[str, str | None] = {model.view: None for model in WELL}
NOT_ENDED = r"Spark had not ended after [\d.]+ s"


def soon() -> Limits:
    """Return limits many times as long as a round of these models takes, also on a busy machine."""
    return Limits(round_s=patience() / 6, build_s=patience() / 6)


@pytest.fixture
def warm(things: PlatformStore, dsn: str, spark: SparkSession) -> PlatformStore:
    """Build the models of all tests once: the first build takes longer than the limits of these tests."""
    fill(things, 40)
    share(dsn, spark, [*WELL, Hanging])
    return things


def test_an_endless_function_leaves_a_round(warm: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    append_events(warm, [hang_at(tmp_path / "told", stubborn=False)])
    with Drain(dsn, [*WELL, Hanging], lambda: spark, "rounds", limits=soon()) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        away = why_away(shared)
        assert "failed at thing 'endless', offset 41" in (why := away.pop("hanging") or "")
        assert re.search(r"the function had not returned after [\d.]+ s for the events of a round", why)
        assert away == ALL_WELL
        # it would hang again: it rejoins only after a run of its own
        (poll,) = warm.poll_views(["hanging"])
        assert not shared.members[-1].may_join(poll, warm.drain_states("hanging")["hanging"])
    assert len(processes(tmp_path / "told")) == 1
    assert positions(warm.connection, "hanging") == 40
    assert_equals_a_clean_run(warm, *WELL)


def test_a_deaf_function_ends_its_process(warm: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    told = tmp_path / "told"
    append_events(warm, [hang_at(told, stubborn=True)])
    with Drain(dsn, [Hanging, *WELL], lambda: spark, "rounds", limits=soon()) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        away = why_away(shared)
        assert re.fullmatch(NOT_ENDED, away.pop("hanging") or "")
        assert away == ALL_WELL
    # once with the other views, once alone
    assert len(processes(told)) == 2
    all_over(told)
    assert warm.owned_leases("rounds") == {}
    assert_equals_a_clean_run(warm, *WELL)


def test_in_a_run_of_its_own_only_the_endless_stream_waits(
    warm: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_task, "CALL_S", 1.0)
    told = tmp_path / "told"
    append_events(warm, [hang_at(told, stubborn=False), thing("endless"), thing("other")])
    # a round for few events gives up soon
    with ViewDrain(dsn, Hanging, lambda: spark, "own", limits=Limits(round_s=4)) as consumer:
        report = consumer.drain(budget_s=patience(), idle_s=0)
    assert (report.failed_streams, report.failed) == (1, {})
    ((stream, error),) = rows(warm.connection, "select decider_id, last_error from event_store.stream_locks")
    assert stream == "endless"
    assert "TimeoutError: the function had not returned after 1 s" in error
    assert rows(warm.connection, "select seen from read_models.hanging where thing_id = 'other'") == [(1,)]
    assert positions(warm.connection, "hanging") == 43


def test_a_deaf_one_alone_fails_a_partition(warm: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    told = tmp_path / "told"
    append_events(warm, [hang_at(told, stubborn=True), *[thing(f"other-{n}") for n in range(2)]])
    with (
        ViewDrain(dsn, Hanging, lambda: spark, "own", limits=soon()) as consumer,
        pytest.raises(PartitionsFailed, match=NOT_ENDED) as failed,
    ):
        consumer.drain(budget_s=patience(), idle_s=0)
    assert "1 log partition(s)" in str(failed.value)
    # in a round, in a batch, and alone; a slow machine may start one of them twice
    assert len(processes(told)) in {3, 4}
    all_over(told)
    assert len([lag for lag in warm.view_lag("hanging") if lag.lag]) == 1
    assert rows(warm.connection, "select count(*) from event_store.stream_locks") == [(0,)]


def test_a_lock_before_all_tasks_makes_no_view_leave(
    warm: PlatformStore, dsn: str, spark: SparkSession, connect: Connect, observer: psycopg.Connection
) -> None:
    fill(warm, 40, seed=2)
    holder = connect(autocommit=False)
    with Drain(dsn, WELL, locking_events(spark, holder), "rounds", limits=soon()) as shared:
        running = start(lambda: shared.run(budget_s=3 * patience(), idle_s=0))
        wait_blocked_in(observer, "event_store.event_log s where")
        # two views were tried alone, the third was not
        wait_until(lambda: shared._failures, "the round is given up")
        holder.rollback()
        running.result(2 * patience())
        assert why_away(shared) == ALL_WELL
    assert warm.owned_leases("rounds") == {}
    assert_equals_a_clean_run(warm, *WELL)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_silent_spark_server_ends_the_drain(
    warm: PlatformStore, dsn: str, spark_remote: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "AWAY_S", 2.0)
    relay = Relay(urlsplit(spark_remote).port or 0)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{relay.server_address[1]}")
    with spark_session() as session, Drain(dsn, WELL, lambda: session, "rounds", limits=soon()) as shared:
        shared.run(budget_s=patience(), idle_s=0)
        fill(warm, 40, seed=2)
        relay.goes_on.clear()
        with pytest.raises(Unreachable, match=f"{NOT_ENDED}, and does not answer"):
            shared.run(budget_s=patience(), idle_s=0)
        relay.cut()
    assert warm.owned_leases("rounds") == {}
    assert share(dsn, spark, WELL) == ALL_WELL
    assert_equals_a_clean_run(warm, *WELL)


def test_an_endless_rebuild_is_cancelled(things: PlatformStore, dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    told = tmp_path / "told"
    (event,) = append_events(things, [hang_at(told, stubborn=True)])
    things.sequence_events()
    ((partition,),) = rows(
        things.connection, 'select partition from event_store.event_log where "offset" = %s', event.offset
    )
    with (
        ViewDrain(dsn, Hanging, lambda: spark, "own", limits=Limits(build_s=15)) as consumer,
        pytest.raises(PartitionsFailed, match="Spark had not ended after 15 s"),
    ):
        consumer.rebuild(partition)
    all_over(told)
    assert things.lease_owners("hanging") == []


LOCALLY = """
import sys
from pathlib import Path
from millrace.drain.limits import Limits
from millrace.drain.loop import Drain
from millrace.spark import spark_session
from tests.support.building.hanging import Hanging, all_over
from tests.support.building.shared_drains import FEW, why_away
from tests.support.patience import patience
with spark_session() as spark:
    # what is new here is that Spark runs in a process of ours
    with Drain(sys.argv[1], [*FEW, Hanging], lambda: spark, "rounds", limits=Limits(round_s=patience() / 4)) as shared:
        shared.run(budget_s=600, idle_s=0)
        print(why_away(shared))
    all_over(Path(sys.argv[2]))
"""


def test_a_deaf_function_in_a_local_session_is_ended(things: PlatformStore, dsn: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    append_events(things, [hang_at(told, stubborn=True), thing("a"), thing("b", owner="o")])
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = ran(sys.executable, "-c", LOCALLY, dsn, told, cwd=PROJECT, env=env | {"SPARK_MASTER": "local[2]"})
    assert re.search(f"'hanging': '{NOT_ENDED}'", done.stdout)
    assert [positions(things.connection, model.view) for model in FEW] == [3, 3, 3]
