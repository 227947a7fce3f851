"""Giving up history: only archived events that no consumer needs any more."""

from collections.abc import Callable
from typing import LiteralString

import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import HistoryNeeded, LeaseLost, PositionOutOfRange
from millrace.event_store import StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.patience import patience
from tests.support.sql_calls import append_events


@pytest.fixture(autouse=True)
def ids(bulk: PlatformStore) -> list[str]:
    """Return the ids of two streams; log partition 0 holds ten events of theirs, archived and consumed."""
    factories.set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    found = factories.ids_of_one_partition(bulk.connection, 2)
    factories.append_to(bulk, *found * 5)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    ArchiveStore(bulk.connection).mark_archived(0, 10)
    return found


def raised(store: PlatformStore, to: int) -> int:
    return ArchiveStore(store.connection).raise_low_water_mark(0, to)


def assert_needed(store: PlatformStore, offset: int, why: str) -> None:
    """Assert a refusal for this reason that changes nothing."""
    before = factories.rows(store.connection, "select * from event_store.partitions order by 1")
    with pytest.raises(HistoryNeeded, match=why) as refused:
        raised(store, offset)
    assert f"log partition 0 below {offset}" in str(refused.value.detail)
    assert refused.value.hint
    assert factories.rows(store.connection, "select * from event_store.partitions order by 1") == before


def test_it_rises_is_written_down_and_never_falls(bulk: PlatformStore) -> None:
    archive = ArchiveStore(bulk.connection)
    assert [archive.raise_low_water_mark(0, to, "old") for to in (4, 4, 2, 0, 10)] == [4, 4, 4, 4, 10]
    entries: LiteralString = """
        select view, reason, done_by = session_user, detail -> 'from_position', detail -> 'to_position'
        from event_store.audit_log where operation = 'raise_low_water_mark' order by audit_id
    """
    assert factories.rows(bulk.connection, entries) == [(None, "old", True, 0, 4), (None, "old", True, 4, 10)]


def test_what_is_not_archived_is_kept(bulk: PlatformStore, ids: list[str]) -> None:
    factories.append_to(bulk, *ids)
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    assert_needed(bulk, 11, "it is archived up to 10")
    assert raised(bulk, 10) == 10


def test_what_lies_ahead_of_a_view_is_kept(bulk: PlatformStore) -> None:
    for mode, at in (("bulk", 4), ("rows", 6)):
        bulk.register_view("late", "-infinity", mode=mode)
        bulk.seek_view("late", "RESET_TO_OFFSET", at, partition=0)
        assert_needed(bulk, at + 1, f"view 'late' stands at {at}")
        assert raised(bulk, at) == at
        bulk.unregister_view("late")
        assert raised(bulk, at + 1) == at + 1


def test_what_a_view_does_not_want_it_does_not_need(bulk: PlatformStore, ids: list[str]) -> None:
    bulk.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    assert raised(bulk, 5) == 5
    factories.append_to(bulk, *ids)
    append_events(bulk, [factories.new_event(ids[0], event="paid")])
    bulk.commit_batch("v", bulk.claim_batch("v", "me"))
    ArchiveStore(bulk.connection).mark_archived(0, 13)
    assert_needed(bulk, 13, "view 'paid' stands at 1")
    assert raised(bulk, 12) == 12


def test_what_a_stream_that_waits_or_is_parked_needs_is_kept(bulk: PlatformStore, ids: list[str]) -> None:
    bulk.register_view("w", "-infinity", mode="bulk", max_attempts=1)
    (lease,) = bulk.claim_batch("w", "me")
    bulk.fail_streams("w", lease, [StreamFailure("order", ids[1], "no")])
    bulk.commit_batch("w", [lease])
    assert_needed(bulk, 2, rf"stream \(order, {ids[1]}\) has a lock in view 'w'")
    assert raised(bulk, 1) == 1
    bulk.discard_dead_letter("w", "order", ids[1], "a test")
    assert raised(bulk, 3) == 3
    assert_needed(bulk, 4, "has a lock")


def test_what_a_rows_view_has_not_acknowledged_is_kept(bulk: PlatformStore, ids: list[str]) -> None:
    bulk.register_view("r", "-infinity")
    factories.pump(bulk, "r")
    assert_needed(bulk, 1, rf"stream \(order, {ids[0]}\) has a lock in view 'r'")
    for event in bulk.stream_events("r", 2):
        bulk.ack_event("r", event.decider_id, event.offset)
    assert raised(bulk, 2) == 2
    assert_needed(bulk, 3, "has a lock")


def test_what_a_rebuild_reads_is_kept_until_its_lease_is_ended(bulk: PlatformStore) -> None:
    lease = bulk.claim_partition("v", 0, "rebuilder", 60)
    for time in ("00:00:00", "00:10:00"):  # an expired lease can still be committed
        factories.set_clock(bulk.connection, f"2030-01-01 {time}+00")
        assert_needed(bulk, 1, "rebuilder reads it from 0 for view 'v'")
    assert bulk.release_owner("rebuilder") == 1
    assert raised(bulk, 1) == 1
    with pytest.raises(LeaseLost):
        bulk.read_batch("v", lease)
    assert bulk.claim_partition("v", 0, "rebuilder").from_position == 1


def test_while_a_view_is_being_placed_nothing_is_given_up(bulk: PlatformStore, connect: factories.Connect) -> None:
    places: list[Callable[[PlatformStore], object]] = [
        lambda store: store.register_view("new", "-infinity", mode="bulk"),
        lambda store: store.seek_view("v", "RESET_TO_EARLIEST"),
        lambda store: store.claim_partition("v", 0, "rebuilder"),
    ]
    for place in places:
        holder = connect(autocommit=False)
        place(PlatformStore(holder))
        assert_needed(bulk, 1, "an open transaction")
        holder.rollback()
    assert raised(bulk, 1) == 1


def test_whoever_is_placed_meanwhile_waits_and_is_placed_after_it(
    bulk: PlatformStore, connect: factories.Connect
) -> None:
    holder, late = connect(autocommit=False), connect()
    ArchiveStore(holder).raise_low_water_mark(0, 4)
    registered = factories.start(lambda: PlatformStore(late).register_view("late", "-infinity", mode="bulk"))
    factories.wait_blocked(bulk.connection, late.info.backend_pid)
    assert_needed(bulk, 5, "an open transaction .* shortens it")
    holder.commit()
    registered.result(patience())
    query = "select position from event_store.checkpoints where view = 'late' and partition = 0"
    assert factories.value(bulk.connection, query) == 4


def test_a_new_view_begins_at_the_first_kept_event_purged_or_not(bulk: PlatformStore) -> None:
    raised(bulk, 4)
    for view, start_at in (("a", "-infinity"), ("b", "2029-01-01 00:00:00+00")):
        bulk.register_view(view, start_at, mode="bulk")
        (lease,) = bulk.claim_batch(view, "me")
        assert (lease.from_position, lease.to_position) == (4, 10)
        bulk.commit_batch(view, [lease])
    ArchiveStore(bulk.connection).purge_events(0)
    bulk.register_view("c", "-infinity", mode="bulk")
    (lease,) = bulk.claim_batch("c", "me")
    assert len(bulk.read_batch("c", lease)) == 6


def test_what_the_log_does_not_hold_is_refused(bulk: PlatformStore) -> None:
    for offset in (11, -1, 2**62):
        with pytest.raises(PositionOutOfRange, match="high-water mark 10"):
            raised(bulk, offset)


def test_an_operator_killed_before_the_commit_gives_nothing_up(bulk: PlatformStore, connect: factories.Connect) -> None:
    operator = connect(autocommit=False)
    doomed = ArchiveStore(operator)
    assert doomed.raise_low_water_mark(0, 4, "old") == 4
    assert doomed.purge_events(0) == 4
    factories.append(bulk, "meanwhile")
    assert bulk.sequence_events() == 1
    with pytest.raises(HistoryNeeded, match="shortens it"):
        raised(bulk, 5)
    factories.terminate(bulk.connection, operator.info.backend_pid)
    assert bulk.partition_info()[0].earliest_position == 0
    assert factories.value(bulk.connection, "select count(*) from event_store.event_log where partition = 0") == 10
    done = {entry.operation for entry in bulk.audit_log()}
    assert not done & {"raise_low_water_mark", "purge_events"}
    assert raised(bulk, 5) == 5
    assert ArchiveStore(bulk.connection).purge_events(0) == 5
