"""A failover of the source at each step of a run: no change is lost silently, and none comes twice."""

import psycopg
import pytest

from millrace.capture import drain as pipeline
from millrace.capture import health as looking
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.health import capture_health, has_work
from millrace.capture.prepare import restart
from millrace.capture.schema_changes import SchemaStore
from millrace.capture.setup import GapOpen
from millrace.capture.source.connection import connect_source
from millrace.capture.source.stream import SlotStream
from millrace.capture.source.timelines import TimelinesUnknown, read_timelines
from millrace.capture.store import CaptureGap, CaptureStore
from millrace.errors import LeaseLost
from tests.processes.capture.clusters import Cluster, Moving, cluster, moving
from tests.support.capturing.captured import did, killed_at
from tests.support.capturing.kill_steps import Step
from tests.support.factories import rows, start, value
from tests.support.patience import patience, wait_until

__all__ = ["cluster", "moving"]


def gaps(moving: Moving) -> list[CaptureGap]:
    return CaptureStore(moving.captured.store).capture_gaps("shop")


def switched_at(moving: Moving) -> Lsn:
    timelines = moving.timelines
    with psycopg.connect(moving.captured.capture.source(), autocommit=True) as source:
        present = value(source, "select left(pg_walfile_name(pg_current_wal_lsn()), 8)")
    name = moving.cluster.primary.data / "pg_wal" / f"{present}.history"
    last = name.read_text().splitlines()[-1].split("\t")
    assert timelines is None or timelines.split(" ")[0] == "1"
    return Lsn.parse(last[1])


def assert_begins_anew(moving: Moving) -> None:
    """Assert that after a restart all rows match the source, and the capture continues."""
    captured = moving.captured
    for _ in range(2):
        with pytest.raises(GapOpen, match="millrace capture restart shop"):
            captured.drain()
    restart(captured.dsn, captured.capture, "the source's standby took over")
    moving.run("insert into items values (90, 'later')")
    captured.drain()
    assert captured.replayed() == moving.table()
    assert [gap.resolved_by_generation for gap in gaps(moving)] == [2]


# steps of the kill, and whether the run after the failover has changes to compare
STEPS = {
    Step(CaptureStore, "store_changes"): False,  # read and not committed
    Step(SlotStream, "advance"): True,
    Step(CaptureStore, "emit_changes"): True,
}


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_standby_takes_over_after_a_kill(moving: Moving, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    captured = moving.captured
    standby = moving.cluster.standby()
    moving.run("insert into items values (1, 'a')")
    captured.drain()
    moving.run("insert into items values (2, 'b')", "update items set name = 'c' where id = 1")
    moving.cluster.give_slot(standby, moving.slot)
    killed_at(captured, monkeypatch, step.place, step.name)
    moving.cluster.wait_for(standby)
    moving.cluster.take_over(standby)
    moving.run("delete from items where id = 2")
    assert has_work(captured.dsn, captured.capture)
    report = captured.drain()
    # the standby's slot is as old as its copy
    assert (report.replayed > 0) == STEPS[step]
    assert did(captured) == [("inserted", "[2]"), ("updated", "[1]"), ("deleted", "[2]")]
    assert captured.replayed() == moving.table()
    assert gaps(moving) == []
    assert str(moving.timelines).endswith(f" {switched_at(moving)}, {1 + str(moving.timelines).count(',')}")


def test_standbys_synchronize_the_slot_by_themselves(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    if not moving.cluster.syncs_slots:
        pytest.skip("Standbys have slots of their primary from PostgreSQL 17 on.")
    captured = moving.captured
    standby = moving.cluster.standby()
    # the primary's slot must advance past the standby's first position of it
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)

    def synchronized() -> bool:
        moving.run("select pg_log_standby_snapshot()")
        captured.drain()
        return moving.cluster.has_synchronized(standby, moving.slot)

    wait_until(synchronized, "the standby has the slot")
    moving.run("insert into items values (1, 'before')")
    captured.drain()
    moving.run("insert into items values (2, 'not captured yet')")
    moving.cluster.wait_for(standby)
    moving.cluster.take_over(standby)
    captured.drain()
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]")]
    assert gaps(moving) == []


def test_a_slot_that_standbys_would_lack_is_said(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    if not moving.cluster.syncs_slots:
        pytest.skip("Standbys have slots of their primary from PostgreSQL 17 on.")
    captured = moving.captured
    captured.drain()
    moving.run("insert into items values (0, 'before')")
    captured.drain()
    # a slot of an older version's store
    name, dsn = moving.slot, moving.cluster.dsn(moving.captured.source.connection.info.dbname)

    def notes() -> tuple[str, ...]:
        return capture_health(captured.dsn, captured.capture).notes

    def alter(to: str) -> None:
        with psycopg.connect(
            dsn, replication="database", autocommit=True, cursor_factory=psycopg.ClientCursor
        ) as walsender:
            walsender.execute(to.encode())

    before = set(notes())
    alter(f"ALTER_REPLICATION_SLOT {name} (FAILOVER false)")
    (note,) = set(notes()) - before
    remedy = note.split("-c '")[1].removesuffix("'")
    assert note.startswith(f"slot {name} is no failover slot")
    alter(remedy)
    assert set(notes()) == before
    standby = moving.cluster.standby()
    (note,) = notes()
    assert "synchronized_standby_slots is empty" in note
    with psycopg.connect(moving.cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"alter system set synchronized_standby_slots = '{standby.directory.name}'".encode())
        admin.execute("select pg_reload_conf()")
        wait_until(lambda: notes() == (), "the source waits for its standby")
        # now the primary sends no changes that its standby lacks
        standby.stop()
        moving.run("insert into items values (1, 'not yet')")
        with monkeypatch.context() as patch:
            patch.setattr(looking, "BUSY_S", 0.5)
            assert has_work(captured.dsn, captured.capture)
            assert capture_health(captured.dsn, captured.capture).lag_s > 0
        run = start(captured.drain)
        waits = "select wait_event from pg_stat_activity where wait_event = 'WaitForStandbyConfirmation'"
        wait_until(lambda: len(rows(admin, waits)) == 1, "the slot waits for the standby")
        assert did(captured) == [("inserted", "[0]")]
        standby.start()
        run.result(patience())
        assert did(captured) == [("inserted", "[0]"), ("inserted", "[1]")]
        admin.execute("alter system reset synchronized_standby_slots")
        admin.execute("select pg_reload_conf()")
    standby.stop()


@pytest.mark.parametrize("ahead", [False, True], ids=["behind what is stored", "beyond what is stored"])
def test_what_the_new_primary_lacks_is_a_gap(moving: Moving, monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    captured = moving.captured
    standby = moving.cluster.standby()
    moving.run("insert into items values (1, 'stays'), (2, 'stays'), (3, 'stays')")
    captured.drain()
    moving.cluster.give_slot(standby, moving.slot)
    standby.stop()
    moving.run(
        "insert into items values (4, 'only there')",
        "update items set name = 'only there' where id = 1",
        "delete from items where id = 2",
    )
    captured.drain()
    stored = moving.stored_lsn
    moving.cluster.take_over(standby)
    if ahead:
        moving.run("create table others as select n, repeat('x', 500) from generate_series(1, 1000) n")
    killed_at(captured, monkeypatch, CaptureStore, "record_gap")
    with pytest.raises(GapOpen, match=f"from {switched_at(moving)} to {stored}: Another server took over"):
        captured.drain()
    (gap,) = gaps(moving)
    assert (gap.from_lsn, gap.to_lsn) == (switched_at(moving), stored)
    assert_begins_anew(moving)
    assert {change["record_pk"] for change in captured.changes() if change["action"] == "deleted"} >= {"[4]"}


def test_a_standby_with_all_captured_rows_goes_on(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = moving.captured
    standby = moving.cluster.standby()
    moving.run("create table others (text text)", "insert into items values (1, 'a')")
    captured.drain()
    moving.cluster.give_slot(standby, moving.slot)
    standby.stop()
    moving.run("insert into others select repeat('x', 500) from generate_series(1, 1000)")
    # at the end of log without captured changes, an idle slot advances
    monkeypatch.setattr(pipeline, "IDLE_ADVANCE_S", 0.0)
    captured.drain()
    stored = moving.stored_lsn
    moving.cluster.take_over(standby)
    assert switched_at(moving) < stored
    # without new changes a run still compares
    assert has_work(captured.dsn, captured.capture)
    moving.run("insert into items values (2, 'below what was stored')")
    killed_at(captured, monkeypatch, SchemaStore, "captured_schemas")
    assert moving.stored_lsn == switched_at(moving)
    captured.drain()
    assert did(captured) == [("inserted", "[2]")]
    assert captured.replayed() == moving.table()
    assert gaps(moving) == []
    assert not has_work(captured.dsn, captured.capture)


def test_another_standby_whose_timeline_has_the_same_number_is_a_gap(moving: Moving) -> None:
    captured = moving.captured
    one, other = moving.cluster.standby(), moving.cluster.standby()
    moving.run("insert into items values (1, 'a')")
    captured.drain()
    for standby in (one, other):
        moving.cluster.give_slot(standby, moving.slot)
    other.stop()
    moving.run("insert into items values (2, 'not in the other one')")
    moving.cluster.wait_for(one)
    moving.cluster.take_over(one)
    moving.run("insert into items values (3, 'after the first one took over')")
    captured.drain()
    assert gaps(moving) == []
    known = str(moving.timelines)
    moving.cluster.take_over(other)
    with pytest.raises(GapOpen, match="Another server took over"):
        captured.drain()
    (gap,) = gaps(moving)
    assert gap.from_lsn == switched_at(moving)
    # the timeline has the same number, but another beginning
    assert known.rsplit(",", 1)[1] in gap.reason.split("captured were")[0]
    assert_begins_anew(moving)


def test_a_run_on_the_former_primary_is_fenced(moving: Moving) -> None:
    captured = moving.captured
    standby = moving.cluster.standby()
    captured.drain()
    moving.cluster.give_slot(standby, moving.slot)
    former = moving.cluster.primary
    with captured.process("one") as one:
        moving.cluster.move(standby)
        # the former primary still takes writes
        captured.source.run("insert into items values (1, 'too late')")
        captured.store.execute("update event_store.captures set leased_until = event_store_private.clock()")
        moving.run("insert into items values (2, 'in time')")
        with captured.process("two") as two:
            with pytest.raises((LeaseLost, psycopg.OperationalError)):
                one.store()
            two.drain(budget_s=patience(), idle_s=0)
    former.stop()
    assert did(captured) == [("inserted", "[2]")]
    assert captured.replayed() == moving.table()
    assert gaps(moving) == []


def test_who_may_only_replicate_learns_where_timelines_ended(cluster: Cluster) -> None:
    first = cluster.primary.dsn("postgres", "replicates")
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as admin:
        admin.execute("create role replicates login replication")
        admin.execute("create role plain login")
    with connect_source(first) as source:
        before = read_timelines(source).present
    for present in (before + 1, before + 2):
        cluster.take_over(cluster.standby())
        with connect_source(cluster.primary.dsn("postgres", "replicates")) as source:
            found = read_timelines(source)
        assert (found.present, [timeline for timeline, _ in found.left]) == (present, list(range(1, present)))
    history = (cluster.primary.data / "pg_wal" / f"{present:08X}.history").read_text().splitlines()
    assert [str(lsn) for _, lsn in found.left] == [line.split("\t")[1] for line in history if line]
    with (
        connect_source(cluster.primary.dsn("postgres", "plain")) as source,
        pytest.raises(TimelinesUnknown, match=r"(?i)replication") as refused,
    ):
        read_timelines(source)
    assert "`replication`" in str(refused.value.hint)
