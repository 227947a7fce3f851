"""Storing what the log gave: all of a transaction, fenced by the lease, never twice, never back."""

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureStore
from millrace.resources.errors import LeaseLost, Malformed
from millrace.resources.event_store import EventStore
from tests.support.capturing.captures import (
    BEGAN,
    START,
    Source,
    T,
    decider_id,
    faulty,
    inserted,
    later,
    source,
    truncated,
)
from tests.support.factories import Connect, refusal, rows, start, terminate, value, wait_blocked

__all__ = ["source"]


def stored(source: Source) -> int:
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
    assert stored(source) == 0
    assert source.save([change]) == 1


def test_what_is_stored_is_never_stored_again(source: Source) -> None:
    changes = source.commit(inserted(1))
    with pytest.raises(errors.UniqueViolation):
        source.save(changes)
    assert stored(source) == 1


def test_a_change_slipped_in_below_what_is_stored_is_not_counted(source: Source) -> None:
    early = source.changes(inserted(1))
    source.commit(inserted(2))
    with source.store.connection.transaction():
        assert source.store.copy_changes(source.generation, early) == 1
        assert source.store.store_changes("c", source.token, source.lsn, BEGAN) == 0


def test_a_lost_lease_stores_nothing(source: Source, connect: Connect) -> None:
    source.forget_lease()
    source.claimed_by(connect(), "you")
    refusal(LeaseLost, lambda: source.save(source.changes(inserted(1))))
    assert stored(source) == 0


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
    assert isinstance(call.exception(20), psycopg.OperationalError)
    holder.rollback()
    assert stored(source) == 0
    assert source.save(changes) == 2


def test_a_capture_without_a_slot_stores_nothing(connect: Connect) -> None:
    refusal(Malformed, lambda: Source(CaptureStore(connect())).save([]))


@pytest.mark.parametrize(
    "bad",
    [
        "action = 'backfilled'", "commit_idx = -1", "data = null", "fault = 'both'", "data = '[]'", "decider_id = null",
    ],
)  # fmt: skip
def test_a_row_that_is_no_change_is_refused(source: Source, bad: str) -> None:
    source.commit(inserted(1))
    with pytest.raises(errors.CheckViolation):
        source.store.connection.execute(f"update event_store.wal_events set {bad}".encode())


def test_positions_and_times_must_be_stated(source: Source) -> None:
    for statement in (
        "select event_store.store_changes('c', %s, null, now())",
        "select event_store.store_changes('c', %s, '0/1', null)",
    ):
        refusal(Malformed, lambda s=statement: source.store._value(int, s, (source.token,)))  # type: ignore[misc]


def test_the_new_rows_are_found_by_the_index_of_their_key(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(100)])
    connection = source.store.connection
    with connection.transaction():
        before = rows(connection, "select pg_stat_get_xact_numscans('event_store.wal_events'::regclass)")
        source.store.store_changes("c", source.token, source.lsn, BEGAN)
        source.emit()
        assert rows(connection, "select pg_stat_get_xact_numscans('event_store.wal_events'::regclass)") == before
