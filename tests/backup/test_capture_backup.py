"""The state of change capture in a backup, and captures of a restored store."""

from pathlib import Path
from typing import LiteralString

from millrace.backup.backup import backup
from millrace.backup.restore import restore
from millrace.capture.store import CaptureStore, Requeued
from millrace.event_store.platform import PlatformStore
from tests.support.capturing.captures import Source, deleted, events, faulty, held, inserted, source, updated
from tests.support.factories import rows

__all__ = ["source"]

KEPT: tuple[LiteralString, ...] = (
    "select to_jsonb(t) from event_store.source_generations t order by 1",
    "select to_jsonb(t) from event_store.quarantined_changes t order by 1",
    "select to_jsonb(t) from event_store.capture_gaps t order by 1",
)


def test_captures_begin_anew(source: Source, dsn: str, restored: PlatformStore, target: str, tmp_path: Path) -> None:
    source.commit(inserted(1), inserted(2), faulty(2), updated(2, "a,\n\\N \"ü'"), inserted(3))
    source.emit()
    source.begin()
    source.store.record_gap("c", source.lsn, None, "The slot is gone.")
    source.begin()
    backup(dsn, tmp_path)
    restore(target, tmp_path)
    store = CaptureStore(restored.connection)
    for query in KEPT:
        assert rows(restored.connection, query) == rows(source.store.connection, query)
    # the source continues: 1 is deleted, 4 is new
    again = Source(store)
    assert again.lease.source_generation is None
    assert again.begin() == 4
    again.backfill(2, 3, 4)
    again.finish()
    assert [name for key, name in events(store) if key == "[1]"] == ["inserted", "deleted"]
    again.commit(updated(4), deleted(3), faulty(4))
    again.emit()
    assert dict(events(store))["[3]"] == "deleted"
    # numbers continue above the backed-up ones
    assert store.record_gap("c", None, None, "x") > 2
    (first, *_) = store.quarantined_changes("c")
    store.repair_change(first.quarantine_id, "[2]", '{"record": {"id": 2, "v": "repaired"}}')
    assert store.requeue_changes("c") == Requeued(3, 1)
    assert held(store) == [("[4]", "updated", True)]
