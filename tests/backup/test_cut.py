"""A backup is one consistent cut beside concurrent appends, consumers and commits."""

import threading
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

from millrace.backup.backup import backup
from millrace.backup.manifest import read_manifest
from millrace.backup.restore import restore
from millrace.errors import MessageDiffers
from millrace.event_store.platform import PlatformStore
from millrace.producers import ProducerStore
from tests.support import factories
from tests.support.backups import tables
from tests.support.factories import Connect, append_to, assert_dense_and_ordered, register_orders, rows, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent


def test_what_has_no_position_is_not_in_it(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store)
    append_to(store, "o-1", "o-1", "o-2")
    store.sequence_events()
    before = tables(store)
    sequencing = connect(autocommit=False)
    sequencing.execute("select from event_store.sequencer for update")  # a sequencer that does not finish
    append_to(store, "o-1", "o-1", "o-3")
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    assert tables(restored) == before
    head = restored.head("order", "o-1")
    assert head is not None
    assert head.version == 2
    append_to(restored, "o-1")
    restored.sequence_events()
    factories.assert_log_holds_every_event_once(restored.connection)


def test_a_backup_during_appends_is_a_consistent_cut(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store).register_view("v", "-infinity")

    def produce() -> None:
        mine = PlatformStore(connect())
        for n in range(60):
            append_to(mine, *[f"o-{n * k % 7}" for k in range(5)])
            mine.sequence_events()

    def consume() -> None:
        mine = PlatformStore(connect())
        for _ in range(60):
            factories.pump(mine, "v")
            for event in mine.lease_events("v", 3):
                mine.ack_event("v", event.decider_id, event.offset, event.lease_token)

    def save() -> None:
        for _ in range(4):
            backup(dsn, tmp_path, max_events=10)

    for result in factories.at_once([produce, produce, consume, save]):
        result.result()
    restore(target, tmp_path)  # the last step of a restore checks that marks, events, streams and positions fit
    assert_dense_and_ordered(factories.read_log(restored.connection))
    for view_position, mark in rows(
        restored.connection,
        "select c.position, p.high_water_mark from event_store.checkpoints c join event_store.partitions p using (partition)",
    ):
        assert view_position <= mark


def test_what_a_backup_calls_done_is_whole(
    store: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path, connect: Connect
) -> None:
    register_orders(store)
    first, *later = (tmp_path / str(n) for n in range(4))
    sent: list[int] = []
    done = threading.Event()

    def produce(partition: int) -> None:
        mine = ProducerStore(connect())
        mine.register_producer("p", partition)
        while not done.is_set():
            events = [BatchEvent("order", f"p-{partition}", "placed", uuid4(), {}, uuid4())]
            sent.append(
                mine.ingest_events(
                    "p", partition, 1, len(sent), [each.alone for each in events], {"n": len(sent)}
                ).next_sequence
            )

    def sequence() -> None:
        mine = PlatformStore(connect())
        while not done.is_set():
            mine.sequence_events()

    running = [start(lambda: produce(0)), start(sequence)]
    wait_until(lambda: len(sent) > 20, "some messages are sent")
    for folder in (first, *later):
        backup(dsn, folder)
    done.set()
    for each in running:
        each.result(patience())
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


def test_a_duplicate_is_known(
    filled: PlatformStore, dsn: str, restored: PlatformStore, target: str, tmp_path: Path
) -> None:
    before = ProducerStore(filled.connection)
    readings = before.register_producer("readings").epoch
    before.ingest_events("readings", 0, readings, 0, digest=b"first")
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    query = "select transaction_id from event_store.producer_results order by sequence"
    assert rows(restored.connection, query) == rows(filled.connection, query)
    store = ProducerStore(restored.connection)
    assert store.begin_transaction("orders.csv", 0, 1, 0).result == {"total": 7}
    assert store.begin_transaction("orders.csv", 0, 1, 1).outcome == "abandoned"
    # the backup has no open transaction
    assert rows(restored.connection, "select from event_store.transactions") == []
    registered = store.register_producer("orders.csv")
    assert (registered.epoch, registered.next_sequence) == (2, 2)
    assert store.ingest_events("orders.csv", 0, 2, 2, state={"total": 9}).status == "committed"
    # a different message under a used number is refused as before
    assert store.ingest_events("readings", 0, readings, 0, digest=b"first").status == "duplicate"
    factories.refusal(MessageDiffers, lambda: store.ingest_events("readings", 0, readings, 0, digest=b"other"))


def test_a_backup_waits_for_a_message(filled: PlatformStore, dsn: str, tmp_path: Path, connect: Connect) -> None:
    open_ = ProducerStore(connect(autocommit=False))
    open_.register_producer("open")
    event = BatchEvent("order", "open", "placed", uuid4(), {}, uuid4())
    open_.ingest_events("open", 0, 1, 0, [event.alone])
    taken = start(lambda: backup(dsn, tmp_path))
    query: LiteralString = (
        "select count(*) from pg_locks where relation = 'event_store.producer_progress'::regclass and not granted"
    )
    wait_until(lambda: value(filled.connection, query) == 1, "the backup waits")
    open_.connection.commit()
    assert taken.result(patience()).events == value(filled.connection, "select count(*) from event_store.events")
