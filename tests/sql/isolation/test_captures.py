"""Captures in REPEATABLE READ and SERIALIZABLE: right, or a serialization failure that a retry cures."""

from collections.abc import Callable
from copy import copy

import pytest

from millrace.capture.store import CaptureStore
from millrace.errors import CaptureInUse
from tests.support.capturing.captures import BEGAN, Source, events, faulty, held, inserted, stream, updated
from tests.support.factories import rows
from tests.support.views.isolation import Session, assert_not_serializable, repeat


def late(source: Source, snapshot: Session) -> Source:
    """Return the same capture, under the same lease, in a session with an old snapshot."""
    other = copy(source)
    other.store = CaptureStore(snapshot().connection)
    return other


CALLS: dict[str, Callable[[Source], object]] = {
    "requeue": lambda source: source.store.requeue_changes("c"),
    "emit": Source.emit,
    "read": lambda source: source.backfill(1, 7),
    "extend": lambda source: source.store.extend_capture("c", source.token),
    "save nothing": lambda source: source.store.store_changes("c", source.token, source.lsn, BEGAN),
}


@pytest.mark.parametrize(
    ("own", "others"),
    [("requeue", "emit"), ("emit", "requeue"), ("read", "emit"), ("emit", "read"), ("extend", "read"), ("save nothing", "emit")],
)  # fmt: skip
def test_who_began_before_anothers_commit_repeats(source: Source, snapshot: Session, own: str, others: str) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    source.commit(inserted(1, "x" * 2000), updated(1, "a"))
    source.emit()
    source.store.connection.execute("reset event_store.max_data_bytes")
    source.commit(updated(1, "b"), inserted(2))
    one = late(source, snapshot)
    CALLS[others](source)
    assert_not_serializable(one.store, lambda: CALLS[own](one))
    repeat(one.store, lambda: CALLS[own](one))
    source.emit_all()
    source.store.requeue_changes("c")
    assert held(source.store) == []
    assert [v for _, v in stream(source.store, 1) if v != "read"] == ["x" * 2000, "a", "b"]
    ids = rows(source.store.connection, "select event_id from event_store.events")
    assert len(ids) == len(set(ids))


def test_of_two_claims_one_wins(source: Source, snapshot: Session) -> None:
    source.store.release_capture("c", source.token)
    one = CaptureStore(snapshot().connection)
    source.store.claim_capture("c", "you")
    assert_not_serializable(one, lambda: one.claim_capture("c", "me"))
    with pytest.raises(CaptureInUse):
        one.claim_capture("c", "me")


def test_what_was_stored_since_is_not_emitted(source: Source, snapshot: Session) -> None:
    one = late(source, snapshot)
    source.commit(inserted(1), faulty(2))
    # the old snapshot has no stored change, so nothing is written
    assert one.emit().emitted == 0
    one.store.connection.rollback()
    assert one.emit().emitted == 1
    one.store.connection.commit()
    assert events(source.store) == [("[1]", "inserted")]
