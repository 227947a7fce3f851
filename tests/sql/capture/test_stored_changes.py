"""Changes from the log: stored completely, once, by the lease's owner; compared with a replay; purged as events."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString
from uuid import uuid4

import pytest
from psycopg import errors

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.store import CaptureStore
from millrace.errors import ChangesDiffer, Malformed
from millrace.event_store.platform import PlatformStore
from tests.support.capturing import captures
from tests.support.capturing.captures import BEGAN, Source, T, decider_id, event_ids, faulty, inserted, later, truncated
from tests.support.factories import Connect, refusal, rows, start_blocked, value
from tests.support.patience import patience
from tests.support.sql_calls import get_events

EVER = later(10**9)


def left(source: Source) -> int:
    return int(value(source.store.connection, "select count(*) from event_store.wal_events"))


def test_it_says_how_many_changes_are_new_and_moves_on_but_never_back(source: Source) -> None:
    assert source.save(source.changes(inserted(1), faulty(2), faulty(None), truncated())) == 4
    assert source.save(source.changes(inserted(1))) == 1
    assert source.save([]) == 0
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.stored_at, info.unemitted) == (source.lsn, BEGAN, 5)
    for lsn, seconds in ((0x9000, 9), (0x8000, 5)):
        assert source.store.store_changes("c", source.token, Lsn(lsn), later(seconds)) == 0
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.stored_at) == (Lsn(0x9000), BEGAN + timedelta(seconds=9))


def test_every_character_and_every_byte_is_stored_as_it_is(source: Source) -> None:
    strange = "a\tb\nc\rd\\e\\N\\.\"'ü\u2028\x7f\x01"
    (change, fault) = source.changes(inserted(strange, strange), faulty(strange))
    assert change.data is not None
    spaced = replace(change, data=change.data.replace(", ", ",\n\t\r "))
    unreadable = replace(fault, fault=f"column {strange}", raw=bytes(range(256)), relation=b"")
    source.save([spaced, unreadable])
    assert source.store.compare_changes("c", [change, unreadable]) == 2
    source.emit()
    (event,) = get_events(PlatformStore(source.store.connection), decider_id(strange), T)
    assert event.data["record"] == {"id": strange, "v": strange}
    (kept,) = source.store.quarantined_changes("c")
    assert kept.decider_id == decider_id(strange)
    assert (kept.fault, kept.raw, kept.relation) == (f"column {strange}", bytes(range(256)), b"")


def test_a_change_beyond_the_position_or_stored_already_undoes_all(source: Source) -> None:
    early = source.changes(inserted(0))
    (change,) = source.changes(inserted(1))
    for to_lsn in (change.commit_lsn, captures.START):
        assert str(change.commit_lsn) in str(refusal(Malformed, partial(source.save, [change], to_lsn)))
    assert left(source) == 0
    assert source.save([change]) == 1
    with pytest.raises(errors.UniqueViolation):
        source.save([change])
    assert left(source) == 1
    # a change slipped in below the stored ones is not counted
    with source.store.connection.transaction():
        assert source.store.copy_changes(source.generation, early) == 1
        assert source.store.store_changes("c", source.token, source.lsn, BEGAN) == 0


def test_storing_waits_for_no_emission_and_others_do(source: Source, connect: Connect) -> None:
    source.commit(inserted(1))
    emitting, holder, other = CaptureStore(connect()), connect(autocommit=False), CaptureStore(connect())
    holder.execute("lock table event_store.deciders in access exclusive mode")
    emission = start_blocked(source.store, emitting, partial(emitting.emit_changes, "c", source.token))
    source.store.connection.execute("set lock_timeout = '10s'")
    try:
        assert source.save(source.changes(inserted(2))) == 1
        source.store.extend_capture("c", source.token)
        release = start_blocked(source.store, other, partial(other.release_capture, "c", source.token))
    finally:
        holder.commit()
    assert emission.result(patience()).emitted == 1
    assert release.result(patience())
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.unemitted) == (source.lsn, 1)


def test_an_emission_that_waits_for_storing_goes_on_from_it(source: Source, connect: Connect) -> None:
    source.commit(inserted(1))
    storing, emitting = CaptureStore(connect(autocommit=False)), CaptureStore(connect())
    storing.copy_changes(source.generation, source.changes(inserted(2)))
    storing.store_changes("c", source.token, source.lsn, BEGAN)
    emission = start_blocked(source.store, emitting, partial(emitting.emit_changes, "c", source.token))
    storing.connection.commit()
    assert emission.result(patience()).emitted == 1
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.unemitted) == (source.lsn, 1)
    assert source.emit().emitted == 1


def test_storing_that_waits_for_another_writer_goes_on_from_it(source: Source, connect: Connect) -> None:
    extending = CaptureStore(connect(autocommit=False))
    until = extending.extend_capture("c", source.token, 600)
    saving = start_blocked(PlatformStore(connect()), source.store, partial(source.save, source.changes(inserted(1))))
    extending.connection.commit()
    assert saving.result(patience()) == 1
    (info,) = source.store.capture_info("c")
    assert (info.stored_lsn, info.leased_until) == (source.lsn, until)


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
    scans: LiteralString = "select pg_stat_get_xact_numscans('event_store.wal_events'::regclass)"
    with connection.transaction():
        before = value(connection, scans)
        source.store.store_changes("c", source.token, source.lsn, BEGAN)
        source.emit()
        assert value(connection, scans) == before


def test_what_the_source_gives_up_is_durable_whatever_the_session_says(source: Source) -> None:
    connection = source.store.connection
    works = (partial(source.save, []), partial(source.store.record_gap, "c", None, None, "lost"), source.begin)
    for setting in ("off", "local", "remote_write", "on", "remote_apply"):
        connection.execute(f"set synchronous_commit = {setting}".encode())
        for work in works:
            with connection.transaction():
                work()
                assert value(connection, "show synchronous_commit") == ("on" if setting != "remote_apply" else setting)
            assert value(connection, "show synchronous_commit") == setting


def test_a_replay_compares_and_changes_nothing(source: Source) -> None:
    def stored() -> object:
        query = "select w::text, c::text from event_store.wal_events w, event_store.captures c"
        return rows(source.store.connection, query)

    changes = [
        *source.commit(inserted(1, "ä\\u\"'"), faulty(1), faulty(None)),
        *source.commit(truncated(), captures.updated(2)),
    ]
    before = stored()
    assert source.store.compare_changes("c", changes) == 5
    assert source.store.compare_changes("c", []) == 0
    assert stored() == before
    source.emit()
    assert source.store.compare_changes("c", changes[1:3]) == 2
    assert changes[0].data is not None
    # numbers are compared as numbers; the stored id counts, whatever id a newer version would give
    again = replace(changes[0], data=changes[0].data.replace('"commit_idx": 0', '"commit_idx":   0'))
    assert source.store.compare_changes("c", [replace(again, event_id=str(uuid4()))]) == 1
    # changes that could not be read when stored, and now can
    known, unknown = (replace(each, data="{}", fault=None) for each in changes[1:3])
    assert source.store.compare_changes("c", [known, replace(unknown, decider_id="[7]")]) == 2


def test_the_same_position_with_other_content_or_with_none_raises_an_alarm(source: Source) -> None:
    source.commit(inserted(0))
    (original,) = source.commit(inserted(1))
    for what, altered in (
        ("xid", replace(original, xid=1)),
        ("decider", replace(original, decider="table:public.u")),
        ("decider_id", replace(original, decider_id="[2]")),
        ("action", replace(original, action="deleted")),
        ("data", captures.with_data(original, record={"id": 1, "v": 2})),
        ("data", replace(original, data=None, fault="unreadable")),
    ):
        refused = refusal(ChangesDiffer, partial(source.store.compare_changes, "c", [altered]))
        assert str(original.commit_lsn) in str(refused)
        assert str(refused.detail).endswith(f"stored with another {what}")
    more = [original, replace(original, commit_idx=1)]
    assert "change 1 of commit" in str(refusal(ChangesDiffer, lambda: source.store.compare_changes("c", more)))


def test_only_what_is_emitted_is_purged_the_oldest_first(source: Source) -> None:
    changes = source.commit(*[inserted(n) for n in range(9)], faulty(10), captures.updated(10))
    source.emit()
    late = source.commit(inserted(11))
    assert source.store.purge_wal_events("c", EVER, 4) == 4
    # purged changes are skipped, the others compared
    assert source.store.compare_changes("c", changes) == 7
    refusal(ChangesDiffer, lambda: source.store.compare_changes("c", [replace(changes[4], xid=1)]))
    assert [source.store.purge_wal_events("c", EVER, 4) for _ in range(3)] == [4, 3, 0]
    assert left(source) == 1
    assert source.store.compare_changes("c", changes) == 0
    assert source.emit().emitted == 1
    # the events stay
    stored = rows(source.store.connection, 'select event_id from event_store.events order by "offset"')
    assert [event_id for (event_id,) in stored] == event_ids([*changes[:9], *late])
    assert len(captures.held(source.store)) == 2


def test_only_what_is_older_is_purged_and_a_purge_in_vain_writes_nothing(source: Source) -> None:
    long_ago = later(-(10**6))

    def purge_in_vain(before: datetime) -> None:
        with source.store.connection.transaction():
            assert source.store.purge_wal_events("c", before) == 0
            assert value(source.store.connection, "select pg_current_xact_id_if_assigned()::text") is None

    purge_in_vain(EVER)
    source.commit(inserted(1))
    purge_in_vain(EVER)  # the change is no event yet
    source.emit()
    purge_in_vain(long_ago)
    source.store.connection.execute("update event_store.wal_events set stored_at = '2020-01-01'")
    source.commit(inserted(2))
    source.emit()
    assert source.store.purge_wal_events("c", long_ago) == 1
    assert source.store.purge_wal_events("c", EVER) == 1
    purge_in_vain(EVER)


def test_a_truncation_under_way_stays_until_it_is_done(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(5)], truncated())
    while source.emit(3).behind:
        source.store.purge_wal_events("c", EVER)
    assert left(source) == 1
    assert source.store.purge_wal_events("c", EVER) == 1
    assert len(captures.events(source.store)) == 11


def test_slots_of_before_are_purged_first_and_other_captures_not_at_all(source: Source, connect: Connect) -> None:
    other = Source(CaptureStore(connect()), "d", captures.table("u"))
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
