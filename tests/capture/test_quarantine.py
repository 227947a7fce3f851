"""Changes that cannot become events: they wait with the later ones of their row, are tried again or given up."""

import pytest

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding import changes as captured_changes
from millrace.resources.capture.quarantine import requeue
from millrace.resources.capture.store import CaptureStore
from tests.support.capturing.captured import Captured, declared, did, left


def test_a_change_that_is_too_large_or_cannot_be_decoded_holds_its_row_until_it_is_given_up_and_all_others_flow(
    captured: Captured,
) -> None:
    captured.source.run("create table documents (id int primary key, content json)")
    captured = declared(captured, CapturedTable("items"), CapturedTable("documents"))
    captured.drain()
    captured.source.run(
        "insert into items values (1, 'small'), (2, 'small')",
        "update items set name = repeat('x', 2000000) where id = 1",
        "update items set name = 'later' where id = 1",
        """insert into documents values (3, '"\\u0000"'), (4, '{"a": 1}')""",
        "update documents set content = '{}' where id = 3",
        "update items set name = 'other' where id = 2",
    )
    assert captured.drain().quarantined == 4
    assert did(captured) == [("inserted", "[1]"), ("inserted", "[2]"), ("inserted", "[4]"), ("updated", "[2]")]
    store = CaptureStore(captured.store)
    large, behind, bad, _ = store.quarantined_changes("shop")
    assert large.commit_lsn is not None
    assert "1048576" in (large.fault or "")
    assert (behind.decider_id, behind.fault) == ("[1]", None)
    assert "NUL" in (bad.fault or "")
    # still not JSON for jsonb
    assert requeue(store, captured.capture, "perhaps it can be decoded now").waiting == 4
    captured.store.execute("set event_store.max_data_bytes = '10000000'")
    assert requeue(store, captured.capture, "no setting raises the limit").requeued == 0
    for change in (large, bad):
        store.discard_change(change.quarantine_id, "nobody needs it")
    assert requeue(store, captured.capture, "go on").requeued == 2
    assert [left(captured, name) for name in ("items", "documents")] == [
        captured.table(), captured.table("documents")
    ]  # fmt: skip


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
