"""Removing stored changes that are events: nothing else, the oldest first, so many at a time."""

from datetime import datetime

from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import Malformed, UnknownCapture
from tests.support.capturing.captures import (
    Source,
    event_ids,
    events,
    faulty,
    held,
    inserted,
    later,
    source,
    table,
    truncated,
    updated,
)
from tests.support.factories import Connect, refusal, rows, value

__all__ = ["source"]

EVER = later(10**9)


def left(source: Source) -> int:
    return int(value(source.store.connection, "select count(*) from event_store.wal_events"))


def test_only_what_is_emitted_goes_and_the_events_stay(source: Source) -> None:
    source.commit(inserted(1), inserted(2))
    source.emit()
    source.commit(inserted(3))
    assert source.store.purge_wal_events("c", EVER) == 2
    assert source.store.purge_wal_events("c", EVER) == 0
    assert left(source) == 1
    assert source.emit().emitted == 1
    assert len(events(source.store)) == 3


def test_only_what_is_older_goes(source: Source) -> None:
    source.commit(inserted(1))
    source.emit()
    assert source.store.purge_wal_events("c", later(-(10**6))) == 0
    source.store.connection.execute("update event_store.wal_events set stored_at = '2020-01-01'")
    source.commit(inserted(2))
    source.emit()
    assert source.store.purge_wal_events("c", later(-(10**6))) == 1


def test_so_many_at_a_time_the_oldest_first(source: Source) -> None:
    changes = source.commit(*[inserted(n) for n in range(10)])
    source.emit()
    assert [source.store.purge_wal_events("c", EVER, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert left(source) == 0
    assert source.store.verify_changes("c", changes) == 0
    source.commit(inserted(11))
    assert source.emit().emitted == 1


def test_a_truncation_under_way_stays_until_it_is_done(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(5)], truncated())
    while source.emit(3).behind:
        source.store.purge_wal_events("c", EVER)
    assert left(source) == 1
    assert source.store.purge_wal_events("c", EVER) == 1
    assert len(events(source.store)) == 11


def test_slots_of_before_are_purged_first_and_other_captures_not_at_all(source: Source, connect: Connect) -> None:
    other = Source(CaptureStore(connect()), "d", table("u"))
    other.begin()
    other.commit(inserted(1, table="u"))
    other.emit()
    old = source.commit(inserted(1), inserted(2))
    source.emit()
    source.begin()
    new = source.commit(inserted(3))
    source.emit()
    assert source.store.purge_wal_events("c", EVER, 2) == 2
    there = {row[0] for row in rows(source.store.connection, "select event_id from event_store.wal_events")}
    assert set(event_ids(new)) <= there
    assert not set(event_ids(old)) & there
    assert source.store.purge_wal_events("c", EVER) == 1
    assert left(source) == 1


def test_what_is_quarantined_stays_there(source: Source) -> None:
    source.commit(faulty(1), updated(1))
    source.emit()
    assert source.store.purge_wal_events("c", EVER) == 2
    assert len(held(source.store)) == 2


def test_where_nothing_is_to_be_removed_nothing_is_written(source: Source) -> None:
    def purge_in_vain(before: datetime) -> None:
        with source.store.connection.transaction():
            assert source.store.purge_wal_events("c", before) == 0
            assert value(source.store.connection, "select pg_current_xact_id_if_assigned()::text") is None

    purge_in_vain(EVER)
    source.commit(inserted(1))
    purge_in_vain(EVER)  # it is no event yet
    source.emit()
    purge_in_vain(later(-(10**6)))
    assert source.store.purge_wal_events("c", EVER) == 1
    purge_in_vain(EVER)


def test_bad_arguments_are_refused(source: Source) -> None:
    refusal(UnknownCapture, lambda: source.store.purge_wal_events("none", EVER))
    for limit in (0, -1, 10**7):
        refusal(Malformed, lambda limit=limit: source.store.purge_wal_events("c", EVER, limit))  # type: ignore[misc]
