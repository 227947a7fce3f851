"""Changes that cannot become events: they wait with the later ones of their row, are retried or discarded."""

import pytest

from millrace.capture.decoding import changes as captured_changes
from millrace.capture.quarantine import requeue
from millrace.capture.store import CaptureStore
from tests.support.capturing.captured import Captured


def test_a_change_decoded_at_last_is_the_event_it_was(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run("insert into items values (1, 'before')")
    captured.drain()
    captured.run("update items set name = repeat('x', 1000)", "update items set name = 'after'")
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
