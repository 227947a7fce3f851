"""Backups and restores that are refused, damaged or disturbed, and the stores left alone."""

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from millrace.resources.backup.backup import LOCK, Busy, backup
from millrace.resources.backup.manifest import MANIFEST, ForeignBackup, NoBackup
from millrace.resources.backup.restore import restore
from millrace.resources.errors import BackupDamaged, NotEmpty, SchemaMismatch
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.processes import only_one
from tests.support.backups import tables
from tests.support.factories import append, append_to, refusal, register_orders


def test_a_store_that_holds_anything_is_refused_and_left_alone(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    backup(dsn, tmp_path)
    before = tables(filled)
    refused = refusal(NotEmpty, lambda: restore(dsn, tmp_path))
    assert "; events has 40 rows" in str(refused.detail)
    assert tables(filled) == before
    restored.register_view("v")
    refused = refusal(NotEmpty, lambda: restore(target, tmp_path))
    assert "views has 1 rows" in str(refused.detail)


def test_another_number_of_log_partitions_is_refused(
    filled: EventStore, dsn: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    assert filled
    backup(dsn, tmp_path)
    postgres.create_database("eight")
    migrate(postgres.dsn("eight"), log_partitions=8)
    with pytest.raises(SchemaMismatch, match="has 8 log partitions, not 16"):
        restore(postgres.dsn("eight"), tmp_path)


def test_a_database_without_a_store_is_migrated_first(
    filled: EventStore, dsn: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    backup(dsn, tmp_path)
    postgres.create_database("brand_new")
    restore(postgres.dsn("brand_new"), tmp_path)
    with psycopg.connect(postgres.dsn("brand_new")) as connection:
        assert tables(EventStore(connection)) == tables(filled)


def test_a_flipped_byte_is_found_and_named_and_nothing_is_restored(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    assert filled
    backup(dsn, tmp_path)
    for kind in ("log/*/*.parquet", "state/*/deciders.parquet", MANIFEST):
        (path, *_) = sorted(tmp_path.glob(kind))
        content = path.read_bytes()
        for position in (0, len(content) // 2, len(content) - 5):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            with pytest.raises(BackupDamaged, match=re.escape(str(path))):
                restore(target, tmp_path)
        path.unlink()
        with pytest.raises((BackupDamaged, NoBackup)):
            restore(target, tmp_path)
        path.write_bytes(content)
    assert tables(restored)["events"] == []
    assert restore(target, tmp_path).events == 40


def test_a_folder_without_a_backup_or_with_something_else_is_refused(dsn: str, target: str, tmp_path: Path) -> None:
    refusal(NoBackup, lambda: restore(target, tmp_path / "nowhere"))
    (tmp_path / "photo.jpg").touch()
    assert "photo.jpg" in str(refusal(ForeignBackup, lambda: backup(dsn, tmp_path)).detail)


def test_two_backups_into_one_folder_at_once_are_not_taken(dsn: str, tmp_path: Path) -> None:
    with only_one(tmp_path / LOCK), pytest.raises(Busy):
        backup(dsn, tmp_path)


def test_a_store_that_is_behind_the_backup_is_not_added_to_it(
    filled: EventStore, dsn: str, target: str, tmp_path: Path
) -> None:
    assert filled
    backup(dsn, tmp_path)  # both have the identity of the template
    refused = refusal(ForeignBackup, lambda: backup(target, tmp_path))
    assert "the store 0" in str(refused.detail)


def test_a_store_that_was_set_back_and_went_on_otherwise_is_not_added_to_the_backup(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    for each in (store, restored):  # both have the identity of the template
        append(register_orders(each), "a")
    backup(dsn, tmp_path)
    append(restored, "a", restored.get_events("a", "order")[-1].event_id)
    refused = refusal(ForeignBackup, lambda: backup(target, tmp_path))
    (event,) = store.get_events("a", "order")
    assert f"is event {event.event_id} there" in str(refused.detail)
    append(store, "a", event.event_id)
    assert sum(p.high_water_mark for p in backup(dsn, tmp_path).partitions) == 2


def test_a_restore_is_not_disturbed_by_a_backup_that_ends_meanwhile_in_the_same_folder(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backup(dsn, tmp_path)
    before = tables(filled)

    def migrate_while_a_backup_is_taken(dsn_of_target: str, *, log_partitions: int) -> object:
        append_to(filled, "o-1", "o-2", "more")
        backup(dsn, tmp_path)
        return migrate(dsn_of_target, log_partitions=log_partitions)

    monkeypatch.setattr("millrace.resources.backup.restore.migrate", migrate_while_a_backup_is_taken)
    assert restore(target, tmp_path).events == first.events
    assert tables(restored) == before
    # what nobody reads any more goes with the next one
    last = backup(dsn, tmp_path)
    assert last.events == first.events + 3
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in last.entries
    }


def test_a_copy_of_a_backup_that_nothing_can_be_written_to_is_restored(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    backup(dsn, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns(".*"))
    restore(target, tmp_path / "b")
    assert tables(restored) == tables(filled)
    assert not [path for path in (tmp_path / "b").iterdir() if path.name.startswith(".")]
