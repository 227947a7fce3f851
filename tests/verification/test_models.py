"""Rows of read models beside a rebuild of one log partition: equal at every moment, and what is planted is found."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psycopg
import pytest
from psycopg import sql

from millrace.resources.archive.listing import archived
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.writer import archive_partition
from millrace.resources.consumption.rebuild import Rebuild
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.rollups import rollup
from millrace.resources.read_models.declared.words import count, row, sum_
from millrace.resources.read_models.stored.differences import comparable_partitions
from millrace.resources.read_models.stored.past import remove_expired
from millrace.resources.verification import models as verification
from millrace.resources.verification.looks import Report, Watcher
from millrace.resources.verification.models import look_at_models
from tests.support.building import read_models as models
from tests.support.building.drains import Counted, busiest, drain, fill, later, machines, thing, things
from tests.support.building.model_versions import relations
from tests.support.factories import Connect, Killed, ids_of_one_partition, rows, value
from tests.support.logins import logins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

GoingAcross = cast("ReadModel", models.GoingAcross)
ALL = (Counted, GoingAcross, machines)
LENIENT, STRICT = (
    replace(Counted, columns={"amounts": sum_("data.amount", type=type_)}) for type_ in ("decimal(28,0)", "bigint")
)


@pytest.fixture
def operator(things: EventStore) -> Iterator[psycopg.Connection]:
    """Open a session of a login that is a member of event_store_owner, and of nothing else."""
    with logins(things.connection) as login:
        yield login("event_store_owner")


@pytest.fixture
def reader(things: EventStore) -> Iterator[psycopg.Connection]:
    with logins(things.connection) as login:
        yield login("event_store_reader")


def look(
    operator: psycopg.Connection,
    spark: "SparkSession",
    *declared: ReadModel,
    partition: int | None = None,
    archive: Path | None = None,
    damaged: tuple[int, ...] = (),
) -> Report:
    report, watcher, dsn = Report(damaged=[*damaged]), Watcher(), operator.info.dsn
    look_at_models(dsn, operator, declared, lambda: spark, report, watcher, archive=archive, partition=partition)
    return report


def kinds(report: Report) -> list[str]:
    return [fault.kind for fault in report.faults]


def test_models_have_the_rows_of_a_rebuild_while_a_drain_goes_on_and_what_is_planted_is_found(
    things: EventStore,
    operator: psycopg.Connection,
    reader: psycopg.Connection,
    dsn: str,
    spark: "SparkSession",
    tmp_path: Path,
) -> None:
    fill(things, 60)
    for model in ALL:
        drain(dsn, spark, model)
    partition, before = busiest(things), relations(things.connection)
    fill(things, 60, seed=2)  # they lag
    report, waiting = Report(), [*ALL]

    def drained_meanwhile() -> "SparkSession":
        """Between the copy of the rows and the rebuild, the model gets all other events."""
        if waiting:
            drain(dsn, spark, waiting.pop(0))
        return spark

    look_at_models(operator.info.dsn, operator, ALL, drained_meanwhile, report, Watcher(), partition=partition)
    assert (report.faults, report.passed_over, report.models, waiting) == ([], [], len(ALL), [])
    assert report.rows > len(ALL)
    assert_nothing_is_left(things, before, ALL)

    # what is planted in the rows of one model is found there, by its key
    plant = "update read_models.counted_state set events = events + 1 where partition = %s"
    things.connection.execute(plant, (partition,))
    report = look(operator, spark, Counted, partition=partition)
    assert kinds(report) == ["rows_differ"]
    planted = rows(things.connection, "select thing_id from read_models.counted_state where partition = %s", partition)
    told = (
        f"{len(planted)} rows are not those of a rebuild, which lacks 0 and has 0 others: log partition {partition} of"
    )
    assert report.faults[0].text.startswith(f"{told} read model counted, up to position ")
    assert all(f'"{key}"' in report.faults[0].text for (key,) in planted[:5])

    report = look(reader, spark, Counted)
    assert (report.faults, report.models) == ([], 0)
    assert "permission denied" in report.passed_over[0]

    # the log begins later, and the archive has what it lacks
    archive = ArchiveStore(things.connection)
    for held in things.partition_info():
        archive_partition(dsn, tmp_path, held.partition, max_events=5, min_events=1, tail=True)
        archive.raise_low_water_mark(held.partition, held.high_water_mark)
        archive.purge_events(held.partition)
    without = look(operator, spark, Counted, partition=partition)
    assert (without.faults, without.models) == ([], 0)
    assert "does not hold its first events" in without.passed_over[0]
    assert kinds(look(operator, spark, Counted, partition=partition, archive=tmp_path)) == ["rows_differ"]

    # a bit of a file is another one
    file = tmp_path / archived(things.connection, partition).files[0].path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    report = look(operator, spark, Counted, partition=partition, archive=tmp_path)
    assert (kinds(report), report.passed_over) == (["rebuild_fails"], [])
    assert str(file) in report.faults[0].text
    assert not [word for word in ("Traceback", "JVM", "\tat ") if word in report.faults[0].text]
    report = look(operator, spark, Counted, partition=partition, archive=tmp_path, damaged=(partition,))
    assert (report.faults, report.models) == ([], 0)
    assert "of its log partition a file of the archive is damaged" in report.passed_over[0]
    assert_nothing_is_left(things, before, ALL)


def assert_nothing_is_left(store: EventStore, before: set[str], built: tuple[ReadModel, ...]) -> None:
    assert relations(store.connection) == before
    assert rows(store.connection, "select name from read_models.diffs") == []
    views = rows(store.connection, "select view from event_store.views order by view")
    assert views == sorted((model.view,) for model in built)


def test_killed_in_the_middle_all_goes_when_its_hour_is_over(
    things: EventStore, connect: Connect, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 20)
    drain(dsn, spark, Counted)
    before = relations(things.connection)

    def dying(*_: object, **__: object) -> None:
        raise Killed

    for owner, name in ((Rebuild, "_build"), (verification, "remove_now")):
        session = connect()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, dying)
            with pytest.raises(Killed):
                look_at_models(dsn, session, [Counted], lambda: spark, Report(), Watcher())
        session.close()
        ((left,),) = rows(things.connection, "select name from read_models.diffs")
        assert remove_expired(things.connection) == []
        things.connection.execute("update read_models.diffs set expires_at = now()")
        with psycopg.connect(later(dsn), autocommit=True) as hourly:
            assert remove_expired(hourly) == [left]
        assert_nothing_is_left(things, before, (Counted,))


def test_streams_that_wait_or_lost_an_event_are_another_case(
    things: EventStore, operator: psycopg.Connection, dsn: str, spark: "SparkSession"
) -> None:
    summed = replace(Counted, columns={"events": count(), "amounts": sum_("data.amount", type="bigint")})
    new = look(operator, spark, summed)
    assert "was not compared: no version of its declaration serves: millrace run drain counted" in new.passed_over[0]
    bad, good = ids_of_one_partition(things.connection, 1)[0], ids_of_one_partition(things.connection, 1, 7)[0]
    things.append_events([thing(bad, amount=1), thing(bad, amount="none"), thing(bad, amount=3), thing(good, amount=4)])
    drain(dsn, spark, summed)
    assert comparable_partitions(things.connection, summed.view, summed.view) == [7]
    report = look(operator, spark, summed)
    assert (report.faults, report.models, report.rows) == ([], 1, 1)
    report = look(operator, spark, summed, partition=0)
    assert (report.faults, report.models) == ([], 0)
    assert "of log partition 0 it does not have the events below its checkpoint" in report.passed_over[0]
    # given up, and what came behind it is in the rows now: a rebuild would stop at it again
    things.connection.execute("update event_store.stream_locks set parked_at = now(), in_flight = null")
    (dead,) = things.dead_letters(summed.view)
    things.discard_dead_letter(summed.view, dead.decider, dead.decider_id, "no number")
    drain(later(dsn), spark, summed)
    assert rows(things.connection, "select count(*) from event_store.stream_locks") == [(0,)]
    assert comparable_partitions(things.connection, summed.view, summed.view) == [7]

    # a later version has the event, and so has its rebuild, as long as the log has it
    things.register_view("counted_v2", "-infinity", mode="bulk")
    things.connection.execute("update event_store.checkpoints set position = 1 where partition in (0, 7)")
    assert comparable_partitions(things.connection, "counted_v2", summed.view) == [0, 7]
    things.connection.execute("set session_replication_role = replica")
    things.connection.execute("delete from event_store.event_log where partition = 0")
    assert comparable_partitions(things.connection, "counted_v2", summed.view) == [7]


def test_whatever_a_build_raises_is_a_fault_and_the_next_model_goes_on(
    things: EventStore, operator: psycopg.Connection, dsn: str, spark: "SparkSession"
) -> None:
    fill(things, 20)
    for model in (Counted, machines):
        drain(dsn, spark, model)
    before, left = relations(things.connection), [ZeroDivisionError("a function of the model")]

    def fails_once() -> "SparkSession":
        if left:
            raise left.pop()
        return spark

    report, declared = Report(), [Counted, machines]
    look_at_models(operator.info.dsn, operator, declared, fails_once, report, Watcher())
    assert (kinds(report), report.models) == (["rebuild_fails"], 2)
    assert report.faults[0].text.endswith("of read model counted. a function of the model")
    assert_nothing_is_left(things, before, (Counted, machines))


def test_groups_that_are_not_those_of_the_rows_are_told(
    things: EventStore, operator: psycopg.Connection, dsn: str, spark: "SparkSession"
) -> None:
    by_events = {"__doc__": "Things by their events.", "events": row("events"), "things": count()}
    of_things = rollup(of=Counted, key=["events"])(type("ByEvents", (), by_events))
    model = replace(Counted, rollups=(of_things,), all_rollups=True)
    for seed in (1, 2):
        fill(things, 40, seed)
        drain(dsn, spark, model)
    groups = sql.Identifier("read_models", of_things.state_table)
    left = sql.SQL("select count(*) > 0 from {} where _rows = 0").format(groups)
    assert things.connection.execute(left).fetchall() == [(True,)]
    assert look(operator, spark, model).faults == []

    partition = busiest(things)
    planted = sql.SQL("update {} set things = things + 1 where partition = %s and _rows > 0").format(groups)
    things.connection.execute(planted, (partition,))
    (fault,) = look(operator, spark, model).faults
    told = f"rollup by_events of read model counted, log partition {partition}. Rebuild"
    assert (fault.kind, told in fault.text) == ("groups_differ", True)


def test_rows_that_are_not_what_their_parts_add_up_to_are_told_with_the_remedy(
    things: EventStore, dsn: str, spark: "SparkSession", operator: psycopg.Connection
) -> None:
    fill(things, 40)
    drain(dsn, spark, GoingAcross)
    assert kinds(look(operator, spark, GoingAcross)) == []
    things.connection.execute("update read_models.going_across_state set events = events + 1")
    number = value(things.connection, "select count(*) from read_models.going_across_state")
    (first, *_) = look(operator, spark, GoingAcross).faults
    assert first.text.startswith(
        f"{number} rows are not what the parts of log partitions add up to: read model going_across."
    )
    assert "millrace view reset going_across" in first.text


def test_a_declaration_that_makes_other_rows_of_the_same_events_is_told(
    things: EventStore, operator: psycopg.Connection, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing("a", amount=1), thing("a", amount=10**25)])
    drain(dsn, spark, LENIENT)
    # the rows are said to be of a declaration that fails at the second event
    things.connection.execute("update read_models.declarations set fingerprint = %s", (STRICT.fingerprint,))
    report = look(operator, spark, STRICT)
    assert kinds(report) == ["streams_fail"]
    assert "fails at events of 1 streams" in report.faults[0].text
