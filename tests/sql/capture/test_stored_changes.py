"""What the log gave: stored whole, once, by the lease's owner; compared with a replay; purged when it is events."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import ChangesDiffer, Malformed, UnknownCapture
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    BEGAN,
    START,
    Source,
    T,
    decider_id,
    event_ids,
    events,
    faulty,
    held,
    inserted,
    later,
    table,
    truncated,
    updated,
    with_data,
)
from tests.support.factories import Connect, refusal, rows, start, terminate, value, wait_blocked
from tests.support.patience import patience


def number_stored(source: Source) -> int:
    return int(value(source.store.connection, "select count(*) from event_store.wal_events"))


def test_it_says_how_many_changes_are_new(source: Source) -> None:
    assert source.save(source.changes(inserted(1), faulty(2), faulty(None), truncated())) == 4
    assert source.save(source.changes(inserted(1))) == 1
    assert source.save([]) == 0
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.stored_at, info.unemitted) == (source.lsn, BEGAN, 5)


def test_every_character_and_every_byte_is_stored_as_it_is(source: Source) -> None:
    strange = "a\tb\nc\rd\\e\\N\\.\"'ü\u2028\x7f\x01"
    (change, fault) = source.changes(inserted(strange, strange), faulty(strange))
    assert change.data is not None
    spaced = replace(change, data=change.data.replace(", ", ",\n\t\r "))
    unreadable = replace(fault, fault=f"column {strange}", raw=bytes(range(256)), relation=b"")
    source.save([spaced, unreadable])
    assert source.store.verify_changes("c", [change, unreadable]) == 2
    source.emit()
    (event,) = EventStore(source.store.connection).get_events(decider_id(strange), T)
    assert event.data["record"] == {"id": strange, "v": strange}
    (kept,) = source.store.quarantined_changes("c")
    assert kept.decider_id == decider_id(strange)
    assert (kept.fault, kept.raw, kept.relation) == (f"column {strange}", bytes(range(256)), b"")


def test_an_idle_source_moves_on_without_changes_and_never_back(source: Source) -> None:
    store = source.store
    assert store.store_changes("c", source.token, Lsn(0x9000), later(9)) == 0
    assert store.store_changes("c", source.token, Lsn(0x8000), later(5)) == 0
    (info,) = store.capture_info("c")
    assert (info.stored_lsn, info.stored_at) == (Lsn(0x9000), BEGAN + timedelta(seconds=9))


def test_a_change_beyond_the_stated_position_undoes_the_transaction(source: Source) -> None:
    (change,) = source.changes(inserted(1))
    for to_lsn in (change.commit_lsn, START):
        refused = refusal(Malformed, lambda to_lsn=to_lsn: source.save([change], to_lsn))  # type: ignore[misc]
        assert str(change.commit_lsn) in str(refused)
    assert number_stored(source) == 0
    assert source.save([change]) == 1


def test_what_is_stored_is_never_stored_again(source: Source) -> None:
    changes = source.commit(inserted(1))
    with pytest.raises(errors.UniqueViolation):
        source.save(changes)
    assert number_stored(source) == 1


def test_a_change_slipped_in_below_what_is_stored_is_not_counted(source: Source) -> None:
    early = source.changes(inserted(1))
    source.commit(inserted(2))
    with source.store.connection.transaction():
        assert source.store.copy_changes(source.generation, early) == 1
        assert source.store.store_changes("c", source.token, source.lsn, BEGAN) == 0


def test_a_kill_before_the_commit_stores_nothing_and_the_next_one_stores_it_once(
    source: Source, connect: Connect
) -> None:
    changes = source.changes(inserted(1), inserted(2))
    doomed, holder, observer = CaptureStore(connect()), connect(autocommit=False), connect()
    holder.execute("select from event_store.captures for update")

    def save() -> int:
        with doomed.connection.transaction():
            doomed.copy_changes(source.generation, changes)
            return doomed.store_changes("c", source.token, source.lsn, BEGAN)

    call = start(save)
    wait_blocked(observer, doomed.connection.info.backend_pid)
    terminate(observer, doomed.connection.info.backend_pid)
    assert isinstance(call.exception(patience()), psycopg.OperationalError)
    holder.rollback()
    assert number_stored(source) == 0
    assert source.save(changes) == 2


def test_a_capture_without_a_slot_stores_nothing(connect: Connect) -> None:
    refusal(Malformed, lambda: Source(CaptureStore(connect())).save([]))


def test_a_row_that_is_no_change_is_refused(source: Source) -> None:
    source.commit(inserted(1))
    for bad in (
        "action = 'backfilled'", "commit_idx = -1", "data = null", "fault = 'both'", "data = '[]'", "decider_id = null",
    ):  # fmt: skip
        with pytest.raises(errors.CheckViolation):
            source.store.connection.execute(f"update event_store.wal_events set {bad}".encode())


def test_the_new_rows_are_found_by_the_index_of_their_key(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(100)])
    connection = source.store.connection
    with connection.transaction():
        before = rows(connection, "select pg_stat_get_xact_numscans('event_store.wal_events'::regclass)")
        source.store.store_changes("c", source.token, source.lsn, BEGAN)
        source.emit()
        assert rows(connection, "select pg_stat_get_xact_numscans('event_store.wal_events'::regclass)") == before


def stored(source: Source) -> object:
    return rows(
        source.store.connection, "select w::text, c::text from event_store.wal_events w, event_store.captures c"
    )


def test_a_replay_compares_and_changes_nothing(source: Source) -> None:
    changes = [*source.commit(inserted(1, "ä\\u\"'"), faulty(1), faulty(None)), *source.commit(truncated(), updated(2))]
    before = stored(source)
    assert source.store.verify_changes("c", changes) == 5
    assert source.store.verify_changes("c", []) == 0
    assert stored(source) == before
    source.emit()
    assert source.store.verify_changes("c", changes[1:3]) == 2


def test_the_same_position_with_other_content_raises_an_alarm(source: Source) -> None:
    source.commit(inserted(0))
    (original,) = source.commit(inserted(1))
    for what, altered in (
        ("xid", replace(original, xid=1)),
        ("decider", replace(original, decider="table:public.u")),
        ("decider_id", replace(original, decider_id="[2]")),
        ("action", replace(original, action="deleted")),
        ("data", with_data(original, record={"id": 1, "v": 2})),
        ("data", replace(original, data=None, fault="unreadable")),
    ):
        refused = refusal(ChangesDiffer, partial(source.store.verify_changes, "c", [altered]))
        assert str(original.commit_lsn) in str(refused)
        assert str(refused.detail).endswith(f"stored with another {what}")


def test_a_change_keeps_the_id_that_it_was_stored_with_whichever_a_newer_version_would_give_it(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    assert source.store.verify_changes("c", [replace(change, event_id=str(uuid4()))]) == 1
    source.emit()
    assert [str(each) for (each,) in rows(source.store.connection, "select event_id from event_store.events")] == [
        change.event_id
    ]


def test_a_change_that_is_not_stored_raises_an_alarm(source: Source) -> None:
    changes = source.commit(inserted(1))
    more = [*changes, replace(changes[0], commit_idx=1)]
    refused = refusal(ChangesDiffer, lambda: source.store.verify_changes("c", more))
    assert "change 1 of commit" in str(refused)


def test_numbers_are_compared_as_numbers_and_keys_in_any_order(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    assert change.data is not None
    assert source.store.verify_changes("c", [replace(change, data=change.data.replace('"v": 1', '"v":   1'))]) == 1


def test_a_change_that_could_not_be_read_and_now_can_is_the_same(source: Source) -> None:
    (known, unknown) = source.commit(faulty(1), faulty(None))
    readable = [replace(known, data="{}", fault=None), replace(unknown, data="{}", fault=None, decider_id="[7]")]
    assert source.store.verify_changes("c", readable) == 2


def test_what_was_purged_is_passed_over_and_what_was_not_is_compared(source: Source) -> None:
    changes = source.commit(inserted(1), inserted(2), inserted(3))
    source.emit()
    assert source.store.purge_wal_events("c", later(10**9), 2) == 2
    assert source.store.verify_changes("c", changes) == 1
    refusal(ChangesDiffer, lambda: source.store.verify_changes("c", [replace(changes[2], xid=1)]))


def test_what_is_no_array_of_changes_is_refused(source: Source) -> None:
    source.commit(inserted(1))
    for changes in (
        "{}",
        '[{"commit_lsn": "x", "commit_idx": 1}]',
        '[{"commit_lsn": "0/1", "commit_idx": "x"}]',
    ):
        refusal(
            Malformed,
            lambda c=changes: source.store._value(int, "select event_store.verify_changes('c', %s::jsonb)", (c,)),  # type: ignore[misc]
        )
    refusal(UnknownCapture, lambda: source.store.verify_changes("none", []))


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
