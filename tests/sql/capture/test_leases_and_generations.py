"""The lease of a capture, and its generations: a number for each slot, positions from its start, its timelines."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import LiteralString

import pytest
from psycopg.errors import UniqueViolation

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.schema_changes import SchemaStore
from millrace.capture.store import CaptureStore, Emitted
from millrace.errors import CaptureInUse, ChangesWaiting, LeaseLost, Malformed, UnknownCapture
from tests.support.capturing.captures import BEGAN, START, Source, event_ids, events, inserted, table, truncated
from tests.support.factories import Connect, at_once, refusal, rows, set_clock, start, value, wait_blocked
from tests.support.patience import patience, wait_until

WAITING: LiteralString = """
    select from pg_stat_activity where wait_event_type = 'Lock' and query like '%%claim_capture%%' and datname = current_database()
"""


def test_a_lease_says_where_the_capture_stands(connect: Connect) -> None:
    store = CaptureStore(connect())
    store.register_capture("c", "s", "p", [table()])
    lease = store.claim_capture("c", "me")
    assert (lease.slot, lease.publication, lease.gap) == ("s", "p", False)
    assert (lease.source_generation, lease.stored_lsn) == (None, None)
    store.begin_generation("c", lease.lease_token, "77", "crm", Lsn(4096), 700, "1")
    again = store.claim_capture("c", "me")
    assert (again.source_generation, again.system_identifier, again.database) == (1, "77", "crm")
    assert (again.stored_lsn, again.emitted_lsn, again.emitted_idx) == (Lsn(4096), Lsn(4096), -1)
    assert "there are: c" in str(refusal(UnknownCapture, lambda: store.claim_capture("none", "me")))


def test_past_its_time_it_holds_until_somebody_takes_it_over(source: Source, connect: Connect) -> None:
    # the same owner gets a new token, and its old token is fenced
    again = source.claimed_by(connect(), "me")
    assert again.token > source.token
    refusal(LeaseLost, source.emit)
    source.lease = again.lease
    source.forget_lease()
    source.commit(inserted(1))
    assert source.emit().emitted == 1
    assert source.store.extend_capture("c", source.token) > BEGAN
    source.forget_lease()
    other = source.claimed_by(connect(), "you")
    assert other.token > source.token
    fenced: list[Callable[[], object]] = [
        lambda: source.store.extend_capture("c", source.token), lambda: source.save([]), source.emit,
        lambda: source.store.publish_tables("c", source.token, 1), lambda: source.backfill(1), source.finish, source.begin,
    ]  # fmt: skip
    for call in fenced:
        refusal(LeaseLost, call)
    assert not source.store.release_capture("c", source.token)
    assert value(source.store.connection, "select lease_owner from event_store.captures") == "you"
    # a released lease is free at once
    assert [other.store.release_capture("c", other.token) for _ in range(2)] == [True, False]
    assert source.claimed_by(connect(), "she").token > other.token


def test_a_lease_lasts_as_long_as_is_said_by_the_clock_of_the_store(source: Source, connect: Connect) -> None:
    other = CaptureStore(connect())
    for store in (source.store, other):
        set_clock(store.connection, "2030-01-01 00:00:00+00")
    lease = source.store.claim_capture("c", "me", 30)
    set_clock(other.connection, "2030-01-01 00:00:29.9+00")
    refused = refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    assert "leased by me until 2030-01-01 00:00" in str(refused)
    source.store.extend_capture("c", lease.lease_token, 60)
    set_clock(other.connection, "2030-01-01 00:00:59.9+00")
    refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    assert other.claim_capture("c", "you").lease_token > lease.lease_token


def test_of_many_that_claim_at_once_one_gets_it(connect: Connect) -> None:
    CaptureStore(connect()).register_capture("c", "s", "p", [table()])
    results = at_once([partial(CaptureStore(connect()).claim_capture, "c", f"owner-{n}") for n in range(8)])
    assert sorted(type(result.exception()).__name__ for result in results) == ["CaptureInUse"] * 7 + ["NoneType"]


def test_a_process_that_hangs_in_its_transaction_is_in_use(source: Source, connect: Connect) -> None:
    hanging = CaptureStore(connect(autocommit=False))
    source.forget_lease()
    hanging.extend_capture("c", source.token, 1)
    other = CaptureStore(connect())
    assert "5 s" in str(refusal(CaptureInUse, lambda: other.claim_capture("c", "you")))
    hanging.connection.rollback()
    assert other.claim_capture("c", "you").lease_token > source.token


def test_who_takes_over_while_changes_are_copied_stores_them(source: Source, connect: Connect) -> None:
    changes = source.changes(inserted(1), inserted(2))
    slow = CaptureStore(connect(autocommit=False))
    slow.copy_changes(source.generation, changes)
    source.forget_lease()
    other = source.claimed_by(connect(), "you")
    # the same rows: the second session to copy them waits for the first
    saving = start(lambda: other.save(changes))
    wait_blocked(source.store.connection, other.store.connection.info.backend_pid)
    refusal(LeaseLost, lambda: slow.store_changes("c", source.token, source.lsn, BEGAN))
    slow.connection.rollback()
    assert saving.result(patience()) == 2
    assert other.emit().emitted == 2
    assert len(events(source.store)) == 2


def test_who_takes_over_goes_on_from_what_was_stored_before(source: Source, connect: Connect) -> None:
    changes = source.changes(inserted(1))
    slow = CaptureStore(connect(autocommit=False))
    slow.copy_changes(source.generation, changes)
    source.forget_lease()
    slow.store_changes("c", source.token, source.lsn, BEGAN)
    taking = start(lambda: source.claimed_by(connect(), "you"))
    wait_until(lambda: bool(rows(source.store.connection, WAITING)), "somebody waits for the capture")
    slow.connection.commit()
    other = taking.result(patience())
    assert other.lease.stored_lsn == source.lsn
    assert other.store.compare_changes("c", changes) == 1
    with pytest.raises(UniqueViolation):
        other.save(changes)
    assert other.emit().emitted == 1


def test_a_capture_without_a_slot_stores_emits_and_follows_nothing(connect: Connect) -> None:
    slotless = Source(CaptureStore(connect()))
    refusal(Malformed, lambda: slotless.save([]))
    assert slotless.emit() == Emitted(0, 0, 0, behind=False)
    refusal(Malformed, lambda: SchemaStore(slotless.store.connection).keep_schemas("c", slotless.token, START, []))
    refusal(Malformed, lambda: followed(slotless, "2", START))
    assert slotless.store.capture_info("c")[0].timelines is None


def test_a_generation_begins_at_its_slot_with_a_number_of_its_own_for_ever(source: Source, connect: Connect) -> None:
    (info,) = source.store.capture_info("c")
    assert (info.source_generation, info.stored_lsn, info.emitted_lsn) == (1, source.lsn, source.lsn)
    assert (info.tables, info.tables_to_backfill, info.gaps) == (1, 1, 0)
    (registered,) = source.store.captured_tables("c")
    assert registered.published_xid == 700
    numbers = [source.generation, source.begin()]
    source.store.release_capture("c", source.token)
    source.store.unregister_capture("c")
    again = Source(CaptureStore(connect()))
    assert [*numbers, again.begin()] == [1, 2, 3]
    assert value(again.store.connection, "select count(*) from event_store.source_generations") == 3


def test_captures_that_begin_at_once_get_numbers_of_their_own(connect: Connect) -> None:
    sources = [Source(CaptureStore(connect()), name, table(f"t{name}")) for name in "abcdef"]
    numbers = [future.result() for future in at_once([partial(each.begin) for each in sources])]
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


def test_a_truncation_must_be_emitted_whole_before(source: Source) -> None:
    source.commit(*[inserted(n) for n in range(5)], truncated())
    while source.emit(2).behind:
        assert "generation 1" in str(refusal(ChangesWaiting, source.begin))
    assert source.begin() == 2


def test_the_same_positions_in_another_slot_are_other_events(source: Source) -> None:
    first = source.commit(inserted(1))
    source.emit()
    source.lsn = first[0].commit_lsn
    source.begin()
    second = source.commit(inserted(1))
    assert source.emit() == Emitted(1, 0, 0, behind=False)
    assert second[0].commit_lsn == first[0].commit_lsn
    assert event_ids(first) != event_ids(second)


def test_an_open_gap_ends_with_it(source: Source) -> None:
    gap = source.store.record_gap("c", source.lsn, None, "The slot is gone.")
    assert source.store.claim_capture("c", "me").gap
    source.lease = source.store.claim_capture("c", "me")
    source.begin()
    source.lease = source.store.claim_capture("c", "me")
    assert not source.lease.gap
    (closed,) = source.store.capture_gaps("c")
    assert (closed.gap_id, closed.resolved_by_generation, closed.source_generation) == (gap, 2, 1)
    # a new slot without a recorded gap is a gap
    source.begin()
    new, _ = source.store.capture_gaps("c")
    assert (new.from_lsn, new.source_generation, new.resolved_by_generation) == (source.lsn, 2, 3)


def stands(source: Source) -> tuple[str | None, Lsn | None]:
    (info,) = source.store.capture_info("c")
    return info.timelines, info.stored_lsn


def followed(source: Source, timelines: str, common: Lsn | None, token: int | None = None) -> Lsn | None:
    return source.store.follow_timelines("c", token or source.token, timelines, common)


def test_what_nothing_is_stored_of_is_taken_back_to_where_timelines_part(source: Source) -> None:
    source.save([], Lsn(source.lsn + 500))
    # a slot that is younger than the switch gave only changes of the former source
    assert followed(source, "1 0/100, 2", Lsn(START - 1)) is None
    assert followed(source, f"1 {START}, 2", START) == START
    source.store.connection.execute("update event_store.captures set timelines = null")
    assert followed(source, "1 0/100, 2", None) == START  # the present history, as no earlier one is known
    (change,) = source.commit(inserted(1))
    common = source.lsn
    later_on = f"1 0/100, 2 {common}, 3"
    assert followed(source, later_on, common) == common
    assert stands(source) == (later_on, common)
    assert source.store.claim_capture("c", "me").timelines == later_on
    source.lease = source.store.claim_capture("c", "me")
    source.save([], Lsn(common + 500))
    assert followed(source, f"{later_on} {common}, 4", common) == common
    assert stands(source)[1] == common
    # changes from there on are new
    source.lsn = common
    source.commit(inserted(2))
    assert source.emit().emitted == 2
    assert change.commit_lsn < common


def test_where_something_stored_is_lacking_in_the_new_one_nothing_changes(source: Source) -> None:
    (change,) = source.commit(inserted(1))
    source.emit()
    before = stands(source)
    for purged in (False, True):
        assert source.store.purge_wal_events("c", datetime(2200, 1, 1, tzinfo=UTC)) == 1 if purged else True
        assert followed(source, f"1 {change.commit_lsn}, 2", change.commit_lsn) is None
        assert stands(source) == before == ("1", source.lsn)
