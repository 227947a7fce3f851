"""Backup and restore: the same store in another database, whatever happens on the way."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from millrace.resources.archive.store import ArchiveStore
from millrace.resources.archive.writer import archive_partition
from millrace.resources.backup.backup import STATE_TABLES, Busy, ForeignBackup, _only_one, backup
from millrace.resources.backup.manifest import MANIFEST, Manifest, NoBackup, read_manifest
from millrace.resources.backup.restore import restore
from millrace.resources.backup.store import BackupStore
from millrace.resources.errors import BackupDamaged, Malformed, NotEmpty, SchemaMismatch
from millrace.resources.event_store import EventStore, Json, NewEvent
from millrace.resources.event_store.migrations import migrate
from millrace.resources.postgres.embedded import EmbeddedPostgres
from millrace.resources.producers import ProducerStore
from millrace.resources.settings import PROJECT
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_dense_and_ordered,
    assert_log_holds_every_event_once,
    at_once,
    give_to_read_model,
    ids_of_one_partition,
    pump,
    read_log,
    refusal,
    register_orders,
    rows,
    set_clock,
    start,
    value,
    wait_until,
)
from tests.support.filled_store import fill


@pytest.fixture
def target(postgres: EmbeddedPostgres, spares: Callable[[], str]) -> Iterator[str]:
    """Another store, empty."""
    name = spares()
    yield postgres.dsn(name)
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def restored(target: str) -> Iterator[EventStore]:
    with psycopg.connect(target, autocommit=True) as connection:
        yield EventStore(connection)


@pytest.fixture
def filled(store: EventStore) -> EventStore:
    """Events, some unsequenced; views of both modes with leases and locks in all states, a dead letter, an audit log."""
    fill(store.connection)
    store.register_view("parked", "-infinity", max_attempts=1)
    pump(store, "parked")
    (event, *_) = store.lease_events("parked", 1)
    store.fail_event("parked", event.decider_id, event.offset, 'no "customer",\n\\. \\N ü', event.lease_token)
    store.retry_dead_letters("parked", reason="")
    (event, *_) = store.lease_events("parked", 1)
    store.fail_event("parked", event.decider_id, event.offset, "again", event.lease_token)
    store.enable_view("parked", enabled=False)
    set_clock(store.connection, "")
    return store


def tables(store: EventStore) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table that a backup keeps, but what is another in another cluster."""
    found = {}
    for table in (*STATE_TABLES, "events", "event_log", "partitions"):
        query = sql.SQL("select to_jsonb(t) - %s::text[] from {} t").format(sql.Identifier("event_store", table))
        passing = ["transaction_id", "lease_pid", "archived_position"]
        loaded = [row for (row,) in store.connection.execute(query, (passing,))]
        found[table] = sorted(loaded, key=lambda row: json.dumps(row, sort_keys=True))
    found["audit_log"] = [row for row in found["audit_log"] if row["operation"] != "restore"]
    return found


def sequenced(store: EventStore) -> EventStore:
    store.sequence_events()
    return store


# B12


def test_a_backup_restored_into_an_empty_store_gives_the_same_events_offsets_streams_and_checkpoints(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    manifest = backup(dsn, tmp_path)
    assert manifest.events == value(filled.connection, "select count(*) from event_store.events")
    report = restore(target, tmp_path)
    assert report.events == manifest.events
    assert tables(restored) == tables(filled)
    ((detail,),) = rows(restored.connection, "select detail from event_store.audit_log where operation = 'restore'")
    assert (detail["events"], detail["taken_at"]) == (manifest.events, manifest.taken_at)
    assert_log_holds_every_event_once(restored.connection)


def test_after_a_restore_appends_continue_chains_and_views_consume_exactly_what_was_left(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    results = []
    for store in (filled, restored):
        connection = store.connection
        set_clock(connection, "2100-01-01 00:00:00+00")  # leases of before have ended
        highest = value(connection, 'select max("offset") from event_store.events')
        tokens = value(connection, "select max(lease_token) from event_store.checkpoints")
        head = store.stream_head("o-1", "order")
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
        assert sum(lag.lag for view in ("invoices", "orders") for lag in store.view_lag(view)) == 0
        parked = [(letter.decider_id, letter.last_error, letter.waiting) for letter in store.dead_letters()]
        results.append((sorted(delivered, key=str), taken, parked))
    assert results[0] == results[1]
    assert results[0][2]


def test_values_of_every_kind_come_back(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    odd = 'it\'s \\ "ü", \t\n\\.\n\U0001f600'
    store.register_decider_event(odd, odd, "")
    kinds: list[Json] = ["", None, {"": [odd, 10**30, 1.5]}, [], odd]
    store.append_events(NewEvent(odd, odd, odd, uuid4(), data, uuid4()) for data in kinds)
    store.connection.execute("set timezone = 'Asia/Kathmandu'")
    store.register_view(odd, "-infinity", deciders=[odd, "x", "{a,b}", "null"], events=[odd])
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    store.connection.execute("reset timezone")
    assert tables(restored) == tables(store)


def test_events_that_have_no_partition_offset_yet_are_not_in_it_and_heads_are_those_of_the_log(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store)
    append_to(store, "o-1", "o-1", "o-2")
    sequenced(store)
    before = tables(store)
    sequencing = connect(autocommit=False)
    sequencing.execute("select from event_store.sequencer for update")  # somebody is at it, and does not get on
    append_to(store, "o-1", "o-1", "o-3")
    heads = {(head.decider_id, head.version) for head in BackupStore(store.connection).sequenced_streams()}
    assert heads == {("o-1", 2), ("o-2", 1)}
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    assert tables(restored) == before
    (head,) = [restored.stream_head("o-1", "order")]
    assert head is not None
    assert head.version == 2
    append_to(restored, "o-1")
    restored.sequence_events()
    assert_log_holds_every_event_once(restored.connection)


def test_a_backup_during_appends_is_a_consistent_cut(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store).register_view("v", "-infinity")

    def produce() -> None:
        mine = EventStore(connect())
        for n in range(60):
            append_to(mine, *[f"o-{n * k % 7}" for k in range(5)])
            mine.sequence_events()

    def consume() -> None:
        mine = EventStore(connect())
        for _ in range(60):
            pump(mine, "v")
            for event in mine.lease_events("v", 3):
                mine.ack_event("v", event.decider_id, event.offset, event.lease_token)

    def save() -> None:
        for _ in range(4):
            backup(dsn, tmp_path, max_events=10)

    for result in at_once([produce, produce, consume, save]):
        result.result()
    restore(target, tmp_path)  # whose last step checks that marks, events, streams and positions fit each other
    assert_dense_and_ordered(read_log(restored.connection))
    for view_position, mark in rows(
        restored.connection,
        "select c.position, p.high_water_mark from event_store.checkpoints c join event_store.partitions p using (partition)",
    ):
        assert view_position <= mark


def test_a_backup_while_producers_commit_has_the_events_of_each_message_that_it_calls_done(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store)
    first, *later = (tmp_path / str(n) for n in range(6))
    sent: list[int] = []
    done = threading.Event()

    def produce(partition: int) -> None:
        mine = ProducerStore(connect())
        mine.register_producer("p", partition)
        while not done.is_set():
            events = [NewEvent("order", f"p-{partition}", "placed", uuid4(), {}, uuid4())]
            sent.append(mine.ingest_events("p", partition, 1, len(sent), events, {"n": len(sent)}).next_sequence)

    def sequence() -> None:
        mine = EventStore(connect())
        while not done.is_set():
            mine.sequence_events()

    running = [start(lambda: produce(0)), start(sequence)]
    wait_until(lambda: len(sent) > 20, "some messages are sent")
    for folder in (first, *later):
        backup(dsn, folder)
    done.set()
    for each in running:
        each.result(20)
    last = later[-1]
    restore(target, last)
    kept = ProducerStore(restored.connection)
    ((statistics),) = kept.producer_statistics()
    assert 20 < statistics.next_sequence <= len(sent)
    assert statistics.committed == statistics.next_sequence
    assert value(restored.connection, "select count(*) from event_store.events") == statistics.committed
    assert value(restored.connection, "select count(*) from event_store.producer_results") == statistics.committed
    assert [entry.value for entry in kept.get_producer_state("p", 0)] == [statistics.committed - 1]
    for folder in (first, *later):
        manifest = read_manifest(folder)
        (results,) = [table.rows for table in manifest.tables if table.table == "producer_results"]
        assert manifest.events == results


def test_after_a_restore_a_duplicate_gets_its_original_answer_and_the_producer_goes_on(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    query = "select transaction_id from event_store.producer_results order by sequence"
    assert rows(restored.connection, query) == rows(filled.connection, query)
    store = ProducerStore(restored.connection)
    assert store.begin_transaction("orders.csv", 0, 1, 0).result == {"total": 7}
    assert store.begin_transaction("orders.csv", 0, 1, 1).outcome == "abandoned"
    # what was open is not in it
    assert rows(restored.connection, "select from event_store.transactions") == []
    registered = store.register_producer("orders.csv")
    assert (registered.epoch, registered.next_sequence) == (2, 2)
    assert store.ingest_events("orders.csv", 0, 2, 2, state={"total": 9}).status == "committed"


def test_a_backup_waits_until_a_message_that_is_being_done_is_done(
    filled: EventStore, dsn: str, tmp_path: Path, connect: Connect
) -> None:
    open_ = ProducerStore(connect(autocommit=False))
    open_.register_producer("open")
    event = NewEvent("order", "open", "placed", uuid4(), {}, uuid4())
    open_.ingest_events("open", 0, 1, 0, [event])
    taken = start(lambda: backup(dsn, tmp_path))
    query: LiteralString = (
        "select count(*) from pg_locks where relation = 'event_store.producers'::regclass and not granted"
    )
    wait_until(lambda: value(filled.connection, query) == 1, "the backup waits")
    open_.connection.commit()
    assert taken.result(20).events == value(filled.connection, "select count(*) from event_store.events")


def test_a_second_backup_into_the_same_folder_only_adds(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    first = backup(dsn, tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("log/*/*")}
    again = backup(dsn, tmp_path)
    assert again.files == first.files
    append_to(filled, "o-1", "o-2", "more")
    second = backup(dsn, tmp_path)
    assert set(first.files) < set(second.files)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in second.entries
    }
    restore(target, tmp_path)
    assert tables(restored) == tables(filled)


def test_purged_events_come_from_the_archive_and_their_streams_go_on(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    register_orders(store)
    ids = ids_of_one_partition(store.connection, 2)
    append_to(store, *ids * 5)
    sequenced(store)
    before = tables(store)
    archive_partition(dsn, tmp_path / "archive", 0, max_events=4, min_events=4, tail=True)
    ArchiveStore(store.connection).raise_low_water_mark(0, 9)
    ArchiveStore(store.connection).purge_events(0)
    with pytest.raises(ForeignBackup, match="--archive"):
        backup(dsn, tmp_path / "backup")
    backup(dsn, tmp_path / "backup", archive=tmp_path / "archive", max_events=3)
    restore(target, tmp_path / "backup")
    assert {**tables(restored), "audit_log": None} == {**before, "audit_log": None}


def test_what_was_purged_without_an_archive_stays_away_and_streams_keep_their_heads(
    store: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    register_orders(store)
    ids = ids_of_one_partition(store.connection, 2)
    append_to(store, *ids * 5)
    sequenced(store)
    ArchiveStore(store.connection).mark_archived(0, 10)
    ArchiveStore(store.connection).raise_low_water_mark(0, 10)
    ArchiveStore(store.connection).purge_events(0)
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    assert tables(restored) == tables(store)
    (appended,) = append_to(restored, ids[0])
    assert appended.previous_id is not None
    restored.sequence_events()
    assert [event.position for event in restored.read_log(0, 10)] == [10]


def test_views_of_read_models_are_left_out_because_they_are_built_anew(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    give_to_read_model(filled.connection, "orders")
    assert backup(dsn, tmp_path).left_out == ("orders",)
    restore(target, tmp_path)
    assert [info.view for info in restored.view_info()] == ["invoices", "parked"]


def test_a_restored_store_takes_backups_of_its_own(filled: EventStore, dsn: str, target: str, tmp_path: Path) -> None:
    assert filled
    backup(dsn, tmp_path)
    with psycopg.connect(target, autocommit=True) as connection:
        # each database has an identity of its own; those of tests are copies of one
        connection.execute("update event_store.archive set archive_id = gen_random_uuid()")
    restore(target, tmp_path)
    with pytest.raises(ForeignBackup, match="another event store"):
        backup(target, tmp_path)


# Refused


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


@pytest.mark.parametrize("kind", ["log/*/*.parquet", "state/*/streams.parquet", MANIFEST])
def test_a_flipped_byte_is_found_and_named_and_nothing_is_restored(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, kind: str
) -> None:
    assert filled
    backup(dsn, tmp_path)
    (path, *_) = sorted(tmp_path.glob(kind))
    content = path.read_bytes()
    for position in (0, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(BackupDamaged, match=re.escape(str(path))):
            restore(target, tmp_path)
    path.unlink()
    with pytest.raises((BackupDamaged, NoBackup)):
        restore(target, tmp_path)
    assert tables(restored)["events"] == []
    path.write_bytes(content)
    assert restore(target, tmp_path).events == 40


def test_a_folder_without_a_backup_or_with_something_else_is_refused(dsn: str, target: str, tmp_path: Path) -> None:
    refusal(NoBackup, lambda: restore(target, tmp_path / "nowhere"))
    (tmp_path / "photo.jpg").touch()
    assert "photo.jpg" in str(refusal(ForeignBackup, lambda: backup(dsn, tmp_path)).detail)


def test_two_backups_into_one_folder_at_once_are_not_taken(dsn: str, tmp_path: Path) -> None:
    with _only_one(tmp_path), pytest.raises(Busy):
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


# Killed

BACKUP_KILLED_AT = {
    "after the tables": "backup._write_log = die",
    "within the log": "backup.write_file = second(backup.write_file)",
    "before the manifest": "backup.write_manifest = die",
    "after the manifest": "backup._sweep = die",
}
RESTORE_KILLED_AT = {
    "after it began": "restore._load_log = die",
    "within the log": "restore._copy = second(restore._copy, 9)",
    "before it is finished": "BackupStore.finish_restore = die",
    "before the commit": "BackupStore.finish_restore = after(BackupStore.finish_restore)",
}


def killed(point: str, call: str) -> None:
    """Do it in a process that kills itself at a point."""
    program = f"""
import os, signal
from pathlib import Path
from millrace.resources.backup import backup
from millrace.resources.backup import restore
from millrace.resources.backup.store import BackupStore
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def second(work, number=2):
    calls = []
    def wrapped(*a, **k):
        calls.append(1)
        return die() if len(calls) == number else work(*a, **k)
    return wrapped
def after(work):
    def wrapped(*a, **k):
        work(*a, **k)
        die()
    return wrapped
{point}
{call}
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", BACKUP_KILLED_AT)
def test_a_backup_killed_anywhere_leaves_the_one_before_or_itself_whole_and_the_next_goes_on(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, point: str
) -> None:
    call = f"backup.backup({dsn!r}, Path({str(tmp_path)!r}))"
    killed(BACKUP_KILLED_AT[point], call)
    finished = point == "after the manifest"
    if not finished:
        refusal(NoBackup, lambda: read_manifest(tmp_path))
    first = backup(dsn, tmp_path)
    before = tables(filled)
    append_to(filled, "o-1", "o-2", "more")
    killed(BACKUP_KILLED_AT[point], call)
    assert read_manifest(tmp_path).events == first.events + 3 * finished
    restore(target, tmp_path)
    filled.sequence_events()
    assert tables(restored) == (tables(filled) if finished else before)
    last: Manifest = backup(dsn, tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in last.entries
    }


@pytest.mark.parametrize("point", RESTORE_KILLED_AT)
def test_a_restore_killed_anywhere_leaves_an_empty_store_and_the_next_does_it_all(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path, point: str
) -> None:
    backup(dsn, tmp_path)
    killed(RESTORE_KILLED_AT[point], f"restore.restore({target!r}, Path({str(tmp_path)!r}))")
    empty = tables(restored)
    assert {table: len(found) for table, found in empty.items()} == {**dict.fromkeys(empty, 0), "partitions": 16}
    restore(target, tmp_path)
    assert tables(restored) == tables(filled)


# The functions


def test_what_is_loaded_must_be_whole_and_nothing_stays_of_what_is_not(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    assert filled
    manifest = backup(dsn, tmp_path)
    marks = (
        [each.partition for each in manifest.partitions],
        [each.earliest_position for each in manifest.partitions],
        [each.high_water_mark for each in manifest.partitions],
    )

    def nothing_between(partition: list[int], earliest_position: list[int], high_water_mark: list[int]) -> None:
        with restored.connection.transaction():
            BackupStore(restored.connection).begin_restore()
            BackupStore(restored.connection).finish_restore(partition, earliest_position, high_water_mark, 1, 1, {})

    assert "holds 0 events" in str(refusal(BackupDamaged, lambda: nothing_between(*marks)).detail)
    refused = refusal(BackupDamaged, lambda: nothing_between([0], [0], [0]))
    assert "1 log partitions are stated, of 16" in str(refused.detail)
    assert restored.partition_info()[0].high_water_mark == 0
    refusal(Malformed, lambda: BackupStore(restored.connection).finish_restore([0], [0], [0], 1, 1, {}))
    restore(target, tmp_path)


def test_a_backup_that_has_a_column_which_the_store_has_not_is_refused_as_one_of_another_version(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    assert filled
    backup(dsn, tmp_path)
    restored.connection.execute("alter table event_store.audit_log drop column reason")
    refused = refusal(SchemaMismatch, lambda: restore(target, tmp_path))
    assert 'column "reason" of relation "audit_log" does not exist' in str(refused.detail)
    assert restored.view_info() == []


def test_an_owner_backs_up_and_restores_and_has_no_right_to_the_tables_afterwards(
    filled: EventStore, dsn: str, restored: EventStore, target: str, tmp_path: Path
) -> None:
    user = f"user_{uuid4().hex}"
    filled.connection.execute(f"create role {user} login in role event_store_owner".encode())
    try:
        backup(dsn.replace("postgres@", f"{user}@"), tmp_path)
        restore(target.replace("postgres@", f"{user}@"), tmp_path)
        assert tables(restored) == tables(filled)
        query = "select has_table_privilege(%s, 'event_store.events', 'insert')"
        assert value(restored.connection, query, user) is False
        assert (
            value(restored.connection, "select done_by from event_store.audit_log order by audit_id desc limit 1")
            == user
        )
    finally:
        filled.connection.execute(f"drop role {user}".encode())


def test_a_restore_that_was_begun_by_hand_and_is_not_finished_cannot_be_committed_and_leaves_no_right_to_the_tables(
    filled: EventStore, restored: EventStore, target: str
) -> None:
    user = f"user_{uuid4().hex}"
    filled.connection.execute(f"create role {user} login in role event_store_owner".encode())
    insert: LiteralString = "insert into event_store.deciders values ('order', 'placed', 1, '')"
    try:
        with psycopg.connect(target, user=user) as owner:
            BackupStore(owner).begin_restore()
            owner.execute(insert)
            with pytest.raises(psycopg.Error, match="a restore has begun and is not finished") as refused:
                owner.commit()
            assert refused.value.sqlstate == "MR005"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(insert)
            owner.rollback()
            # whatever is rolled back to, and whenever it is checked
            owner.execute("savepoint before")
            BackupStore(owner).begin_restore()
            owner.execute("rollback to before")
            owner.commit()
            BackupStore(owner).begin_restore()
            with pytest.raises(psycopg.Error, match="not finished"):
                owner.execute("set constraints all immediate")
            owner.rollback()
        assert tables(restored)["deciders"] == []
        for (table,) in rows(restored.connection, "select unnest(event_store_private.restore_tables())::text"):
            assert value(restored.connection, "select has_table_privilege(%s, %s, 'insert')", user, table) is False
    finally:
        filled.connection.execute(f"drop role {user}".encode())


def test_a_restore_that_sequences_what_it_loaded_cannot_be_committed_either(restored: EventStore, target: str) -> None:
    # an event of a transaction that is over, as sequencers take them
    before = value(restored.connection, "select pg_current_xact_id()::text")
    with psycopg.connect(target) as owner:
        BackupStore(owner).begin_restore()
        owner.execute("insert into event_store.deciders values ('order', 'placed', 1, '')")
        owner.execute(
            "insert into event_store.events"
            ' (event, event_id, event_version, decider, decider_id, data, command_id, final, created_at, "offset", transaction_id)'
            " select 'placed', u, 1, 'order', 'o-1', '{}', u, false, now(), 1, %s::xid8 from gen_random_uuid() u",
            (before,),
        )
        assert EventStore(owner).sequence_events() == 0
        with pytest.raises(psycopg.Error, match="a restore has begun and is not finished"):
            owner.commit()
    assert tables(restored)["events"] == []


def test_while_a_restore_runs_nobody_else_appends(restored: EventStore, target: str) -> None:
    restored.connection.execute("set lock_timeout = '100ms'")
    with psycopg.connect(target) as other:
        BackupStore(other).begin_restore()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            register_orders(restored)
        assert restored.sequence_events() == 0
        other.rollback()
    append(register_orders(restored))
