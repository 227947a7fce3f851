"""A capture that is killed between its steps, or whose slot gives changes again: nothing is missing, nothing twice.

Not here: kills at random moments (test_kills).
"""

import pytest

from millrace.resources.capture import drain as pipeline
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import ChangesDiffer
from tests.support.capturing.captured import Captured, captured, did, killed_at, new_source
from tests.support.factories import value

__all__ = ["captured", "new_source"]


def test_killed_between_storing_and_advancing_the_slot_nothing_is_missing_and_nothing_twice(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    captured.source.run("insert into items values (1), (2)")
    killed_at(captured, monkeypatch, pipeline, "advance")
    assert value(captured.store, "select count(*) from event_store.wal_events") == 2
    report = captured.drain()
    assert (report.stored, report.replayed) == (0, 2)
    # some perhaps before the kill
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]")]


def test_killed_before_storing_everything_is_stored_once_the_next_time(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.drain()
    captured.source.run("insert into items values (1), (2)")
    killed_at(captured, monkeypatch, CaptureStore, "store_changes")
    assert value(captured.store, "select count(*) from event_store.wal_events") == 0
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (2, 0, 2)


def test_a_slot_from_an_earlier_position_stores_nothing_anew_and_changes_nothing(captured: Captured) -> None:
    captured.drain()
    name = value(captured.store, "select slot from event_store.captures")
    # a copy of the slot stays where it was
    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (name,))
    captured.source.run("insert into items values (1), (2)", "delete from items where id = 1")
    captured.drain()
    before = captured.changes()
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (name,))
    captured.source.connection.execute("select pg_copy_logical_replication_slot('rewound', %s)", (name,))
    captured.source.connection.execute("select pg_drop_replication_slot('rewound')")
    report = captured.drain()
    assert (report.stored, report.replayed, report.emitted) == (0, 3, 0)
    assert captured.changes() == before
    captured.source.run("insert into items values (3)")
    assert captured.drain().stored == 1


def test_a_slot_that_gives_the_same_position_another_content_raises_an_alarm(captured: Captured) -> None:
    captured.drain()
    name = value(captured.store, "select slot from event_store.captures")
    captured.source.connection.execute("select pg_copy_logical_replication_slot(%s, 'rewound')", (name,))
    captured.source.run("insert into items values (1, 'as it was')")
    captured.drain()
    captured.store.execute("update event_store.wal_events set data = jsonb_set(data, '{record,name}', '\"forged\"')")
    captured.source.connection.execute("select pg_drop_replication_slot(%s)", (name,))
    captured.source.connection.execute("select pg_copy_logical_replication_slot('rewound', %s)", (name,))
    captured.source.connection.execute("select pg_drop_replication_slot('rewound')")
    before = captured.changes()
    with pytest.raises(ChangesDiffer, match="another data"):
        captured.drain()
    assert captured.changes() == before
