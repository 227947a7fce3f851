"""Backups and restores that are refused, damaged or disturbed, and the stores left alone."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from millrace.backup.backup import LOCK, Busy, backup
from millrace.backup.manifest import MANIFEST, ForeignBackup, NoBackup, read_manifest
from millrace.backup.restore import restore
from millrace.errors import BackupDamaged, NotEmpty, SchemaMismatch
from millrace.event_store.migrations import migrate
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from millrace.processes import only_one
from tests.support.backups import files, tables
from tests.support.factories import append, append_to, refusal, register_orders
from tests.support.sql_calls import get_events


def test_a_store_that_holds_anything_is_left_alone(
    filled: PlatformStore, dsn: str, saved: Path, restored: PlatformStore, target: str
) -> None:
    before = tables(filled)
    assert "; events has 40 rows" in str(refusal(NotEmpty, lambda: restore(dsn, saved)).detail)
    assert tables(filled) == before
    restored.register_view("v")
    assert "views has 1 rows" in str(refusal(NotEmpty, lambda: restore(target, saved)).detail)


def test_another_number_of_log_partitions_is_refused(saved: Path, postgres: EmbeddedPostgres) -> None:
    postgres.create_database("eight")
    migrate(postgres.dsn("eight"), log_partitions=8)
    with pytest.raises(SchemaMismatch, match="has 8 log partitions, not 16"):
        restore(postgres.dsn("eight"), saved)


def test_a_database_without_a_store_is_migrated_first(
    filled: PlatformStore, saved: Path, postgres: EmbeddedPostgres
) -> None:
    postgres.create_database("brand_new")
    restore(postgres.dsn("brand_new"), saved)
    with psycopg.connect(postgres.dsn("brand_new")) as connection:
        assert tables(PlatformStore(connection)) == tables(filled)


def test_a_flipped_byte_is_named_and_nothing_is_restored(saved: Path, restored: PlatformStore, target: str) -> None:
    for kind in ("log/*/*.parquet", "state/*/deciders.parquet", MANIFEST):
        (path, *_) = sorted(saved.glob(kind))
        content = path.read_bytes()
        for position in (0, len(content) // 2, len(content) - 5):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            with pytest.raises(BackupDamaged, match=re.escape(str(path))):
                restore(target, saved)
        path.unlink()
        with pytest.raises((BackupDamaged, NoBackup)):
            restore(target, saved)
        path.write_bytes(content)
    assert tables(restored)["events"] == []
    assert restore(target, saved).events == 40


def test_a_folder_without_a_backup_or_with_something_else_is_refused(dsn: str, target: str, tmp_path: Path) -> None:
    refusal(NoBackup, lambda: restore(target, tmp_path / "nowhere"))
    (tmp_path / "photo.jpg").touch()
    assert "photo.jpg" in str(refusal(ForeignBackup, lambda: backup(dsn, tmp_path)).detail)


def test_two_backups_into_one_folder_at_once_are_not_taken(dsn: str, tmp_path: Path) -> None:
    with only_one(tmp_path / LOCK), pytest.raises(Busy):
        backup(dsn, tmp_path)


def test_a_store_that_is_behind_the_backup_is_not_added(saved: Path, target: str) -> None:
    # both have the identity of the template
    assert "the store 0" in str(refusal(ForeignBackup, lambda: backup(target, saved)).detail)


def test_another_past_is_refused(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    for each in (store, restored):  # both have the identity of the template
        append(register_orders(each), "a")
    backup(dsn, tmp_path)
    append(restored, "a", get_events(restored, "a", "order")[-1].event_id)
    refused = refusal(ForeignBackup, lambda: backup(target, tmp_path))
    (event,) = get_events(store, "a", "order")
    assert f"is event {event.event_id} there" in str(refused.detail)
    append(store, "a", event.event_id)
    assert sum(p.high_water_mark for p in backup(dsn, tmp_path).partitions) == 2


def test_a_backup_that_ends_meanwhile_disturbs_no_restore(
    filled: PlatformStore, dsn: str, saved: Path, restored: PlatformStore, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_manifest(saved)
    before = tables(filled)

    def migrate_while_a_backup_is_taken(dsn_of_target: str, *, log_partitions: int) -> object:
        append_to(filled, "o-1", "o-2", "more")
        backup(dsn, saved)
        return migrate(dsn_of_target, log_partitions=log_partitions)

    monkeypatch.setattr("millrace.backup.restore.migrate", migrate_while_a_backup_is_taken)
    assert restore(target, saved).events == first.events
    assert tables(restored) == before
    # the next backup removes the files that no backup reads any more
    last = backup(dsn, saved)
    assert last.events == first.events + 3
    assert files(saved) == {each.path for each in last.entries}


def test_a_copy_that_is_only_read_is_restored(
    filled: PlatformStore, saved: Path, restored: PlatformStore, target: str
) -> None:
    copy = saved.with_name("copy")
    shutil.copytree(saved, copy, ignore=shutil.ignore_patterns(".*"))
    restore(target, copy)
    assert tables(restored) == tables(filled)
    assert not list(copy.glob(".*"))
