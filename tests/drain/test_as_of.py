"""Read models as of recorded moments of the log: the rows of that moment, despite later events and kills."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from psycopg import Connection

from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.drain import as_of
from millrace.drain.as_of import NoMark, build_as_of, mark_at
from millrace.drain.diff import diff_with_serving
from millrace.drain.rebuild import Rebuild
from millrace.event_store import Lease, LogMark
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import sum_
from millrace.read_models.stored.differences import diffs, take
from millrace.read_models.stored.past import (
    AsOf,
    all_as_of,
    at_mark,
    count_rows,
    record_built,
    record_wanted,
    remove_expired,
)
from millrace.read_models.stored.tables import HistoryMissing
from millrace.read_models.stored.versions import ensure_version, reset_model, with_upcasts
from tests.support.building import drains
from tests.support.building import read_models as models
from tests.support.building.drains import (
    Counted,
    Crossing,
    Everything,
    fill,
    held,
    later,
    machines,
    no_spark,
    rows_of,
    thing,
)
from tests.support.building.lab import Lab
from tests.support.building.model_versions import relations
from tests.support.factories import Connect, Killed, at_once, rows, start, value
from tests.support.logins import logins
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ALL = (Everything, Crossing, machines, cast("ReadModel", models.uses))


def filled(store: PlatformStore, number: int = 60, seed: int = 1) -> LogMark:
    fill(store, number, seed)
    return store.mark_log(f"after {number}")


@pytest.fixture
def operator(things: PlatformStore) -> Iterator[str]:
    """Return the connection string of a login that is a member of event_store_owner only."""
    with logins(things.connection) as login:
        yield login("event_store_owner").info.dsn


def rows_at(connection: Connection, model: ReadModel, mark: LogMark) -> list[tuple[Any, ...]]:
    return rows_of(connection, at_mark(model, mark))


def test_each_kind_has_the_rows_of_then_from_log_and_archive(lab: Lab, tmp_path: Path) -> None:
    mark = filled(lab)
    for model in ALL:
        lab.drain(model)
    then = {model.name: lab.rows_of(model) for model in ALL}
    before = relations(lab.connection)
    lab.fill(60, seed=2)
    for model in ALL:
        lab.drain(model)
    for model in ALL:
        built = build_as_of(lab.dsn, model, lab.session, mark)
        assert rows_at(lab.connection, model, mark) == then[model.name]
        assert then[model.name] != lab.rows_of(model)
        assert (built.model, built.mark_id, built.failed_streams) == (model.name, mark.mark_id, 0)
        assert built.rows == len(then[model.name])
        assert built.built_at is not None
        # it exists already
        assert build_as_of(lab.dsn, model, no_spark, mark).built_at == built.built_at
    views = lab.rows("select view from event_store.views order by view")
    assert views == sorted((model.view,) for model in ALL)

    # the log no longer holds events below the moment, and only some above it
    for partition in range(16):
        archive_partition(lab.dsn, tmp_path, partition, max_events=3, min_events=1, tail=True)
        high = lab.partition_info()[partition].high_water_mark
        ArchiveStore(lab.connection).raise_low_water_mark(partition, min(mark.marks[partition] + 1, high))
        ArchiveStore(lab.connection).purge_events(partition)
    for model in ALL:
        forget(lab.connection, model, mark)
    assert relations(lab.connection) == before
    for model in ALL:
        with pytest.raises(HistoryMissing):
            build_as_of(lab.dsn, model, lab.session, mark)
        build_as_of(lab.dsn, model, lab.session, mark, archive=tmp_path)
        assert rows_at(lab.connection, model, mark) == then[model.name]
    assert lab.rows("select view from event_store.views order by view") == views


def forget(connection: Connection, model: ReadModel, mark: LogMark) -> None:
    name = at_mark(model, mark).name
    connection.execute("update read_models.as_of set expires_at = now() - interval '1 s' where name = %s", (name,))
    assert remove_expired(connection) == [name]


def test_streams_that_fail_have_what_was_before(lab: Lab) -> None:
    append_events(lab, [thing("a", amount=1), thing("a", amount="no number"), thing("b", amount=5)])
    mark = lab.mark_log("one fails")
    append_events(lab, [thing("b", amount=7), thing("c", amount="none either")])
    summed = replace(Counted, columns={"amounts": sum_("data.amount", type="bigint")})
    built = build_as_of(lab.dsn, summed, lab.session, mark)
    assert built.failed_streams == 1
    assert rows_at(lab.connection, summed, mark) == [("a", 1), ("b", 5)]
    assert lab.rows("select count(*) from event_store.stream_locks") == [(0,)]


# each point between two transactions
STEPS: list[tuple[object, str]] = [
    (as_of, "record_wanted"), (as_of, "ensure_version"), (Rebuild, "_history"), (Rebuild, "_build"), (as_of, "record_built"),
]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("owner", "name"), STEPS)
def test_killed_anywhere_the_next_call_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, late: bool
) -> None:
    mark = filled(lab, 30)
    lab.drain(Counted)
    then = lab.rows_of(Counted)
    lab.fill(10, seed=2)
    work: Callable[..., Any] = getattr(owner, name)

    def dying(*args: object, **kwargs: object) -> None:
        if late:
            work(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dying)
        with pytest.raises(Killed):
            build_as_of(lab.dsn, Counted, lab.session, mark)
    # the leases of a killed process expire
    assert build_as_of(later(lab.dsn), Counted, lab.session, mark).rows == len(then)
    assert rows_at(lab.connection, Counted, mark) == then
    assert lab.rows("select view from event_store.views") == [("counted",)]
    lab.drain(Counted)
    lab.is_clean(Counted)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_a_build_that_fails_has_begun_is_removed(
    things: PlatformStore, dsn: str, error: type[BaseException]
) -> None:
    def failing() -> "SparkSession":
        raise error

    mark, before = filled(things, 5), relations(things.connection)
    with pytest.raises(error):
        build_as_of(dsn, Counted, failing, mark)
    assert all_as_of(things.connection, "counted") == []
    ensure_version(things.connection, Counted)
    with pytest.raises(error):
        diff_with_serving(dsn, Counted, failing)
    assert diffs(things.connection, "counted") == []
    reset_model(things.connection, Counted)
    assert relations(things.connection) == before
    assert rows(things.connection, "select view from event_store.views") == []


def test_of_several_calls_one_builds_and_the_others_wait(lab: Lab) -> None:
    mark = filled(lab)
    calls = [lambda: build_as_of(lab.dsn, Counted, lab.session, mark) for _ in range(3)]
    found: list[AsOf] = [call.result() for call in at_once(calls)]
    assert {each.rows for each in found} == {len(rows_at(lab.connection, Counted, mark))}
    assert [each.name for each in all_as_of(lab.connection, "counted")] == [at_mark(Counted, mark).name]
    assert lab.rows("select count(*) from event_store.views") == [(0,)]


def test_who_gives_up_a_build_last_removes_its_view(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, leases = filled(lab), list[Lease]()

    def meanwhile(connection: Connection, past: ReadModel) -> int:
        leases.append(lab.claim_partition(past.view, 0, "another process", 60))
        return count_rows(connection, past)

    with monkeypatch.context() as patched:
        patched.setattr(as_of, "count_rows", meanwhile)
        built = build_as_of(lab.dsn, Counted, lab.session, mark)
    ((view,),) = lab.rows("select view from event_store.views")
    lab.release_batch(view, leases)
    assert build_as_of(lab.dsn, Counted, no_spark, mark).built_at == built.built_at
    assert lab.rows("select count(*) from event_store.views") == [(0,)]


def test_another_declaration_is_built_anew(things: PlatformStore, spark: "SparkSession", operator: str) -> None:
    """A login with only the operator role does all of it."""
    mark, dsn = filled(things), operator
    first = build_as_of(dsn, Counted, lambda: spark, mark, keep=timedelta(days=2))
    longer = build_as_of(dsn, Counted, no_spark, mark, keep=timedelta(days=9))
    assert longer.expires_at > first.expires_at
    assert build_as_of(dsn, Counted, no_spark, mark, keep=timedelta(days=1)) == longer
    wider = replace(Counted, columns={**Counted.columns, "amounts": sum_("data.amount", type="decimal(18,2)")})
    assert build_as_of(dsn, wider, lambda: spark, mark).fingerprint != first.fingerprint
    assert len(rows_at(things.connection, wider, mark)[0]) == 1 + len(wider.columns)
    assert remove_expired(things.connection) == []
    forget(things.connection, wider, mark)
    assert all_as_of(things.connection, "counted") == []
    assert not [name for name in relations(things.connection) if "_at_" in name]


@pytest.mark.parametrize(
    "build",
    [
        lambda dsn, mark: build_as_of(dsn, Counted, no_spark, mark),
        lambda dsn, _: diff_with_serving(dsn, Counted, no_spark),
    ],
)
def test_time_limits_of_a_login_end_no_build(
    things: PlatformStore, dsn: str, connect: Connect, observer: Connection, build: Callable[[str, LogMark], Any]
) -> None:
    mark = filled(things, 5)
    ensure_version(things.connection, Counted)
    with held(connect(), "lock table event_store.model_locks in access exclusive mode"):
        building = start(lambda: build(f"{dsn}&options=-c%20statement_timeout%3D1s", mark))
        late = "select now() - query_start > interval '1 s' from pg_stat_activity where pid = %s"
        wait_until(lambda: value(observer, late, drains.wait_blocked_in(observer, "lock_model")), "it waits for longer")
    with pytest.raises(AssertionError, match="nothing is to be built"):
        building.result(patience())


def test_what_is_over_of_another_owner_stays_for_that_one(things: PlatformStore) -> None:
    connection = things.connection
    mark, counted = filled(things, 5), with_upcasts(connection, Counted)
    ensure_version(connection, counted)
    before = relations(connection)
    for model in (counted, with_upcasts(connection, Everything)):
        record_wanted(connection, model, mark, timedelta(0))
        ensure_version(connection, at_mark(model, mark))
    diff, theirs, others = take(connection, counted, None), at_mark(counted, mark), at_mark(Everything, mark).name
    connection.execute("update read_models.diffs set expires_at = now()")
    for table in (theirs.state_table, theirs.staging_table, theirs.name, f"{diff.name}_before"):
        connection.execute(f"alter table read_models.{table} owner to {connection.info.user}".encode())
    with logins(connection) as login:
        assert remove_expired(login("event_store_owner")) == [others]
    assert {theirs.state_table, theirs.name, f"{diff.name}_before"} < relations(connection)
    assert sorted(remove_expired(connection)) == sorted([theirs.name, diff.name])
    assert relations(connection) == before


def test_an_overtaken_build_does_not_say_that_this_one_is_built(things: PlatformStore) -> None:
    mark, connection = things.mark_log("now"), things.connection
    overtaken = record_wanted(connection, Counted, mark, timedelta(days=1))
    record_wanted(connection, replace(Counted, events=("made",)), mark, timedelta(days=1))
    record_built(connection, overtaken, at_mark(Counted, mark), 1, 0)
    assert [one.built_at for one in all_as_of(connection, "counted")] == [None]


def test_of_two_that_build_the_same_the_last_one_removes_the_view(things: PlatformStore) -> None:
    connection, mark = things.connection, filled(things)
    noted, past = (
        record_wanted(connection, Counted, mark, as_of.KEEP),
        ensure_version(connection, at_mark(Counted, mark)),
    )
    lease = things.claim_partition(past.view, 0, "last", 60)
    record_built(connection, noted, past, 1, 0)
    things.release_batch(past.view, [lease])
    for _ in range(2):
        record_built(connection, noted, past, 1, 0)
        assert rows(connection, "select from event_store.views") == []


def test_before_the_first_moment_there_is_none(things: PlatformStore) -> None:
    with pytest.raises(NoMark, match="None is recorded"):
        mark_at(things, datetime.now(UTC))
    mark = things.mark_log("the first")
    assert mark_at(things, mark.marked_at) == mark
    with pytest.raises(NoMark) as refused:
        mark_at(things, mark.marked_at - timedelta(seconds=1))
    assert mark.marked_at.isoformat() in str(refused.value)
