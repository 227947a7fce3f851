"""Removing a capture: all but its events, never under its process."""

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse, UnknownCapture
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import Source, events, faulty, inserted, source, table
from tests.support.factories import Connect, refusal, rows, value

__all__ = ["source"]


def test_all_goes_but_events_numbers_and_gaps(source: Source, connect: Connect) -> None:
    other = Source(CaptureStore(connect()), "d", table("u"))
    other.begin()
    other.commit(faulty(1, "u"))
    other.emit()
    source.commit(inserted(1), faulty(2))
    source.emit()
    source.begin()
    source.commit(inserted(3))
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c", "switched off")
    store = source.store
    assert [info.capture for info in store.capture_info()] == ["d"]
    assert events(store) == [("[1]", "inserted")]
    assert store.captured_tables("c") == []
    assert store.quarantined_changes("c") == []
    assert len(store.quarantined_changes("d")) == 1
    assert value(store.connection, "select count(*) from event_store.wal_events") == 1
    assert len(store.capture_gaps("c")) == 1
    assert len(rows(store.connection, "select from event_store.source_generations where capture = 'c'")) == 2
    entry, *_ = EventStore(store.connection).audit_log()
    assert (entry.operation, entry.reason, entry.detail["wal_events"], entry.detail["quarantined"]) == (
        "unregister_capture", "switched off", 3, 1,
    )  # fmt: skip
    refusal(UnknownCapture, lambda: store.unregister_capture("c"))


def test_a_capture_in_use_stays(source: Source) -> None:
    refused = refusal(CaptureInUse, lambda: source.store.unregister_capture("c"))
    assert "leased by me" in str(refused)
    source.forget_lease()
    source.store.unregister_capture("c")
    assert source.store.capture_info() == []


def test_its_deciders_are_free_again(source: Source, connect: Connect) -> None:
    source.commit(inserted(1))
    source.emit()
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(CaptureStore(connect()), "d", table("t"))
    again.begin()
    again.backfill(2)
    again.finish()
    # what the new capture did not read is gone
    assert [name for key, name in events(again.store) if key == "[1]"] == ["inserted", "deleted"]
