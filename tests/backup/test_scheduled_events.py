"""Scheduled events after a restore: there, and held back until an operator lets them go."""

from datetime import timedelta
from pathlib import Path

import psycopg

from millrace.backup.backup import backup
from millrace.backup.restore import restore
from millrace.event_store import NewEvent
from millrace.event_store.platform import PlatformStore


def test_a_restored_store_appends_none_until_it_is_resumed(
    orders: PlatformStore, dsn: str, target: str, tmp_path: Path
) -> None:
    orders.append("order", "o-1", NewEvent("placed"))
    orders.schedule("order", "o-1", NewEvent("paid"), name="pay", after=timedelta(0))
    backup(dsn, tmp_path / "saved")
    restore(target, tmp_path / "saved")
    with psycopg.connect(target, autocommit=True) as connection:
        restored = PlatformStore(connection)
        assert restored.scheduled_events("order", "o-1") == orders.scheduled_events("order", "o-1")
        assert restored.fire_scheduled_events().done == 0
        restored.hold_scheduled_events(None, "it is the store now")
        assert restored.fire_scheduled_events().done == 1
        assert [event.event for event in restored.read("order", "o-1")] == ["placed", "paid"]
