"""Registrations and batches beside a transaction that does not end: they wait a while, then proceed or say why not."""

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, start_blocked
from tests.support.patience import patience


@pytest.mark.parametrize(
    ("lock_timeout", "call"),
    [
        ("0", "event_store.register_decider_event('ours', 'done', 'd')"),
        ("100ms", "event_store.register_decider_event('ours', 'done', 'd')"),
        ("0", "event_store.register_view('v')"),
        ("100ms", "event_store_platform.set_decider_owner('known', current_user)"),
        ("100ms", "event_store_platform.withdraw_registration('known', 'done', 1, 'event')"),
    ],
)
def test_a_registration_says_for_which_process_it_waited(connect: Connect, lock_timeout: str, call: str) -> None:
    holder, other = connect(autocommit=False), connect()
    PlatformStore(other).register_decider_event("known", "done", "d")
    PlatformStore(holder).register_decider_event("theirs", "done", "d")
    PlatformStore(holder).register_view("v")
    other.execute(f"set lock_timeout = '{lock_timeout}'".encode())
    with pytest.raises(psycopg.errors.LockNotAvailable) as refused:
        other.execute(f"select {call}".encode())
    detail = f"It is of process {holder.info.backend_pid}. Nothing was registered."
    assert (refused.value.diag.message_detail, "Try again" in str(refused.value.diag.message_hint)) == (detail, True)
    assert other.execute("show lock_timeout").fetchone() == (lock_timeout,)
    holder.commit()
    other.execute(f"select {call}".encode())


def test_a_batch_goes_on_without_a_turn_that_does_not_end(orders: PlatformStore, connect: Connect) -> None:
    holder, other = connect(autocommit=False), connect(autocommit=False)
    turn = "select event_store_private.take_turns('{a,b}')"
    holder.execute(turn)
    waits = start_blocked(orders, other, lambda: other.execute(turn))
    waits.result(patience())
    # if the turn comes in time, it is kept
    holder.rollback()
    other.execute(turn)
    late = start_blocked(orders, holder, lambda: holder.execute(turn))
    other.rollback()
    late.result(patience())
