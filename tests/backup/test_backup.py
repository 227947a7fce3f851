"""A backup restored into another database gives the same store."""

from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.archive.writer import archive_partition
from millrace.backup.backup import backup
from millrace.backup.manifest import ForeignBackup, read_manifest
from millrace.backup.restore import restore
from millrace.backup.state_tables import STATE_TABLES
from millrace.errors import Conflict
from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.backups import files, tables
from tests.support.factories import append, append_to, assert_log_holds_every_event_once, pump, purge, rows, value
from tests.support.sql_calls import BatchEvent, append_events


def test_a_restore_gives_the_same_store(
    filled: PlatformStore, saved: Path, restored: PlatformStore, target: str
) -> None:
    manifest = read_manifest(saved)
    assert manifest.events == value(filled.connection, "select count(*) from event_store.events")
    assert restore(target, saved).events == manifest.events
    assert tables(restored) == tables(filled)
    ((detail,),) = rows(restored.connection, "select detail from event_store.audit_log where operation = 'restore'")
    assert (detail["events"], detail["taken_at"]) == (manifest.events, manifest.taken_at)
    assert_log_holds_every_event_once(restored.connection)


def test_a_restored_store_goes_on_as_the_first(
    filled: PlatformStore, saved: Path, restored: PlatformStore, target: str
) -> None:
    restore(target, saved)
    results = []
    for store in (filled, restored):
        connection = store.connection
        factories.set_clock(connection, "2100-01-01 00:00:00+00")  # earlier leases have ended
        highest = value(connection, 'select max("offset") from event_store.events')
        tokens = value(connection, "select max(lease_token) from event_store.checkpoints")
        head = store.head("order", "o-1")
        assert head is not None
        appended = append(store, "o-1", head.last_event_id)
        assert appended.offset > highest
        append_to(store, "o-2", "new", "new")
        store.sequence_events()
        assert_log_holds_every_event_once(connection)
        delivered = []
        pump(store, "invoices")
        while batch := store.lease_events("invoices", 5):
            for event in batch:
                delivered.append((event.decider_id, event.event_id if event.offset <= highest else None, event.attempt))
                store.ack_event("invoices", event.decider_id, event.offset, event.lease_token)
            pump(store, "invoices")
        taken = []
        while leases := store.claim_batch("orders", "drain-2", 7):
            assert all(lease.lease_token > tokens for lease in leases)
            taken += [(lease.partition, lease.from_position, lease.to_position) for lease in leases]
            store.commit_batch("orders", leases)
        assert sum(lag.behind for view in ("invoices", "orders") for lag in store.view_lag(view)) == 0
        parked = [(letter.decider_id, letter.last_error, letter.waiting) for letter in store.dead_letters()]
        results.append((sorted(delivered, key=str), taken, parked))
    assert results[0] == results[1]
    assert results[0][2]


def test_odd_values_come_back(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    odd = 'it\'s \\ "ü", \t\n\\.\n\U0001f600'
    store.register_decider_event(odd, odd, "")
    kinds: list[Json] = ["", None, {"": [odd, 10**30, 1.5]}, [], odd]
    append_events(store, (BatchEvent(odd, odd, odd, uuid4(), data, uuid4()) for data in kinds))
    # none of the events fits the schema; a restore does not validate data
    store.register_event_schema(odd, odd, {"type": "object", "required": [odd], "properties": {odd: {"const": odd}}})
    store.register_event_upcast(odd, odd, 2, [{"move": "default", "path": [odd], "value": {odd: 1.5}}])
    store.register_view(odd, "2026-03-02T01:00:00Z", deciders=[odd, "x", "{a,b}", "null"], events=[odd])
    backup(factories.with_odd_settings(dsn), tmp_path)
    restore(factories.with_odd_settings(target), tmp_path)
    assert tables(restored) == tables(store)
    shown = [*restored.read(odd, odd, upcast=True)]
    assert shown == [*store.read(odd, odd, upcast=True)]
    assert {odd: {odd: 1.5}, "": [odd, 10**30, 1.5]} in [event.data for event in shown]


def test_a_second_backup_only_adds(
    filled: PlatformStore, dsn: str, saved: Path, restored: PlatformStore, target: str
) -> None:
    first = read_manifest(saved)
    kept = {path: path.stat().st_mtime_ns for path in saved.glob("log/*/*")}
    again = backup(dsn, saved)
    assert again.files == first.files
    append_to(filled, "o-1", "o-2", "more")
    second = backup(dsn, saved)
    assert set(first.files) < set(second.files)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert files(saved) == {each.path for each in second.entries}
    restore(target, saved)
    assert tables(restored) == tables(filled)


def test_a_snapshot_is_of_a_file(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    factories.register_orders(store)
    append_to(store, *factories.ids_of_one_partition(store.connection, 2) * 5)
    store.sequence_events()
    before = tables(store)
    archive_partition(dsn, tmp_path / "archive", 0, max_events=4, min_events=4, tail=True)
    oldest: list[int] = []

    def purge(_done: int, _total: int) -> None:
        if not oldest:
            ArchiveStore(store.connection).raise_low_water_mark(0, 9)
            ArchiveStore(store.connection).purge_events(0)
        store.connection.execute("select pg_current_xact_id()")
        oldest.append(
            value(
                store.connection,
                "select min(backend_xmin::text::bigint) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()",
            )
        )

    manifest = backup(dsn, tmp_path / "backup", archive=tmp_path / "archive", max_events=3, progress=purge)
    assert manifest.events == 10
    with pytest.raises(ForeignBackup, match="--archive"):
        backup(dsn, tmp_path / "without")
    factories.assert_rising(oldest)
    assert len(oldest) == 4
    restore(target, tmp_path / "backup")
    assert {**tables(restored), "audit_log": None} == {**before, "audit_log": None}


def test_streams_keep_heads(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    factories.register_orders(store)
    ids = factories.ids_of_one_partition(store.connection, 2)
    append_to(store, *ids * 5)
    store.sequence_events()
    purge(store, 0, 10)
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    assert tables(restored) == tables(store)
    head = restored.head("order", ids[0])
    assert head is not None
    with pytest.raises(Conflict):
        append(restored, ids[0])
    assert append(restored, ids[0], head.last_event_id).previous_id == head.last_event_id
    (appended,) = append_to(restored, ids[1])
    assert (appended.previous_id is not None, appended.version) == (True, 6)
    restored.sequence_events()
    assert [event.position for event in restored.read_log(0, 10)] == [10, 11]


def test_views_of_models_do_not_come(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    factories.give_to_read_model(filled.connection, "orders")
    assert backup(dsn, tmp_path).left_out == ("orders",)
    restore(target, tmp_path)
    assert [info.view for info in restored.view_info()] == ["invoices", "parked"]


def test_a_restored_store_takes_backups_of_its_own(saved: Path, target: str) -> None:
    with psycopg.connect(target, autocommit=True) as connection:
        # each database has its own identity; test databases are copies of one
        connection.execute("update event_store.archive set archive_id = gen_random_uuid()")
    restore(target, saved)
    with pytest.raises(ForeignBackup, match="another event store"):
        backup(target, saved)


# Each column of its tables ----------------------------------------------------------------------------------


# columns that a store derives by itself
LEFT_OUT = {"checkpoints": {"revision"}, "stream_locks": {"revision"}, "subject_keys": {"transaction_id"}}


def test_a_backup_has_each_column_of_the_tables_that_a_restore_loads(store: PlatformStore) -> None:
    loaded = value(store.connection, "select event_store_private.restore_tables()::text[]")
    sources = [source for source, _ in STATE_TABLES.values()]
    assert sorted(loaded) == sorted([*sources, "event_store.events", "event_store.event_log"])
    query: LiteralString = (
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
        " and attgenerated = ''"
    )
    for table, (source, columns) in STATE_TABLES.items():
        known = {name for (name,) in rows(store.connection, query, source)}
        assert known - LEFT_OUT.get(table, set()) == set(columns), table
