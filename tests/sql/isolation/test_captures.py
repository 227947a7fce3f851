"""Captures in REPEATABLE READ and SERIALIZABLE: right, or a serialization failure that repeating cures."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import CaptureInUse
from tests.support.capturing.captures import BEGAN, Source, events, faulty, held, inserted, stream, updated
from tests.support.factories import Connect
from tests.support.views.isolation import repeat, snapshot


def of(source: Source, store: CaptureStore) -> Source:
    """Return the same capture under the same lease in another session."""
    other = Source.__new__(Source)
    other.__dict__.update(source.__dict__)
    other.store = store
    return other


def late(source: Source, connect: Connect, level: IsolationLevel) -> Source:
    return of(source, CaptureStore(snapshot(connect, level).connection))


def requeue(source: Source) -> object:
    return source.store.requeue_changes("c")


def emit(source: Source) -> object:
    return source.emit()


def read(source: Source) -> object:
    return source.backfill(1, 7)


def extend(source: Source) -> object:
    return source.store.extend_capture("c", source.token)


def save_nothing(source: Source) -> object:
    return source.store.store_changes("c", source.token, source.lsn, BEGAN)


@pytest.mark.parametrize("own", [requeue, emit, read, extend, save_nothing])
@pytest.mark.parametrize("others", [requeue, emit, read])
def test_who_began_before_another_writers_commit_is_told_and_repeats(
    source: Source,
    connect: Connect,
    level: IsolationLevel,
    own: Callable[[Source], object],
    others: Callable[[Source], object],
) -> None:
    source.store.connection.execute("set event_store.max_data_bytes = 1000")
    source.commit(inserted(1, "x" * 2000), updated(1, "a"))
    source.emit()
    source.store.connection.execute("reset event_store.max_data_bytes")
    source.commit(updated(1, "b"), inserted(2))
    one = late(source, connect, level)
    others(source)
    with pytest.raises(SerializationFailure):
        own(one)
    one.store.connection.rollback()
    repeat(one.store, lambda: own(one))
    source.emit_all()
    source.store.requeue_changes("c")
    assert held(source.store) == []
    assert [v for _, v in stream(source.store, 1) if v != "read"] == ["x" * 2000, "a", "b"]
    assert len(events(source.store)) == len(set(ids(source.store.connection)))


def ids(connection: psycopg.Connection) -> list[object]:
    return [row[0] for row in connection.execute("select event_id from event_store.events")]


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
