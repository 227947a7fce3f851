"""Changes that cannot become events: they wait with the later ones of their row, are tried again or given up."""

import pytest

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding import changes as captured_changes
from millrace.resources.capture.quarantine import requeue
from millrace.resources.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, captured, declared, did, new_source

__all__ = ["captured", "new_source"]


def test_a_change_that_is_too_large_waits_with_the_later_ones_of_its_row_and_all_others_flow(
    captured: Captured,
) -> None:
    captured.drain()
    captured.source.run(
        "insert into items values (1, 'small'), (2, 'small')",
        "update items set name = repeat('x', 2000000) where id = 1",
        "update items set name = 'later' where id = 1",
        "update items set name = 'other' where id = 2",
    )
    report = captured.drain()
    assert report.quarantined == 2
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]"), ("updated", "[2]")]
    store = CaptureStore(captured.store)
    large, behind = store.quarantined_changes("shop")
    assert large.commit_lsn is not None
    assert "1048576" in (large.fault or "")
    assert (behind.decider_id, behind.fault) == ("[1]", None)
    assert requeue(store, captured.capture, "try again").requeued == 0
    captured.store.execute("set event_store.max_data_bytes = '10000000'")
    assert requeue(store, captured.capture, "no setting raises the limit").requeued == 0
    store.discard_change(large.quarantine_id, "it is too large for an event")
    assert requeue(store, captured.capture, "go on").requeued == 1
    assert captured.replayed() == captured.table()


def test_a_change_that_cannot_be_decoded_holds_its_row_until_it_is_given_up(captured: Captured) -> None:
    captured.source.run("create table documents (id int primary key, content json)")
    documents = declared(captured, CapturedTable("documents"))
    documents.drain()
    documents.source.run(
        """insert into documents values (1, '"\\u0000"'), (2, '{"a": 1}')""",
        "update documents set content = '{}' where id = 1",
    )
    documents.drain()
    assert did(documents) == [("inserted", "[2]")]
    store = CaptureStore(captured.store)
    bad, behind = store.quarantined_changes("shop")
    assert "NUL" in (bad.fault or "")
    # still not JSON for jsonb
    assert requeue(store, documents.capture, "perhaps it can be decoded now").waiting == 2
    store.discard_change(bad.quarantine_id, "nobody needs it")
    assert requeue(store, documents.capture, "go on").requeued == 1
    assert documents.replayed() == documents.table("documents")
    assert behind.decider_id == "[1]"


def test_a_change_that_can_be_decoded_after_all_becomes_the_event_that_it_would_have_been(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.source.run("insert into items values (1, 'before')")
    captured.drain()
    captured.source.run("update items set name = repeat('x', 1000)", "update items set name = 'after'")
    with monkeypatch.context() as patch:
        patch.setattr(captured_changes, "MAX_DATA_CHARACTERS", 900)
        captured.drain()
    store = CaptureStore(captured.store)
    bad, _ = store.quarantined_changes("shop")
    assert bad.data is None
    assert requeue(store, captured.capture, "the limit is what it was").requeued == 2
    first, second = captured.changes()[1:]
    assert (first["record"]["name"], second["record"]["name"]) == ("x" * 1000, "after")
    assert (first["event_id"], first["commit_lsn"]) == (str(bad.event_id), str(bad.commit_lsn))
    assert first["committed_at"] < second["committed_at"]
