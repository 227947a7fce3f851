"""Streams that fail or are retried by somebody who is killed or comes too late: the next owner gets the same."""

import pytest

from millrace.resources.errors import LeaseLost
from millrace.resources.event_store import EventStore
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import Connect, append_to, terminate
from tests.support.views.failing_streams import at, failure, finish, locks, read, state, streams

__all__ = ["bulk", "streams"]


@pytest.mark.parametrize("ending", ["rollback", "kill"])
def test_between_fail_and_commit_a_crash_changes_nothing(
    bulk: EventStore, streams: list[str], connect: Connect, ending: str
) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams[:1])
    at(bulk, 5)
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    events, before = read(bulk, [lease]), state(bulk)
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


def test_after_a_crash_the_next_claim_delivers_the_same(bulk: EventStore, streams: list[str], connect: Connect) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams[:1])
    append_to(bulk, *streams)
    at(bulk, 5)
    lost = read(bulk, bulk.claim_batch("v", "me", lease_s=60))
    other = EventStore(connect())
    at(other, 64)
    assert other.claim_batch("v", "them") == []
    at(other, 65)
    leases = other.claim_batch("v", "them")
    assert read(other, leases) == lost
    assert len(lost) == 4
    finish(other, leases)
    assert other.claim_batch("v", "them") == []


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


def test_a_retry_that_was_taken_over_is_not_acknowledged_by_its_former_owner(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    (late,) = bulk.claim_batch("v", "me", lease_s=60)
    other = EventStore(connect())
    at(other, 65)
    leases = other.claim_batch("v", "them")
    with pytest.raises(LeaseLost):
        bulk.commit_batch("v", [late])
    assert [e.decider_id for e in read(other, leases)] == [streams[0]]
    finish(other, leases, streams)
    assert locks(bulk) == [(streams[0], 2)]
