"""Rebuilds from archive and tail: the rows of a clean run, from the leased range only, whatever happens meanwhile."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from millrace import carried, read_model, sum_
from millrace.archive.history import LogHistory, log_history
from millrace.archive.listing import archived
from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.assets.declarations import Declarations
from millrace.assets.partitions import log_partition_key
from millrace.drain import rebuild as rebuilding
from millrace.drain import staging
from millrace.drain.commit import Commit
from millrace.drain.report import PartitionsFailed
from millrace.drain.view_drain import ViewDrain
from millrace.errors import ArchiveDamaged, ForeignArchive, HistoryNeeded, LogIncomplete
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.loading import build_defs
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import count
from millrace.read_models.stored.tables import HistoryMissing
from millrace.read_models.stored.versions import ensure_version, is_ready_to_serve, unbuilt_partitions
from tests.support.building import drains
from tests.support.building.drains import Everything, all_events, busiest, close, drain, fill, rows_of, thing, things
from tests.support.building.oracle import expected_rows
from tests.support.building.poison import WORTHS, locks, poison
from tests.support.elsewhere import postgres_at
from tests.support.factories import ids_of_one_partition, rows, with_odd_settings
from tests.support.patience import patience
from tests.support.sql_calls import append_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

Narrow = replace(Everything, columns={"events": count()})


def archive(dsn: str, root: Path, *, tail: bool = False, partitions: range = range(16)) -> None:
    for partition in partitions:
        archive_partition(dsn, root, partition, max_events=4, min_events=3, tail=tail)


def purge(store: PlatformStore) -> None:
    """Purge the archived events of each log partition."""
    for info in store.partition_info():
        held = archived(store.connection, info.partition)
        if held.archived_position > held.earliest_position:
            ArchiveStore(store.connection).raise_low_water_mark(info.partition, held.archived_position)
            ArchiveStore(store.connection).purge_events(info.partition)


def rebuild(
    dsn: str, spark: "Callable[[], SparkSession]", root: Path | None, *partitions: int, model: ReadModel = Everything
) -> Commit:
    with ViewDrain(dsn, model, spark, "rebuilder", archive=root) as consumer:
        return consumer.rebuild(*partitions)


def filled(store: PlatformStore) -> list[int]:
    """Return the log partitions that have events."""
    return [lag.partition for lag in store.view_lag("everything") if lag.position]


def test_a_shortened_log_is_rebuilt_whole_from_archive_and_tail(
    things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = with_odd_settings(dsn)
    fill(things, 90)
    drain(dsn, spark)
    events = all_events(things)
    expected = close(expected_rows(Everything, events))
    archive(dsn, tmp_path)
    partition = busiest(things)
    ArchiveStore(things.connection).raise_low_water_mark(partition, 2)
    refused = []

    def purging() -> "SparkSession":
        """Extend the archive and try to purge all of it, after the rebuild has planned its reads."""
        archive(dsn, tmp_path, tail=True, partitions=range(partition, partition + 1))
        with pytest.raises(HistoryNeeded, match="rebuilder reads it from 2") as refusal:
            ArchiveStore(things.connection).raise_low_water_mark(
                partition, archived(things.connection, partition).archived_position
            )
        refused.append(refusal)
        return spark

    # the lease keeps the tail until the rebuild is committed
    rebuild(dsn, purging, tmp_path, partition)
    assert refused
    assert close(rows_of(things.connection, Everything)) == expected
    purge(things)
    things.connection.execute("update read_models.everything_state set events = 0")
    commit = rebuild(dsn, lambda: spark, tmp_path, *filled(things))
    assert len(commit.leases) > 1
    assert commit.events == sum(lease.to_position for lease in commit.leases)
    assert close(rows_of(things.connection, Everything)) == expected
    # drains continue from there
    fill(things, 20, seed=2)
    events += all_events(things)[-20:]
    drain(dsn, spark)
    assert close(rows_of(things.connection, Everything)) == close(expected_rows(Everything, events))

    # a run in Dagster reads the archive that the settings name
    monkeypatch.setenv("MILLRACE_ARCHIVE_DIR", str(tmp_path))
    things.connection.execute("update read_models.everything_state set events = 0 where partition = %s", (partition,))
    declared = Declarations(models={"everything": Everything})
    defs = build_defs(declarations=declared, resources={"postgres": postgres_at(dsn)})
    key = log_partition_key(partition)
    assert defs.resolve_job_def("rebuild").execute_in_process(partition_key=key).success
    assert close(rows_of(things.connection, Everything)) == close(expected_rows(Everything, events))
    # a run that writes the archive records the moment
    assert defs.resolve_job_def("archive").execute_in_process(partition_key=key).success
    mark = things.marks_at(datetime.now(UTC))
    assert mark is not None
    assert (mark.reason, sum(mark.marks)) == ("archive", len(events))


def test_a_new_version_of_a_short_log(things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path) -> None:
    streams = [ids_of_one_partition(things.connection, 1, partition)[0] for partition in (2, 5, 7, 11)]
    for text in ("a", "b", "c", "d"):
        append_events(things, [thing(stream, text=text, units=1) for stream in streams])
    drain(dsn, spark, Narrow)
    events = all_events(things)
    archive(dsn, tmp_path)
    purge(things)
    append_events(things, [thing(stream, text="later") for stream in streams])
    events += all_events(things)[-4:]

    before = rows_of(things.connection, Narrow)
    with pytest.raises(HistoryMissing), ViewDrain(dsn, Everything, lambda: spark, "no archive"):
        pass
    assert rows_of(things.connection, Narrow) == before
    commits: list[Commit] = []
    stop = threading.Event()

    def two(commit: Commit) -> None:
        commits.append(commit)
        if len(commits) == 2:
            stop.set()

    with ViewDrain(dsn, Everything, lambda: spark, "first", archive=tmp_path) as consumer:
        assert consumer.model.version == 2
        consumer.drain(budget_s=patience(), idle_s=0, on_commit=two, stop=stop)
        unbuilt = unbuilt_partitions(things.connection, consumer.model)
        assert len(unbuilt) > 1
        assert not is_ready_to_serve(things.connection, consumer.model)
    assert rows_of(things.connection, Narrow) == before

    # a second rebuild resumes where the first ended, and names each log partition that it cannot rebuild
    damaged = next(tmp_path.glob(f"p{unbuilt[0]:04}/*.parquet"))
    damaged.rename(tmp_path / "kept")
    with ViewDrain(dsn, Everything, lambda: spark, "next", archive=tmp_path) as consumer:
        with pytest.raises(PartitionsFailed, match=f"p{unbuilt[0]:02}: .*is not there"):
            consumer.drain(budget_s=patience(), idle_s=0, on_commit=commits.append)
        assert unbuilt_partitions(things.connection, consumer.model) == unbuilt[:1]
        (tmp_path / "kept").rename(damaged)
        consumer.drain(budget_s=patience(), idle_s=0, on_commit=commits.append)
    assert sum(commit.events for commit in commits) == len(events)
    assert close(rows_of(things.connection, Everything)) == close(expected_rows(Everything, events))


def test_what_comes_later_is_not_in_it(things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path) -> None:
    fill(things, 60)
    drain(dsn, spark)
    partition = busiest(things)
    archive(dsn, tmp_path, tail=True)
    listed: list[LogHistory] = []

    def later(store: PlatformStore, root: Path, partitions: list[int]) -> LogHistory:
        """Return archive and log after both have grown since the lease."""
        fill(things, 60, seed=2)
        things.sequence_events()
        archive(dsn, root, tail=True)
        listed.append(log_history(store.connection, root, partitions))
        return listed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuilding, "log_history", later)
        commit = rebuild(dsn, lambda: spark, tmp_path, partition)
    (history,) = listed
    assert max(file.range.to_position for file in history.files) > commit.leases[0].to_position
    position = {lag.partition: lag.position for lag in things.view_lag("everything")}[partition]
    assert position == commit.events == commit.leases[0].to_position
    drain(dsn, spark)
    drains.assert_equals_a_clean_run(things)

    (name,) = ids_of_one_partition(things.connection, 1, partition)
    small = archived(things.connection, partition).files[-1]

    def replacing() -> "SparkSession":
        """Replace a file that the rebuild is going to read."""
        for _ in range(4 - small.range.size % 4):
            append_events(things, [thing(name)])
        things.sequence_events()
        archive(dsn, tmp_path, tail=True)
        assert small not in archived(things.connection, partition).files
        return spark

    assert small.range.size < 4
    before = rows_of(things.connection, Everything)
    rebuild(dsn, replacing, tmp_path, partition)
    assert rows_of(things.connection, Everything) == before


@pytest.mark.parametrize("at_a_time", [10_000, 1])
def test_a_rebuild_names_the_streams_that_its_columns_do_not_hold(
    things: PlatformStore,
    dsn: str,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_a_time: int,
) -> None:
    # the number of failing streams that a task names at once; the next build names more
    monkeypatch.setattr(staging, "MOST_MISREAD", at_a_time)
    good, *bad = ids_of_one_partition(things.connection, 4, partition=3)
    for made in (partial(thing, worth=1), poison, partial(thing, worth=1)):
        append_events(things, [thing(good, worth=1), *map(made, bad)])
    ensure_version(things.connection, WORTHS)
    archive(dsn, tmp_path, tail=True)
    commit = rebuild(dsn, lambda: spark, tmp_path, 3, model=WORTHS)
    assert {failure.stream.decider_id for failure in commit.failures} == {*bad}
    assert dict(locks(things)) == dict.fromkeys(bad, 1)
    assert sorted(rows_of(things.connection, WORTHS)) == sorted([(good, 3, 3), *((name, 1, 1) for name in bad)])


def test_a_lost_file_is_no_streams_fault(
    things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    archive(dsn, tmp_path)
    partition = busiest(things)
    before = rows_of(things.connection, Everything)
    archive_partition(dsn, tmp_path / "elsewhere", (partition + 1) % 16, max_events=1, min_events=1)
    other = next((tmp_path / "elsewhere").rglob("*.parquet")).read_bytes()
    path = tmp_path / archived(things.connection, partition).files[0].path
    content = path.read_bytes()
    for fault in (path.unlink, lambda: path.write_bytes(other)):

        def meanwhile(fault: Callable[[], object] = fault) -> "SparkSession":
            path.write_bytes(content)
            fault()
            return spark

        with pytest.raises(PartitionsFailed, match=str(path)):
            rebuild(dsn, meanwhile, tmp_path, partition)
        path.write_bytes(content)
    assert rows(things.connection, "select * from event_store.stream_locks") == []
    assert rows_of(things.connection, Everything) == before


def test_a_log_that_nobody_has_whole_is_an_error_where_needed(
    things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 90)
    drain(dsn, spark)
    given_up = busiest(things)
    ArchiveStore(things.connection).mark_archived(given_up, 3)
    ArchiveStore(things.connection).raise_low_water_mark(given_up, 3)
    for root in (None, tmp_path):
        with pytest.raises(HistoryMissing, match=f"log partition {given_up} begins at 3"):
            rebuild(dsn, lambda: spark, root, given_up)
    archive(dsn, tmp_path)
    lost = f"log partition {given_up}: positions 0 to 3 (?s:.*) only a backup"
    with pytest.raises(LogIncomplete, match=lost) as refusal:
        rebuild(dsn, lambda: spark, tmp_path, given_up)
    assert refusal.value.hint

    whole = (held for held in map(partial(archived, things.connection), range(16)) if held.partition != given_up)
    partition = next(held.partition for held in whole if held.files)
    damaged = tmp_path / archived(things.connection, partition).files[0].path
    damaged.rename(tmp_path / "kept")
    things.connection.execute("update read_models.everything_state set events = 0 where partition = %s", (partition,))
    with caplog.at_level(logging.WARNING):
        rebuild(dsn, lambda: spark, tmp_path, partition)
    assert "the archive is passed over, Postgres has everything" in caplog.text
    drains.assert_equals_a_clean_run(things)
    ArchiveStore(things.connection).raise_low_water_mark(partition, 1)
    with pytest.raises(ArchiveDamaged):
        rebuild(dsn, lambda: spark, tmp_path, partition)
    (tmp_path / "kept").rename(damaged)
    (tmp_path / "archive.json").write_text('{"archive": "another"}')
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ForeignArchive):
            rebuild(dsn, lambda: spark, root, partition)
    # no lease is left
    assert rows(things.connection, "select * from event_store.checkpoints where lease_owner is not null") == []


def test_what_was_given_up_stays_so(things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path) -> None:
    streams = {partition: ids_of_one_partition(things.connection, 2, partition=partition) for partition in (6, 7)}
    for bad, good in streams.values():
        append_events(things, [thing(good), thing(bad, worth="a lot"), thing(bad, worth=1), thing(good), thing(good)])
    drain(dsn, spark)
    things.connection.execute("update event_store.stream_locks set parked_at = now(), locked_until = 'infinity'")
    # as if the event had been good before, and the function that reads it changed
    things.connection.execute("delete from event_store.stream_locks where decider_id = %s", (streams[7][0],))
    things.discard_dead_letter("everything", "thing", streams[6][0], "a test")
    drain(dsn, spark)
    expected = rows_of(things.connection, Everything)
    assert {row[0]: row[1] for row in expected} == {streams[6][0]: 1, streams[6][1]: 3, streams[7][1]: 3}
    archive(dsn, tmp_path)
    purge(things)
    rebuild(dsn, lambda: spark, tmp_path, 6)
    assert archived(things.connection, 7).earliest_position == 4
    with pytest.raises(PartitionsFailed, match=f"only the archive has.*{streams[7][0]}"):
        rebuild(dsn, lambda: spark, tmp_path, 7)
    assert rows_of(things.connection, Everything) == expected
    assert rows(things.connection, "select * from event_store.stream_locks") == []

    # in another version of the model too
    changed = replace(Everything, columns={**Everything.columns, "again": count()})
    with (
        ViewDrain(dsn, changed, lambda: spark, "next", archive=tmp_path) as consumer,
        pytest.raises(PartitionsFailed, match=f"only the archive has.*{streams[7][0]}"),
    ):
        consumer.drain(budget_s=patience(), idle_s=0)
    built = rows(things.connection, "select thing_id, events from read_models.everything_state_v2 where partition = 6")
    assert dict(built) == {streams[6][0]: 1, streams[6][1]: 3}


@read_model(view="per_patient", deciders=["thing"], key=["patient"])
class PerPatient:
    """One row per patient; the first event of a visit names the patient."""

    patient = carried("data.patient")
    seen = count()
    n = sum_("data.n")


def test_what_is_purged_still_names_keys(
    things: PlatformStore, dsn: str, spark: "SparkSession", tmp_path: Path
) -> None:
    model = cast("ReadModel", PerPatient)
    append_events(things, [thing("visit", patient="ann", n="a lot")])
    drain(dsn, spark, model)
    things.connection.execute("update event_store.stream_locks set parked_at = now(), locked_until = 'infinity'")
    things.discard_dead_letter("per_patient", "thing", "visit", "a test")
    append_events(things, [thing("visit", n=2)])
    drain(dsn, spark, model)
    archive(dsn, tmp_path, tail=True)
    purge(things)
    for each in (model, replace(model, columns={**model.columns, "again": count()})):
        with ViewDrain(dsn, each, lambda: spark, "rebuilder", archive=tmp_path) as consumer:
            consumer.rebuild(*range(16))
        assert rows_of(things.connection, model) == [("ann", 1, 2)]
    (row,) = rows(things.connection, "select patient, seen from read_models.per_patient_state_v2")
    assert row == ("ann", 1)
