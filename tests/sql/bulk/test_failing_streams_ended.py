"""Failing streams in batches that are committed in part, in rebuilds, and after a kill or a takeover."""

from dataclasses import replace

import pytest

from millrace.resources.errors import LeaseLost, PositionOutOfRange
from millrace.resources.event_store import EventStore, StreamFailure
from tests.support.factories import Connect, append, append_to, ids_of_one_partition, terminate
from tests.support.views.failing_streams import at, failure, finish, locks, read, state

# Parts of a batch


def test_a_part_of_a_range_with_a_retry_in_it_loses_and_doubles_nothing(bulk: EventStore, streams: list[str]) -> None:
    bad, good, other = streams
    first = [event.event_id for event in append_to(bulk, bad, good)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    second = [event.event_id for event in append_to(bulk, other, bad, good, bad)]
    at(bulk, 5)
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (2, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [first[0], second[1], second[3], second[0], second[2]]
    bulk.commit_batch("v", [replace(lease, to_position=3)])  # the first of bad, one event of the range
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (3, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [second[1], second[3], second[2]]
    bulk.commit_batch("v", [lease])
    assert locks(bulk) == []
    assert bulk.claim_batch("v", "me") == []


def test_a_stream_may_fail_beyond_the_part_that_is_committed(bulk: EventStore, streams: list[str]) -> None:
    good, bad, _ = streams
    a, b, c = (event.event_id for event in append_to(bulk, good, bad, good))
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(bad)])
        bulk.commit_batch("v", [replace(lease, to_position=1)])
    assert [e.event_id for e in read(bulk, bulk.claim_batch("v", "me"))] == [c]
    bulk.release_owner("me")
    at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(bad, b), (good, c)]
    assert bulk.claim_batch("v", "me") == []
    assert a not in (b, c)


def test_what_is_acknowledged_of_a_stream_beyond_the_checkpoint_is_not_delivered_again_when_the_filter_is_narrowed(
    bulk: EventStore, streams: list[str]
) -> None:
    bad, other, _ = streams
    first = append(bulk, bad)
    append(bulk, other)
    # the offset before the failing event is of another log partition
    append_to(bulk, *ids_of_one_partition(bulk.connection, 1, partition=5))
    failing = append(bulk, bad, first.event_id, event="paid")
    leases = bulk.claim_batch("v", "me")
    (lease,) = [lease for lease in leases if lease.partition == 0]
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [StreamFailure("order", bad, "no", failing.offset)])
        bulk.release_batch("v", leases)
    bulk.register_view("v", mode="bulk", events=["placed"])
    at(bulk, 5)
    leases = [lease for lease in bulk.claim_batch("v", "me") if lease.partition == 0]
    assert [e.decider_id for e in read(bulk, leases)] == [other]


def test_nothing_beyond_the_leased_range_can_be_committed(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    (lease,) = bulk.claim_batch("v", "me")  # only retries
    append_to(bulk, *streams)
    bulk.sequence_events()
    for offset in (4, 6, 10**9, 2, -1):
        with pytest.raises(PositionOutOfRange, match="position 3, leased up to 3, high-water mark 6"):
            bulk.commit_batch("v", [replace(lease, to_position=offset)])
    finish(bulk, [lease])
    assert len(finish(bulk, bulk.claim_batch("v", "me"))) == 3


# Rebuilds


def test_a_rebuild_reads_every_stream_and_frees_those_that_do_not_fail_again(
    bulk: EventStore, streams: list[str]
) -> None:
    recovered, dead, _ = streams
    bulk.register_view("v", mode="bulk", max_attempts=1)
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=1)
    events = [event.event_id for event in append_to(bulk, *streams, *streams, elsewhere)]
    finish(bulk, bulk.claim_batch("v", "me"), {recovered, dead, elsewhere})
    assert len(bulk.dead_letters()) == 3
    lease = bulk.claim_partition("v", 0, "me")
    assert [e.event_id for e in bulk.read_batch("v", lease)] == events[:6]
    before = state(bulk)
    with pytest.raises(PositionOutOfRange, match="leased up to 6"):
        bulk.commit_batch("v", [replace(lease, to_position=5)])
    assert bulk.release_batch("v", [lease]) == 1
    assert len(bulk.dead_letters()) == 3  # until it commits, nothing is freed
    assert before != state(bulk)
    lease = bulk.claim_partition("v", 0, "me")
    with bulk.connection.transaction():
        assert bulk.fail_streams("v", lease, [failure(dead, "again")]) == 1
        bulk.commit_batch("v", [lease])
    assert {(each.decider_id, each.last_error, each.attempts) for each in bulk.dead_letters()} == {
        (dead, "again", 2),
        (elsewhere, "no such customer", 1),
    }
    assert bulk.claim_batch("v", "me") == []
    assert bulk.retry_dead_letters("v", "order", dead) == 1
    # its rows were made anew without it
    assert [each for _, each in finish(bulk, bulk.claim_batch("v", "me"))] == [events[1], events[4]]


def test_a_stream_that_was_half_retried_is_read_whole_by_a_rebuild_and_retried_whole_after_it(
    bulk: EventStore, streams: list[str]
) -> None:
    bad = streams[0]
    events = [event.event_id for event in append_to(bulk, bad)]
    finish(bulk, bulk.claim_batch("v", "me"))
    events += [event.event_id for event in append_to(bulk, bad)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    lease = bulk.claim_partition("v", 0, "me")
    assert [e.event_id for e in bulk.read_batch("v", lease)] == events
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(bad)])
        bulk.commit_batch("v", [lease])
    at(bulk, 10)
    assert [each for _, each in finish(bulk, bulk.claim_batch("v", "me"))] == events


def test_between_fail_and_commit_a_crash_changes_nothing(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams[:1])
    at(bulk, 5)
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    events, before = read(bulk, [lease]), state(bulk)
    for ending in ("rollback", "kill"):
        connection = connect(autocommit=False)
        doomed = EventStore(connection)
        assert doomed.fail_streams("v", lease, [failure(each) for each in streams]) == 0
        if ending == "kill":
            terminate(bulk.connection, connection.info.backend_pid)
        else:
            doomed.commit_batch("v", [lease])
            connection.rollback()
        assert state(bulk) == before
        assert read(bulk, [lease]) == events
    finish(bulk, [lease])
    assert locks(bulk) == []


def test_a_lease_that_was_taken_over_neither_reads_nor_fails_nor_commits(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    append_to(bulk, *streams)
    (late,) = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    at(other, 60)
    leases = other.claim_batch("v", "them")
    before = state(bulk)
    for call in (
        lambda: bulk.read_batch("v", late),
        lambda: bulk.fail_streams("v", late, [failure(streams[0])]),
        lambda: bulk.commit_batch("v", [late]),
        lambda: bulk.extend_lease("v", [late]),
    ):
        with pytest.raises(LeaseLost, match=f"token {late.lease_token} stated") as refused:
            call()
        assert refused.value.hint is not None
        assert state(bulk) == before
    finish(other, leases)
    with pytest.raises(LeaseLost, match="no lease"):
        bulk.read_batch("v", late)
