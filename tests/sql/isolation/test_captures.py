"""Captures in REPEATABLE READ and SERIALIZABLE: right, or a serialization failure that repeating cures."""

from collections.abc import Callable

import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse
from tests.support.capturing.captures import BEGAN, Source, events, faulty, held, inserted, stream, updated
from tests.support.factories import Connect, rows
from tests.support.views.isolation import repeat, snapshot


def of(source: Source, store: CaptureStore) -> Source:
    """Return the same capture under the same lease in another session."""
    other = Source.__new__(Source)
    other.__dict__.update(source.__dict__)
    other.store = store
    return other


def late(source: Source, connect: Connect, level: IsolationLevel) -> Source:
    return of(source, CaptureStore(snapshot(connect, level).connection))


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
def test_who_began_before_another_writers_commit_is_told_and_repeats(
    source: Source, connect: Connect, level: IsolationLevel, own: str, others: str
) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    source.commit(inserted(1, "x" * 2000), updated(1, "a"))
    source.emit()
    source.store.connection.execute("reset event_store.max_data_bytes")
    source.commit(updated(1, "b"), inserted(2))
    one = late(source, connect, level)
    CALLS[others](source)
    with pytest.raises(SerializationFailure):
        CALLS[own](one)
    one.store.connection.rollback()
    repeat(one.store, lambda: CALLS[own](one))
    source.emit_all()
    source.store.requeue_changes("c")
    assert held(source.store) == []
    assert [v for _, v in stream(source.store, 1) if v != "read"] == ["x" * 2000, "a", "b"]
    ids = rows(source.store.connection, "select event_id from event_store.events")
    assert len(ids) == len(set(ids))


def test_of_two_claims_one_wins(source: Source, connect: Connect, level: IsolationLevel) -> None:
    source.store.release_capture("c", source.token)
    one = CaptureStore(snapshot(connect, level).connection)
    source.store.claim_capture("c", "you")
    with pytest.raises(SerializationFailure):
        one.claim_capture("c", "me")
    one.connection.rollback()
    with pytest.raises(CaptureInUse):
        one.claim_capture("c", "me")


def test_what_was_stored_since_the_snapshot_is_not_emitted_by_it(
    source: Source, connect: Connect, level: IsolationLevel
) -> None:
    one = late(source, connect, level)
    source.commit(inserted(1), faulty(2))
    # nothing was stored then, and where nothing is stored nothing is written
    assert one.emit().emitted == 0
    one.store.connection.rollback()
    assert one.emit().emitted == 1
    one.store.connection.commit()
    assert events(source.store) == [("[1]", "inserted")]
