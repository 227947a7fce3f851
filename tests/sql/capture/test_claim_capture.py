"""The lease of a capture: one process at a time, taken over after its time, and former owners are fenced."""

from functools import partial
from typing import LiteralString

import pytest
from psycopg.errors import UniqueViolation

from millrace.resources.capture.decoding.pgoutput import Lsn
from millrace.resources.capture.store import CaptureLease, CaptureStore
from millrace.resources.errors import CaptureInUse, LeaseLost, Malformed, UnknownCapture
from tests.support.capturing.captures import BEGAN, Source, events, inserted, source, table
from tests.support.factories import Connect, at_once, refusal, rows, set_clock, start, value, wait_blocked
from tests.support.patience import wait_until

__all__ = ["source"]

WAITING: LiteralString = """
    select from pg_stat_activity where wait_event_type = 'Lock' and query like '%%claim_capture%%' and datname = current_database()
"""


def test_a_lease_says_where_the_capture_stands(connect: Connect) -> None:
    store = CaptureStore(connect())
    store.register_capture("c", "s", "p", [table()])
    lease = store.claim_capture("c", "me")
    assert (lease.slot, lease.publication, lease.source_generation, lease.stored_lsn, lease.gap) == (
        "s", "p", None, None, False,
    )  # fmt: skip
    store.begin_generation("c", lease.lease_token, "77", "crm", Lsn(4096), 700, "1")
    again = store.claim_capture("c", "me")
    assert (again.source_generation, again.system_identifier, again.database) == (1, "77", "crm")
    assert (again.stored_lsn, again.emitted_lsn, again.emitted_idx) == (Lsn(4096), Lsn(4096), -1)


def test_while_it_is_leased_nobody_else_gets_it_and_is_told_who_has_it(source: Source, connect: Connect) -> None:
    other = CaptureStore(connect())
    refused = refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    assert f"leased by me until {source.lease.leased_until:%Y-%m-%d %H:%M}" in str(refused)


def test_after_its_time_it_is_taken_over_and_the_former_owner_is_fenced(source: Source, connect: Connect) -> None:
    source.forget_lease()
    other = source.claimed_by(connect(), "you")
    assert other.token > source.token
    refusal(LeaseLost, lambda: source.store.extend_capture("c", source.token))
    refusal(LeaseLost, lambda: source.save([]))
    refusal(LeaseLost, source.emit)
    refusal(LeaseLost, lambda: source.store.publish_tables("c", source.token, 1))
    refusal(LeaseLost, lambda: source.store.begin_generation("c", source.token, "1", "d", Lsn(1), 1, "1"))
    refusal(LeaseLost, lambda: source.backfill(1))
    refusal(LeaseLost, source.finish)
    assert not source.store.release_capture("c", source.token)
    assert value(source.store.connection, "select lease_owner from event_store.captures") == "you"


def test_a_lease_past_its_time_holds_as_long_as_nobody_took_it(source: Source) -> None:
    source.forget_lease()
    source.commit(inserted(1))
    assert source.emit().emitted == 1
    assert source.store.extend_capture("c", source.token) > BEGAN


def test_the_same_owner_gets_a_new_token_and_its_former_self_is_fenced(source: Source, connect: Connect) -> None:
    again = source.claimed_by(connect(), "me")
    assert again.token > source.token
    refusal(LeaseLost, source.emit)


def test_a_lease_lasts_as_long_as_is_said_by_the_clock_of_the_store(source: Source, connect: Connect) -> None:
    other = CaptureStore(connect())
    for store in (source.store, other):
        set_clock(store.connection, "2030-01-01 00:00:00+00")
    lease = source.store.claim_capture("c", "me", 30)
    set_clock(other.connection, "2030-01-01 00:00:29.9+00")
    refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    source.store.extend_capture("c", lease.lease_token, 60)
    set_clock(other.connection, "2030-01-01 00:00:59.9+00")
    refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    set_clock(other.connection, "2030-01-01 00:01:00+00")
    assert other.claim_capture("c", "you").lease_token > lease.lease_token


def test_what_was_given_back_is_free_at_once(source: Source, connect: Connect) -> None:
    assert source.store.release_capture("c", source.token)
    assert not source.store.release_capture("c", source.token)
    assert CaptureStore(connect()).claim_capture("c", "you").lease_token > source.token


def test_of_many_that_claim_at_once_one_gets_it(connect: Connect) -> None:
    CaptureStore(connect()).register_capture("c", "s", "p", [table()])

    def claim(owner: str) -> CaptureLease:
        return CaptureStore(connect()).claim_capture("c", owner)

    results = at_once([partial(claim, f"owner-{n}") for n in range(8)])
    assert sorted(type(result.exception()).__name__ for result in results) == ["CaptureInUse"] * 7 + ["NoneType"]


def test_a_process_that_hangs_in_its_transaction_is_in_use(source: Source, connect: Connect) -> None:
    hanging = CaptureStore(connect(autocommit=False))
    source.forget_lease()
    hanging.extend_capture("c", source.token, 1)
    other = CaptureStore(connect())
    refused = refusal(CaptureInUse, lambda: other.claim_capture("c", "you"))
    assert "5 s" in str(refused)
    hanging.connection.rollback()
    assert other.claim_capture("c", "you").lease_token > source.token


def test_who_takes_over_while_changes_are_being_copied_stores_them_and_the_former_owner_does_not(
    source: Source, connect: Connect
) -> None:
    changes = source.changes(inserted(1), inserted(2))
    slow = CaptureStore(connect(autocommit=False))
    slow.copy_changes(source.generation, changes)
    source.forget_lease()
    other = source.claimed_by(connect(), "you")
    # the same rows: whoever copies them second waits for the first
    saving = start(lambda: other.save(changes))
    wait_blocked(source.store.connection, other.store.connection.info.backend_pid)
    refusal(LeaseLost, lambda: slow.store_changes("c", source.token, source.lsn, BEGAN))
    slow.connection.rollback()
    assert saving.result(20) == 2
    assert other.emit().emitted == 2
    assert len(events(source.store)) == 2


def test_what_was_stored_before_the_take_over_is_what_the_next_one_goes_on_from(
    source: Source, connect: Connect
) -> None:
    changes = source.changes(inserted(1))
    slow = CaptureStore(connect(autocommit=False))
    slow.copy_changes(source.generation, changes)
    source.forget_lease()
    slow.store_changes("c", source.token, source.lsn, BEGAN)
    taking = start(lambda: source.claimed_by(connect(), "you"))
    wait_until(lambda: bool(rows(source.store.connection, WAITING)), "somebody waits for the capture")
    slow.connection.commit()
    other = taking.result(20)
    assert other.lease.stored_lsn == source.lsn
    assert other.store.verify_changes("c", changes) == 1
    with pytest.raises(UniqueViolation):
        other.save(changes)
    assert other.emit().emitted == 1


def test_unknown_captures_and_bad_arguments_are_refused(source: Source) -> None:
    store = source.store
    refused = refusal(UnknownCapture, lambda: store.claim_capture("none", "me"))
    assert "there are: c" in str(refused)
    refusal(Malformed, lambda: store.claim_capture("c", ""))
    for seconds in (0, -1, 2**31):
        refusal(Malformed, partial(store.claim_capture, "c", "me", seconds))
        refusal(Malformed, partial(store.extend_capture, "c", source.token, seconds))
    refusal(UnknownCapture, lambda: store.release_capture("none", 1))
