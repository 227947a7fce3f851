"""Purging history: only archived, checked events that nothing needs; after an interruption anywhere it resumes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from millrace.archive import purge as retention
from millrace.archive.listing import archived
from millrace.archive.purge import EventsLeft, purge_before
from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.errors import ArchiveDamaged, HistoryNeeded
from millrace.event_store.platform import PlatformStore
from tests.support.command_line import millrace
from tests.support.factories import Connect, append_to, ids_of_one_partition, register_orders, rows, set_clock, value

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def old(store: PlatformStore, dsn: str, tmp_path: Path) -> PlatformStore:
    """Log partition 0 has six events before noon and four after, nine archived; log partition 1 two, archived."""
    register_orders(store)
    (one,), (two,) = (ids_of_one_partition(store.connection, 1, partition) for partition in (0, 1))
    set_clock(store.connection, "2026-01-05 11:00:00+00")
    append_to(store, *[one] * 6, two, two)
    set_clock(store.connection, "2026-01-05 13:00:00+00")
    append_to(store, *[one] * 3)
    store.sequence_events()
    for partition in (0, 1):
        archive_partition(dsn, tmp_path, partition, max_events=4, min_events=4, tail=True)
    append_to(store, one)
    store.sequence_events()
    return store


def kept(store: PlatformStore) -> list[tuple[int, int]]:
    return rows(store.connection, "select partition, position from event_store.event_log order by 1, 2")


def command(dsn: str, folder: Path, *more: str) -> str:
    return millrace("purge", "--before", "2026-01-05T12:00:00", "--archive", folder, *more, dsn=dsn)


def test_what_is_old_and_archived_goes_and_the_rest_stays(old: PlatformStore, tmp_path: Path) -> None:
    before = kept(old)
    dry = purge_before(old.connection, tmp_path, NOON, dry_run=True)
    found = [(r.from_position, r.to_position, r.events, r.files) for r in dry[:3]]
    assert found == [(0, 6, 6, 2), (0, 2, 2, 1), (0, 0, 0, 0)]
    assert kept(old) == before
    raised: LiteralString = "from event_store.audit_log where operation = 'raise_low_water_mark'"
    assert value(old.connection, f"select count(*) {raised}") == 0
    done = purge_before(old.connection, tmp_path, NOON, reason="a year is enough")
    assert done == dry
    assert kept(old) == [(0, offset) for offset in range(6, 10)]
    assert value(old.connection, "select count(*) from event_store.events") == 4
    assert rows(old.connection, f"select distinct reason {raised}") == [("a year is enough",)]
    assert [result.events for result in purge_before(old.connection, tmp_path, NOON)] == [0] * 16


def test_what_is_not_archived_stays_whatever_its_age(old: PlatformStore, tmp_path: Path) -> None:
    ArchiveStore(old.connection).mark_archived(0, 10)  # marked archived, but there is no file
    purge_before(old.connection, tmp_path, datetime(2100, 1, 1, tzinfo=UTC))
    assert kept(old) == [(0, 9)]


def test_a_damaged_file_stops_it_before_anything_is_deleted(old: PlatformStore, tmp_path: Path) -> None:
    before = kept(old)
    path = tmp_path / archived(old.connection, 0).files[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveDamaged, match=str(path)):
        purge_before(old.connection, tmp_path, NOON)
    assert kept(old) == before


def test_what_a_view_needs_stays_and_other_log_partitions_are_done(
    old: PlatformStore, dsn: str, tmp_path: Path
) -> None:
    old.register_view("late", "-infinity", mode="bulk")
    old.connection.execute("update event_store.checkpoints set position = 2 where partition = 1")
    refused, done, *_ = purge_before(old.connection, tmp_path, NOON)
    assert "view 'late' stands at 0" in str(refused.refused)
    assert "unregister_view" in str(refused.refused)
    assert (refused.events, done.events, done.refused) == (0, 2, None)
    assert len(kept(old)) == 10
    with pytest.raises(HistoryNeeded, match="1 of 16 log partitions keep their events") as said:
        command(dsn, tmp_path)
    assert "view 'late' stands at 0" in str(said.value.__notes__)


@pytest.mark.parametrize("ending", ["commit", "prepare"])
def test_it_says_who_kept_it_from_it(
    old: PlatformStore, dsn: str, tmp_path: Path, connect: Connect, ending: str
) -> None:
    writer = PlatformStore(connect(autocommit=False))
    writer.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    append_to(writer, ids_of_one_partition(old.connection, 2, 1)[1])
    pid = writer.connection.info.backend_pid
    if ending == "prepare":
        writer.connection.execute("prepare transaction 'long'")
        pid = 0
    held, passed_by, *rest = purge_before(old.connection, tmp_path, NOON)
    assert (held.events, held.left, held.holders) == (6, 0, ())
    assert (passed_by.from_position, passed_by.to_position, passed_by.events, passed_by.left) == (0, 2, 0, 2)
    assert passed_by.holders == (pid,)
    assert not any(result.left for result in rest)
    with pytest.raises(EventsLeft, match="with 2 events that are given up and still there") as said:
        command(dsn, tmp_path)
    assert said.value.detail == "Log partitions 1."
    waits_for = f"for them: {pid}. Then" if pid else "for them: a prepared transaction (pg_prepared_xacts). Then"
    assert waits_for in str(said.value)
    writer.connection.commit()
    if ending == "prepare":
        old.connection.execute("commit prepared 'long'")
    command(dsn, tmp_path)
    (state,) = ArchiveStore(old.connection).purge_state(1)
    assert (state.purged_position, state.earliest_position) == (2, 2)


def test_it_says_what_another_purge_keeps(old: PlatformStore, dsn: str, tmp_path: Path, connect: Connect) -> None:
    other = ArchiveStore(connect(autocommit=False))
    other.raise_low_water_mark(1, 2)
    other.connection.commit()
    old.register_view("late", "-infinity", mode="bulk")
    assert other.purge_events(1, 1) == 1
    with pytest.raises(HistoryNeeded, match="1 of 16 log partitions keep their events") as said:
        command(dsn, tmp_path)
    assert "1 of 16 log partitions were passed by" in str(said.value)
    assert f"for them: {other.connection.info.backend_pid}." in str(said.value)


def test_interrupted_it_goes_on_where_it_was(
    old: PlatformStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PIECE", 2)

    def interrupt(_partition: int, events: int) -> None:
        if events == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge_before(old.connection, tmp_path, NOON, progress=interrupt)
    assert kept(old)[0] == (0, 4)
    assert old.available_offset_range(0)[0].earliest_position == 6
    assert [result.events for result in purge_before(old.connection, tmp_path, NOON)[:2]] == [2, 2]
    assert kept(old) == [(0, offset) for offset in range(6, 10)]


def test_the_command_says_what_was(
    old: PlatformStore, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "dry run" in command(dsn, tmp_path, "--dry-run")
    assert len(kept(old)) == 12
    assert "Purged" in command(dsn, tmp_path)
    assert len(kept(old)) == 4
    monkeypatch.setenv("MILLRACE_ARCHIVE_DIR", str(tmp_path))
    assert "Backed up 12 events and 0 views" in millrace("backup", tmp_path / "saved", dsn=dsn)
