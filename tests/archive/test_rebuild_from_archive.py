"""Rebuilds from archive and tail: the rows of a clean run, from just the leased range, whatever happens meanwhile."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.assets.declarations import Declarations
from millrace.assets.partitions import log_partition_key
from millrace.platform_defs.definitions import build_defs
from millrace.resources.archive.files import ArchiveDamaged
from millrace.resources.archive.folder import ForeignArchive
from millrace.resources.archive.history import LogHistory, LogIncomplete, log_history
from millrace.resources.archive.listing import archived
from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.writer import archive_partition
from millrace.resources.consumption import rebuild as rebuilding
from millrace.resources.consumption.build_errors import build_errors
from millrace.resources.consumption.commit import Commit
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.consumption.report import PartitionsFailed
from millrace.resources.errors import HistoryNeeded
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.columns import count
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.tables import HistoryMissing
from millrace.resources.read_models.versions import is_ready_to_serve, unbuilt_partitions
from tests.long import LONG
from tests.support.building import read_models as models
from tests.support.building.drains import (
    Everything,
    all_events,
    assert_equals_a_clean_run,
    busiest,
    close,
    drain,
    fill,
    rows_of,
    thing,
    things,
)
from tests.support.building.read_models import expected_everything, expected_machines, expected_uses
from tests.support.elsewhere import postgres_at
from tests.support.factories import ids_of_one_partition, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

Narrow = replace(Everything, columns={"events": count()})


def archive(dsn: str, root: Path, *, tail: bool = False, partitions: range = range(16)) -> None:
    for partition in partitions:
        archive_partition(dsn, root, partition, max_events=4, min_events=3, tail=tail)


def purge(store: EventStore, *, all_of_it: bool = True) -> None:
    """Give up what is archived of each log partition, or half of it."""
    for info in store.partition_info():
        held = archived(store.connection, info.partition)
        target = held.archived_position if all_of_it else held.archived_position // 2
        if target > held.earliest_position:
            ArchiveStore(store.connection).raise_low_water_mark(info.partition, target)
            ArchiveStore(store.connection).purge_events(info.partition)


def rebuild(
    dsn: str, spark: "Callable[[], SparkSession]", root: Path | None, *partitions: int, model: ReadModel = Everything
) -> Commit:
    with Consumer.open(dsn, model, spark, "rebuilder", archive=root) as consumer:
        return consumer.rebuild(*partitions)


def filled(store: EventStore, view: str = "everything") -> list[int]:
    """Return the log partitions that have events of a view."""
    return [lag.partition for lag in store.view_lag(view) if lag.position]


@pytest.mark.parametrize("all_of_it", [True, pytest.param(False, marks=LONG)])
def test_a_shortened_log_is_rebuilt_from_archive_and_tail_to_the_rows_of_a_clean_run(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path, all_of_it: bool
) -> None:
    fill(things, 120)
    drain(dsn, spark)
    events = all_events(things)
    archive(dsn, tmp_path)
    purge(things, all_of_it=all_of_it)
    expected = close(expected_everything(events))
    things.connection.execute("update read_models.everything_state set events = 0")
    commit = rebuild(dsn, lambda: spark, tmp_path, *filled(things))
    assert len(commit.leases) > 1
    assert commit.events == sum(lease.to_position for lease in commit.leases)
    assert close(rows_of(things.connection, Everything)) == expected
    # and it goes on from there
    fill(things, 20, seed=2)
    events += all_events(things)[-20:]
    drain(dsn, spark)
    assert close(rows_of(things.connection, Everything)) == close(expected_everything(events))


def test_a_new_model_and_a_new_version_are_built_from_the_archive_where_the_log_is_shortened(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    fill(things, 60)
    drain(dsn, spark, Narrow)
    events = all_events(things)
    archive(dsn, tmp_path)
    purge(things)
    fill(things, 20, seed=2)
    events += all_events(things)[-20:]

    before = rows_of(things.connection, Narrow)
    with pytest.raises(HistoryMissing), Consumer.open(dsn, Everything, lambda: spark, "no archive"):
        pass
    assert rows_of(things.connection, Narrow) == before
    commits: list[Commit] = []
    stop = threading.Event()

    def two(commit: Commit) -> None:
        commits.append(commit)
        if len(commits) == 2:
            stop.set()

    with Consumer.open(dsn, Everything, lambda: spark, "first", archive=tmp_path) as consumer:
        assert consumer.model.version == 2
        consumer.drain(budget_s=60, idle_s=0, on_commit=two, stop=stop)
        assert len(unbuilt_partitions(things.connection, consumer.model)) > 0
        assert not is_ready_to_serve(things.connection, consumer.model)
    assert rows_of(things.connection, Narrow) == before

    # where that one ended, another one goes on
    with Consumer.open(dsn, Everything, lambda: spark, "next", archive=tmp_path) as consumer:
        report = consumer.drain(budget_s=60, idle_s=0)
    assert report.events + sum(commit.events for commit in commits) == len(events)
    assert close(rows_of(things.connection, Everything)) == close(expected_everything(events))


@pytest.mark.parametrize(
    ("model", "expected"),
    [(models.machines, expected_machines), (models.uses, expected_uses)],
)
def test_folds_and_functions_of_whole_streams_are_rebuilt_from_the_archive_too(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path, model: object, expected: Callable[..., Any]
) -> None:
    declared = cast("ReadModel", model)
    fill(things, 80)
    drain(dsn, spark, declared)
    events = all_events(things)
    before = rows_of(things.connection, declared)
    assert close(before) == close(expected(events))
    archive(dsn, tmp_path)
    purge(things)
    rebuild(dsn, lambda: spark, tmp_path, *filled(things, declared.view), model=declared)
    assert rows_of(things.connection, declared) == before


def test_what_is_appended_and_archived_after_the_lease_is_not_in_the_rebuild_but_in_the_next_drain(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 60)
    drain(dsn, spark)
    partition = busiest(things)
    archive(dsn, tmp_path, tail=True)
    listed: list[LogHistory] = []

    def later(store: EventStore, root: Path, partitions: list[int]) -> LogHistory:
        """Return what archive and log hold when both went on since the lease."""
        fill(things, 60, seed=2)
        things.sequence_events()
        archive(dsn, root, tail=True)
        listed.append(log_history(store.connection, root, partitions))
        return listed[-1]

    monkeypatch.setattr(rebuilding, "log_history", later)
    commit = rebuild(dsn, lambda: spark, tmp_path, partition)
    (history,) = listed
    assert max(file.range.to_position for file in history.files) > commit.leases[0].to_position
    position = {lag.partition: lag.position for lag in things.view_lag("everything")}[partition]
    assert position == commit.events == commit.leases[0].to_position
    drain(dsn, spark)
    assert_equals_a_clean_run(things)


def test_the_lease_keeps_the_tail_from_being_purged_until_the_rebuild_is_committed(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    events = all_events(things)
    archive(dsn, tmp_path)
    partition = busiest(things)
    ArchiveStore(things.connection).raise_low_water_mark(partition, 2)
    refused = []

    def purging() -> "SparkSession":
        """Extend the archive and try to give up all of it, while the rebuild knows what it will read."""
        archive(dsn, tmp_path, tail=True, partitions=range(partition, partition + 1))
        with pytest.raises(HistoryNeeded, match="rebuilder reads it from 2") as refusal:
            ArchiveStore(things.connection).raise_low_water_mark(
                partition, archived(things.connection, partition).archived_position
            )
        refused.append(refusal)
        return spark

    rebuild(dsn, purging, tmp_path, partition)
    assert refused
    assert close(rows_of(things.connection, Everything)) == close(expected_everything(events))
    purge(things)  # now it may


def test_a_small_file_that_is_replaced_while_it_is_read_is_still_there(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    (name,) = ids_of_one_partition(things.connection, 1, partition=5)
    things.append_events([thing(name, units=1), thing(name, units=2)])
    drain(dsn, spark)
    archive(dsn, tmp_path, tail=True)
    (small,) = archived(things.connection, 5).files

    def replacing() -> "SparkSession":
        things.append_events([thing(name, units=4) for _ in range(3)])
        things.sequence_events()
        archive(dsn, tmp_path, tail=True)
        assert small not in archived(things.connection, 5).files
        return spark

    assert rebuild(dsn, replacing, tmp_path, 5).events == 2
    assert rows(things.connection, "select units from read_models.everything") == [(3,)]


@pytest.mark.parametrize("fault", ["gone", "cut", "other"])
def test_a_file_that_is_gone_or_another_when_a_task_reads_it_fails_the_rebuild_and_is_no_streams_fault(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path, fault: str
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    archive(dsn, tmp_path)
    partition = busiest(things)
    before = rows_of(things.connection, Everything)
    first, second, *_ = (tmp_path / file.path for file in archived(things.connection, partition).files)

    def meanwhile() -> "SparkSession":
        if fault == "gone":
            first.unlink(missing_ok=True)
        elif fault == "cut":
            first.write_bytes(first.read_bytes()[:-20])
        else:
            archive_partition(dsn, tmp_path / "elsewhere", (partition + 1) % 16, max_events=1, min_events=1)
            other = next((tmp_path / "elsewhere").rglob("*.parquet"))
            first.write_bytes(other.read_bytes())
        return spark

    with pytest.raises(build_errors()) as failed:
        rebuild(dsn, meanwhile, tmp_path, partition)
    assert str(first) in str(failed.value)
    assert second.exists()
    assert rows(things.connection, "select * from event_store.stream_locks") == []
    assert rows_of(things.connection, Everything) == before


def test_without_an_archive_that_holds_the_rest_a_shortened_log_is_refused_with_the_remedy(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    partition = busiest(things)
    ArchiveStore(things.connection).mark_archived(partition, 3)
    ArchiveStore(things.connection).raise_low_water_mark(partition, 3)
    for root in (None, tmp_path):
        with pytest.raises(HistoryMissing, match=f"log partition {partition} begins at 3"):
            rebuild(dsn, lambda: spark, root, partition)
    archive(dsn, tmp_path)
    with pytest.raises(
        LogIncomplete, match=f"log partition {partition}: positions 0 to 3 (?s:.*) only a backup"
    ) as refusal:
        rebuild(dsn, lambda: spark, tmp_path, partition)
    assert refusal.value.hint
    # nothing is held back
    assert rows(things.connection, "select * from event_store.checkpoints where lease_owner is not null") == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [pytest.param("not there", ForeignArchive, marks=LONG), ("foreign", ForeignArchive), ("damaged", ArchiveDamaged)],
)
def test_an_archive_that_cannot_be_read_is_an_error_only_where_the_log_does_not_hold_everything(
    things: EventStore,
    dsn: str,
    spark: "SparkSession",
    tmp_path: Path,
    fault: str,
    error: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    archive(dsn, tmp_path)
    root, partition = tmp_path, busiest(things)
    if fault == "not there":
        root = tmp_path / "nowhere"
    elif fault == "foreign":
        (root / "archive.json").write_text('{"archive": "another"}')
    else:
        (root / archived(things.connection, partition).files[0].path).unlink()
    things.connection.execute("update read_models.everything_state set events = 0")
    with caplog.at_level(logging.WARNING):
        rebuild(dsn, lambda: spark, root, *filled(things))
    assert "the archive is passed over, Postgres has everything" in caplog.text
    assert_equals_a_clean_run(things)
    ArchiveStore(things.connection).raise_low_water_mark(partition, 1)
    with pytest.raises(error):
        rebuild(dsn, lambda: spark, root, partition)


def test_a_stream_that_fails_in_a_rebuild_waits_and_all_others_are_built_from_archive_and_tail(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    partition = 6
    bad, good, other = ids_of_one_partition(things.connection, 3, partition=partition)
    things.append_events([thing(good, worth=1), thing(bad, worth=1), thing(other, worth=1), thing(good, worth=1)])
    things.append_events([thing(good, worth=1), thing(bad, worth="a lot"), thing(good, worth=1)])
    things.sequence_events()
    archive(dsn, tmp_path)
    assert archived(things.connection, partition).archived_position == 7
    with Consumer.open(dsn, Everything, lambda: spark, "rebuilder", archive=tmp_path) as consumer:
        (failure,) = consumer.rebuild(partition).failures
    assert failure.stream.decider_id == bad
    assert rows(things.connection, "select thing_id, events from read_models.everything order by thing_id") == sorted(
        [(good, 4), (bad, 1), (other, 1)]
    )


def test_a_stream_that_fails_at_an_event_that_only_the_archive_has_fails_the_rebuild_and_is_named(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    partition = 6
    bad, good = ids_of_one_partition(things.connection, 2, partition=partition)
    held = "select thing_id, events from read_models.everything"
    things.append_events([thing(good), thing(bad, worth="a lot"), thing(bad), thing(good), thing(good)])
    drain(dsn, spark)
    # as if the event had been good before, and the function that looks at it changed
    things.connection.execute("delete from event_store.stream_locks")
    archive(dsn, tmp_path)
    purge(things)
    assert archived(things.connection, partition).earliest_position == 4
    with pytest.raises(PartitionsFailed, match=f"only the archive has.*{bad}"):
        rebuild(dsn, lambda: spark, tmp_path, partition)
    assert [events for _, events in rows(things.connection, held)] == [3]
    assert rows(things.connection, "select * from event_store.stream_locks") == []


def test_an_event_that_was_discarded_and_purged_stays_given_up_in_every_version(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    partition = 6
    bad, good = ids_of_one_partition(things.connection, 2, partition=partition)
    things.append_events([thing(good), thing(bad, worth="a lot"), thing(bad, worth=1), thing(good), thing(good)])
    drain(dsn, spark)
    things.connection.execute("update event_store.stream_locks set parked_at = now(), locked_until = 'infinity'")
    things.discard_dead_letter("everything", "thing", bad, "a test")
    drain(dsn, spark)
    expected = rows_of(things.connection, Everything)
    assert [row[1] for row in expected if row[0] == bad] == [1]
    archive(dsn, tmp_path)
    purge(things)
    rebuild(dsn, lambda: spark, tmp_path, partition)
    assert rows_of(things.connection, Everything) == expected

    changed = replace(Everything, columns={**Everything.columns, "again": count()})
    with Consumer.open(dsn, changed, lambda: spark, "next", archive=tmp_path) as consumer:
        assert consumer.drain(budget_s=60, idle_s=0).failed_streams == 0
    assert [row[:-1] for row in rows_of(things.connection, changed)] == expected


def test_log_partitions_that_cannot_be_rebuilt_do_not_hold_up_the_others_and_are_named(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    fill(things, 60)
    archive(dsn, tmp_path)
    purge(things)
    shortened = [held.partition for held in things.available_offset_range() if held.earliest_position]
    assert len(shortened) > 1
    with Consumer.open(dsn, Everything, lambda: spark, "next", archive=tmp_path) as consumer:
        damaged = next(tmp_path.glob(f"p{shortened[0]:04}/*.parquet"))
        damaged.rename(tmp_path / "kept")
        with pytest.raises(PartitionsFailed, match=f"p{shortened[0]:02}: .*is not there"):
            consumer.drain(budget_s=60, idle_s=0)
        assert unbuilt_partitions(things.connection, consumer.model) == shortened[:1]
        (tmp_path / "kept").rename(damaged)
        consumer.drain(budget_s=60, idle_s=0)
    assert sum(lag.behind for lag in things.view_lag("everything")) == 0


def test_a_run_in_dagster_reads_the_archive_that_the_settings_name(
    things: EventStore, dsn: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_ARCHIVE_DIR", str(tmp_path))
    fill(things, 60)
    drain(dsn, spark)
    events, partition = all_events(things), busiest(things)
    archive(dsn, tmp_path)
    purge(things)
    defs = build_defs(
        declarations=Declarations(models={"everything": Everything}), resources={"postgres": postgres_at(dsn)}
    )
    rebuilt = defs.resolve_job_def("rebuild").execute_in_process(partition_key=log_partition_key(partition))
    assert rebuilt.success
    assert close(rows_of(things.connection, Everything)) == close(expected_everything(events))
