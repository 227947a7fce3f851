"""Rows of read models against a rebuild of one log partition: equal at every moment, and planted faults are found."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psycopg
import pytest
from psycopg import Connection

from millrace.archive.listing import archived
from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.drain.rebuild import Rebuild
from millrace.event_store.platform import PlatformStore
from millrace.operations.verification import models as verification
from millrace.operations.verification.checks import Report, Watcher
from millrace.operations.verification.models import check_models
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import rollup
from millrace.read_models.declared.words import count, row, sum_
from millrace.read_models.stored.differences import comparable_partitions
from millrace.read_models.stored.past import remove_expired
from tests.support.building import read_models as models
from tests.support.building.drains import Counted, busiest, later, machines, thing
from tests.support.building.lab import Lab
from tests.support.building.model_versions import relations
from tests.support.factories import Connect, Killed, ids_of_one_partition, rows
from tests.support.logins import logins
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


GoingAcross = cast("ReadModel", models.GoingAcross)
ALL = (Counted, GoingAcross, machines)
LENIENT, STRICT = (
    replace(Counted, columns={"amounts": sum_("data.amount", type=type_)}) for type_ in ("decimal(28,0)", "bigint")
)


@pytest.fixture
def operator(things: PlatformStore) -> Iterator[Connection]:
    """Open a session of a login that is a member of event_store_owner, and of nothing else."""
    with logins(things.connection) as login:
        yield login("event_store_owner")


@pytest.fixture
def reader(things: PlatformStore) -> Iterator[Connection]:
    with logins(things.connection) as login:
        yield login("event_store_reader")


def verified(
    operator: Connection,
    spark: "SparkSession",
    *declared: ReadModel,
    partition: int | None = None,
    archive: Path | None = None,
    damaged: tuple[int, ...] = (),
) -> Report:
    report, watcher, dsn = Report(damaged=[*damaged]), Watcher(), operator.info.dsn
    check_models(dsn, operator, declared, lambda: spark, report, watcher, archive=archive, partition=partition)
    return report


def kinds(report: Report) -> list[str]:
    return [fault.kind for fault in report.faults]


def test_models_have_the_rows_of_a_rebuild(lab: Lab, operator: Connection, reader: Connection, tmp_path: Path) -> None:
    lab.fill(60)
    for model in ALL:
        lab.drain(model)
    partition, before = busiest(lab), relations(lab.connection)
    lab.fill(60, seed=2)  # the models lag
    report, waiting = Report(), [*ALL]

    def drained_meanwhile() -> "SparkSession":
        """Drain all other events into the model between the copy of the rows and the rebuild."""
        if waiting:
            lab.drain(waiting.pop(0))
        return lab.spark

    check_models(operator.info.dsn, operator, ALL, drained_meanwhile, report, Watcher(), partition=partition)
    assert (report.faults, report.passed_over, report.models, waiting) == ([], [], len(ALL), [])
    assert report.rows > len(ALL)
    assert_nothing_is_left(lab, before, ALL)

    # a fault planted in the rows of one model is found there, by its key
    plant = "update read_models.counted_state set events = events + 1 where partition = %s"
    lab.execute(plant, (partition,))
    report = verified(operator, lab.spark, Counted, partition=partition)
    assert kinds(report) == ["rows_differ"]
    planted = lab.rows("select thing_id from read_models.counted_state where partition = %s", partition)
    told = f"{len(planted)} rows are not those of a rebuild, which lacks 0 and has 0 others: log partition"
    assert report.faults[0].text.startswith(f"{told} {partition} of read model counted, up to position ")
    assert all(f'"{key}"' in report.faults[0].text for (key,) in planted[:5])

    report = verified(reader, lab.spark, Counted)
    assert (report.faults, report.models) == ([], 0)
    assert "permission denied" in report.passed_over[0]

    # the log begins later, and the archive has the older events
    archive = ArchiveStore(lab.connection)
    for held in lab.partition_info():
        archive_partition(lab.dsn, tmp_path, held.partition, max_events=5, min_events=1, tail=True)
        archive.raise_low_water_mark(held.partition, held.high_water_mark)
        archive.purge_events(held.partition)
    without = verified(operator, lab.spark, Counted, partition=partition)
    assert (without.faults, without.models) == ([], 0)
    assert "does not hold its first events" in without.passed_over[0]
    assert kinds(verified(operator, lab.spark, Counted, partition=partition, archive=tmp_path)) == ["rows_differ"]

    # flip a bit of a file
    file = tmp_path / archived(lab.connection, partition).files[0].path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    report = verified(operator, lab.spark, Counted, partition=partition, archive=tmp_path)
    assert (kinds(report), report.passed_over) == (["rebuild_fails"], [])
    assert str(file) in report.faults[0].text
    assert not [word for word in ("Traceback", "JVM", "\tat ") if word in report.faults[0].text]
    report = verified(operator, lab.spark, Counted, partition=partition, archive=tmp_path, damaged=(partition,))
    assert (report.faults, report.models) == ([], 0)
    assert "of its log partition a file of the archive is damaged" in report.passed_over[0]
    assert_nothing_is_left(lab, before, ALL)


def assert_nothing_is_left(store: PlatformStore, before: set[str], built: tuple[ReadModel, ...]) -> None:
    assert relations(store.connection) == before
    assert rows(store.connection, "select name from read_models.diffs") == []
    views = rows(store.connection, "select view from event_store.views order by view")
    assert views == sorted((model.view,) for model in built)


def test_killed_all_goes_when_its_hour_is_over(lab: Lab, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill(20).drain(Counted)
    before = relations(lab.connection)

    def dying(*_: object, **__: object) -> None:
        raise Killed

    for owner, name in ((Rebuild, "_build"), (verification, "remove_now")):
        session = connect()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, dying)
            with pytest.raises(Killed):
                check_models(lab.dsn, session, [Counted], lab.session, Report(), Watcher())
        session.close()
        ((left,),) = lab.rows("select name from read_models.diffs")
        assert remove_expired(lab.connection) == []
        lab.execute("update read_models.diffs set expires_at = now()")
        with psycopg.connect(later(lab.dsn), autocommit=True) as hourly:
            assert remove_expired(hourly) == [left]
        assert_nothing_is_left(lab, before, (Counted,))


def test_streams_that_wait_or_lost_an_event_are_another_case(lab: Lab, operator: Connection) -> None:
    summed = replace(Counted, columns={"events": count(), "amounts": sum_("data.amount", type="bigint")})
    new = verified(operator, lab.spark, summed)
    assert "was not compared: no version of its declaration serves: millrace run drain counted" in new.passed_over[0]
    bad, good = ids_of_one_partition(lab.connection, 1)[0], ids_of_one_partition(lab.connection, 1, 7)[0]
    append_events(lab, [thing(bad, amount=1), thing(bad, amount="none"), thing(bad, amount=3), thing(good, amount=4)])
    lab.drain(summed)
    assert comparable_partitions(lab.connection, summed.view, summed.view) == [7]
    report = verified(operator, lab.spark, summed)
    assert (report.faults, report.models, report.rows) == ([], 1, 1)
    report = verified(operator, lab.spark, summed, partition=0)
    assert (report.faults, report.models) == ([], 0)
    assert "of log partition 0 it does not have the events below its checkpoint" in report.passed_over[0]
    # parked, with later events in the rows now: a rebuild would stop at the failed event again
    lab.execute("update event_store.stream_locks set parked_at = now(), in_flight = null")
    (dead,) = lab.dead_letters(summed.view)
    lab.discard_dead_letter(summed.view, dead.decider, dead.decider_id, "no number")
    lab.later().drain(summed)
    assert lab.rows("select count(*) from event_store.stream_locks") == [(0,)]
    assert comparable_partitions(lab.connection, summed.view, summed.view) == [7]

    # a later version has the event, and its rebuild too, while the log has it
    lab.register_view("counted_v2", "-infinity", mode="bulk")
    lab.execute("update event_store.checkpoints set position = 1 where partition in (0, 7)")
    assert comparable_partitions(lab.connection, "counted_v2", summed.view) == [0, 7]
    lab.execute("set session_replication_role = replica")
    lab.execute("delete from event_store.event_log where partition = 0")
    assert comparable_partitions(lab.connection, "counted_v2", summed.view) == [7]


def test_whatever_a_build_raises_is_a_fault(lab: Lab, operator: Connection) -> None:
    lab.fill(20)
    for model in (Counted, machines):
        lab.drain(model)
    before, report, declared = relations(lab.connection), Report(), [Counted, machines]

    def fail() -> None:
        raise ZeroDivisionError("a function of the model")

    check_models(operator.info.dsn, operator, declared, lab.once(fail), report, Watcher())
    assert (kinds(report), report.models) == (["rebuild_fails"], 2)
    assert report.faults[0].text.endswith("of read model counted. a function of the model")
    assert_nothing_is_left(lab, before, (Counted, machines))


def test_groups_that_are_not_those_of_the_rows_are_told(lab: Lab, operator: Connection) -> None:
    by_events = {"__doc__": "Things by their events.", "events": row("events"), "things": count()}
    of_things = rollup(of=Counted, key=["events"])(type("ByEvents", (), by_events))
    model = replace(Counted, rollups=(of_things,), all_rollups=True)
    for seed in (1, 2):
        lab.fill(40, seed).drain(model)
    groups = f"read_models.{of_things.state_table}"
    assert lab.value(f"select count(*) > 0 from {groups} where _rows = 0")
    assert verified(operator, lab.spark, model).faults == []

    partition = busiest(lab)
    lab.execute(f"update {groups} set things = things + 1 where partition = %s and _rows > 0", (partition,))
    (fault,) = verified(operator, lab.spark, model).faults
    told = f"rollup by_events of read model counted, log partition {partition}. Rebuild"
    assert (fault.kind, told in fault.text) == ("groups_differ", True)


def test_rows_that_are_not_what_their_parts_add_up_to_are_told(lab: Lab, operator: Connection) -> None:
    lab.fill(40).drain(GoingAcross)
    assert kinds(verified(operator, lab.spark, GoingAcross)) == []
    lab.execute("update read_models.going_across_state set events = events + 1")
    number = lab.value("select count(*) from read_models.going_across_state")
    (first, *_) = verified(operator, lab.spark, GoingAcross).faults
    told = f"{number} rows are not what the parts of log partitions add up to: read model going_across."
    assert first.text.startswith(told)
    assert "millrace view reset going_across" in first.text


def test_a_declaration_that_makes_other_rows_is_told(lab: Lab, operator: Connection) -> None:
    append_events(lab, [thing("a", amount=1), thing("a", amount=10**25)])
    lab.drain(LENIENT)
    # label the rows with a declaration that fails at the second event
    lab.execute("update read_models.declarations set fingerprint = %s", (STRICT.fingerprint,))
    report = verified(operator, lab.spark, STRICT)
    assert kinds(report) == ["streams_fail"]
    assert "fails at events of 1 streams" in report.faults[0].text
