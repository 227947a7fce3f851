"""A backup has each column of the tables that it holds; one that is new is not forgotten."""

from pathlib import Path
from typing import LiteralString

from millrace.resources.backup.backup import backup
from millrace.resources.backup.restore import restore
from millrace.resources.backup.state_tables import STATE_TABLES
from millrace.resources.errors import MessageDiffers
from millrace.resources.event_store import EventStore
from millrace.resources.producers import ProducerStore
from tests.support.factories import refusal, rows

# what a store finds by itself, and why
LEFT_OUT = {"checkpoints": {"revision"}}


def test_a_backup_has_each_column_of_its_tables(store: EventStore) -> None:
    query: LiteralString = (
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
        " and attgenerated = ''"
    )
    for table, (source, columns) in STATE_TABLES.items():
        known = {name for (name,) in rows(store.connection, query, source)}
        assert known - LEFT_OUT.get(table, set()) == set(columns), table


def test_after_a_restore_another_message_under_an_old_number_is_refused_as_before(
    filled: EventStore, dsn: str, target: str, restored: EventStore, tmp_path: Path
) -> None:
    before = ProducerStore(filled.connection)
    epoch = before.register_producer("readings").epoch
    before.ingest_events("readings", 0, epoch, 0, digest=b"first")
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    after = ProducerStore(restored.connection)
    assert after.ingest_events("readings", 0, epoch, 0, digest=b"first").status == "duplicate"
    refusal(MessageDiffers, lambda: after.ingest_events("readings", 0, epoch, 0, digest=b"other"))
