"""A failing stream waits alone: the rest of its batch is committed; a stream may fail at a named event."""

from dataclasses import replace

import pytest

from millrace.errors import NotInFlight, PositionOutOfRange
from millrace.event_store import Lease, StreamFailure
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.sql_calls import append_events
from tests.support.views.failing_streams import at, failure, finish, locks, read, state


def test_a_failing_stream_is_tried_later_each_time_then_parked(bulk: PlatformStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=4)
    factories.append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    due = 0
    for attempt, delay in enumerate((5, 10, 20), start=1):
        assert locks(bulk) == [(streams[0], attempt)]
        at(bulk, due + delay - 1)
        assert bulk.claim_batch("v", "me") == []
        due += delay
        at(bulk, due)
        (lease,) = bulk.claim_batch("v", "me")
        assert (lease.from_position, lease.to_position) == (1, 1)
        assert finish(bulk, [lease], streams) == []
    (dead,) = bulk.dead_letters("v")
    assert (dead.decider_id, dead.attempts, dead.last_error, dead.waiting) == (streams[0], 4, "no such customer", 1)
    at(bulk, 10**9)
    assert bulk.claim_batch("v", "me") == []
    assert bulk.poll_views()[0].due == 0


def test_many_streams_fail_and_how_many_are_parked_is_returned(bulk: PlatformStore, streams: list[str]) -> None:
    factories.append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [failure(streams[0])])
    bulk.commit_batch("v", [lease])
    bulk.register_view("v", mode="bulk", max_attempts=2)
    at(bulk, 5)
    factories.append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    assert bulk.fail_streams("v", lease, [failure(each, "é" * 10_000) for each in streams]) == 1
    bulk.commit_batch("v", [lease])
    assert [(dead.decider_id, dead.waiting) for dead in bulk.dead_letters()] == [(streams[0], 2)]
    assert {len(dead.last_error) for dead in bulk.dead_letters()} == {10_000}


def test_a_parked_stream_resumes_in_order_when_retried_or_discarded(bulk: PlatformStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=1)
    retried, discarded, other = streams
    events = factories.append_to(bulk, *streams, *streams)
    assert len(finish(bulk, bulk.claim_batch("v", "me"), {retried, discarded})) == 2
    later = factories.append_to(bulk, *streams)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(other, later[2].event_id)]
    given_up = bulk.discard_dead_letter("v", "order", discarded, "a test order")
    assert given_up is not None
    assert given_up.event_id == events[1].event_id
    assert bulk.retry_dead_letters("v") == 1
    taken = finish(bulk, bulk.claim_batch("v", "me"))
    assert [event_id for name, event_id in taken if name == retried] == [e.event_id for e in (*events[::3], later[0])]
    assert [event_id for name, event_id in taken if name == discarded] == [events[4].event_id, later[1].event_id]
    assert locks(bulk) == []


def test_a_part_of_a_range_with_a_retry_in_it_loses_and_doubles_nothing(
    bulk: PlatformStore, streams: list[str]
) -> None:
    bad, good, other = streams
    first = [event.event_id for event in factories.append_to(bulk, bad, good)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    second = [event.event_id for event in factories.append_to(bulk, other, bad, good, bad)]
    at(bulk, 5)
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (2, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [first[0], second[1], second[3], second[0], second[2]]
    bulk.commit_batch("v", [replace(lease, to_position=3)])  # the first of bad, one event of the range
    assert locks(bulk) == [(bad, 0)]  # its next event has all attempts
    factories.assert_locks_know_versions(bulk.connection)
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (3, 6)
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [second[1], second[3], second[2]]
    bulk.commit_batch("v", [lease])
    assert locks(bulk) == []
    assert bulk.claim_batch("v", "me") == []


def test_what_a_view_wants_only_since_the_lease_is_not_acknowledged(bulk: PlatformStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", events=["placed"])
    factories.append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    (later,) = append_events(bulk, [factories.new_event(streams[0], event="paid")])
    at(bulk, 5)
    leases = bulk.claim_batch("v", "me")
    bulk.register_view("v", mode="bulk", events=[])
    bulk.commit_batch("v", leases)
    assert delivered(bulk)[1] == [later.offset]


def test_a_lock_stays_while_its_stream_is_ahead_of_the_checkpoint(bulk: PlatformStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=1)
    bad, good, _ = streams
    factories.append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"))
    *_, last, other = factories.append_to(bulk, bad, bad, good)
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [replace(failure(bad), offset=last.offset)])
        bulk.release_batch("v", [lease])
    bulk.discard_dead_letter("v", "order", bad, "a test")
    leases, offsets = delivered(bulk)
    assert offsets == [other.offset]
    bulk.commit_batch("v", leases)
    assert locks(bulk) == []


def test_only_streams_that_the_lease_delivers_can_fail(bulk: PlatformStore, streams: list[str]) -> None:
    behind, waiting, delivered = streams
    (elsewhere,) = factories.ids_of_one_partition(bulk.connection, 1, partition=1)
    factories.append_to(bulk, behind, waiting)
    finish(bulk, bulk.claim_batch("v", "me"), {waiting})
    factories.append_to(bulk, waiting, delivered, elsewhere)
    leases = {lease.partition: lease for lease in bulk.claim_batch("v", "me")}
    factories.append_to(bulk, behind)  # after the claim
    before = state(bulk)
    for decider_id in (behind, waiting, elsewhere, "unknown"):
        with pytest.raises(NotInFlight, match=decider_id):
            bulk.fail_streams("v", leases[0], [failure(delivered), failure(decider_id)])
    with pytest.raises(NotInFlight):
        bulk.fail_streams("v", leases[0], [StreamFailure("invoice", delivered, "other decider")])
    assert state(bulk) == before
    bulk.fail_streams("v", leases[0], [failure(delivered)])
    with pytest.raises(NotInFlight, match=delivered):
        bulk.fail_streams("v", leases[0], [failure(delivered)])


def test_two_failures_at_once_count_once(bulk: PlatformStore, streams: list[str], connect: factories.Connect) -> None:
    factories.append_to(bulk, streams[0])
    (lease,) = bulk.claim_batch("v", "me")
    stores = [PlatformStore(connect()) for _ in range(3)]
    results = factories.at_once([lambda s=s: s.fail_streams("v", lease, [failure(streams[0])]) for s in stores])  # type: ignore[misc]
    assert sorted(type(result.exception()).__name__ for result in results) == ["NoneType", "NotInFlight", "NotInFlight"]
    assert locks(bulk) == [(streams[0], 1)]


def test_what_has_no_position_yet_is_not_due(
    bulk: PlatformStore, streams: list[str], connect: factories.Connect
) -> None:
    bad = streams[0]
    factories.append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    at(bulk, 5)
    leases = bulk.claim_batch("v", "me")
    factories.append_to(bulk, bad)
    with bulk.connection.transaction():
        bulk.commit_batch("v", leases)
    somebody = connect(autocommit=False)
    somebody.execute("select from event_store.sequencer for update")  # no other session sequences
    assert bulk.claim_batch("v", "me") == []
    somebody.rollback()
    assert len(finish(bulk, bulk.claim_batch("v", "me"))) == 1
    assert locks(bulk) == []


def test_a_failed_stream_that_the_view_wants_no_more_of_is_forgotten(bulk: PlatformStore, streams: list[str]) -> None:
    factories.append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    bulk.register_view("v", mode="bulk", deciders=["invoice"])
    at(bulk, 5)
    assert bulk.claim_batch("v", "me") == []
    assert locks(bulk) == []


def fail(store: PlatformStore, leases: list[Lease], decider_id: str, offset: int) -> None:
    with store.connection.transaction():
        for lease in leases:
            store.fail_streams("v", lease, [replace(failure(decider_id), offset=offset)])
        store.commit_batch("v", leases)


def delivered(store: PlatformStore) -> tuple[list[Lease], list[int]]:
    leases = store.claim_batch("v", "me")
    return leases, [event.offset for lease in leases for event in store.read_batch("v", lease)]


def test_a_stream_fails_at_the_event_that_is_named(bulk: PlatformStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=2)
    bad, good, _ = streams
    factories.append_to(bulk, bad, bad, good, bad)
    leases, (_, second, _, third) = delivered(bulk)
    fail(bulk, leases, bad, second)  # events before it are acknowledged
    assert bulk.view_lag("v")[0].lag == 2
    for due, failing, attempts in ((5, third, 1), (10, third, 2)):
        at(bulk, due)
        leases, offsets = delivered(bulk)
        assert offsets == ([second, third] if due == 5 else [third])
        fail(bulk, leases, bad, failing)
        assert locks(bulk) == [(bad, attempts)]
        factories.assert_locks_know_versions(bulk.connection)
    (letter,) = bulk.dead_letters("v")
    assert (letter.offset, letter.waiting) == (third, 1)
    fail(bulk, [bulk.claim_partition("v", 0, "me")], bad, second)  # a rebuild starts from the beginning
    factories.assert_locks_know_versions(bulk.connection)
    bulk.retry_dead_letters("v")
    at(bulk, 20)
    assert delivered(bulk)[1] == [second, third]


def test_a_stream_that_fails_in_a_rebuild_comes_again_from_its_beginning(
    bulk: PlatformStore, streams: list[str]
) -> None:
    factories.append_to(bulk, *[streams[0]] * 4)
    leases, offsets = delivered(bulk)
    fail(bulk, leases, streams[0], offsets[-1])
    finish(bulk, [bulk.claim_partition("v", 0, "me")], streams)
    factories.assert_locks_know_versions(bulk.connection)
    at(bulk, 3600)
    assert delivered(bulk)[1] == offsets


def test_an_event_that_the_lease_does_not_deliver_is_refused(bulk: PlatformStore, streams: list[str]) -> None:
    bad, good, _ = streams
    factories.append_to(bulk, bad, good, bad)
    leases, (first, other, second) = delivered(bulk)
    factories.append_to(bulk, bad)
    bulk.sequence_events()
    for offset in (first - 1, other, second + 1, second + 100):
        with pytest.raises(NotInFlight, match=f"at offset {offset}"):
            bulk.fail_streams("v", leases[0], [replace(failure(bad), offset=offset)])
    assert locks(bulk) == []


def test_no_commit_ends_before_the_failed_event(bulk: PlatformStore, streams: list[str]) -> None:
    """It would lose the events between them."""
    bad, good, _ = streams
    factories.append_to(bulk, good, bad, bad)
    (lease,), (_, _, third) = delivered(bulk)
    half = replace(lease, to_position=lease.from_position + 1)

    def commit_half(offset: int | None) -> None:
        with bulk.connection.transaction():
            bulk.fail_streams("v", lease, [replace(failure(bad), offset=offset)])
            bulk.commit_batch("v", [half])

    with pytest.raises(PositionOutOfRange):
        commit_half(third)
    assert locks(bulk) == []
    commit_half(None)
    assert locks(bulk) == [(bad, 1)]


def test_what_is_acknowledged_does_not_come_again_when_the_filter_narrows(
    bulk: PlatformStore, streams: list[str]
) -> None:
    bad, other, _ = streams
    first = factories.append(bulk, bad)
    factories.append(bulk, other)
    # the offset before the failing event is of another log partition
    factories.append_to(bulk, *factories.ids_of_one_partition(bulk.connection, 1, partition=5))
    failing = factories.append(bulk, bad, first.event_id, event="paid")
    leases = bulk.claim_batch("v", "me")
    (lease,) = [lease for lease in leases if lease.partition == 0]
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [StreamFailure("order", bad, "no", failing.offset)])
        bulk.release_batch("v", leases)
    bulk.register_view("v", mode="bulk", events=["placed"])
    at(bulk, 5)
    leases = [lease for lease in bulk.claim_batch("v", "me") if lease.partition == 0]
    assert [e.decider_id for e in read(bulk, leases)] == [other]


def test_a_rebuild_reads_every_stream_and_frees_what_does_not_fail_again(
    bulk: PlatformStore, streams: list[str]
) -> None:
    recovered, dead, _ = streams
    bulk.register_view("v", mode="bulk", max_attempts=1)
    (elsewhere,) = factories.ids_of_one_partition(bulk.connection, 1, partition=1)
    events = [event.event_id for event in factories.append_to(bulk, *streams, *streams, elsewhere)]
    finish(bulk, bulk.claim_batch("v", "me"), {recovered, dead, elsewhere})
    assert len(bulk.dead_letters()) == 3
    (later,) = factories.append_to(bulk, streams[2])
    lease = bulk.claim_partition("v", 0, "me")
    assert [e.event_id for e in bulk.read_batch("v", lease)] == [*events[:6], later.event_id]
    before = state(bulk)
    with pytest.raises(PositionOutOfRange, match="position 6, leased up to 7"):
        bulk.commit_batch("v", [replace(lease, to_position=6)])
    assert bulk.release_batch("v", [lease]) == 1
    assert len(bulk.dead_letters()) == 3  # the rebuild frees no stream until it commits
    assert before != state(bulk)
    lease = bulk.claim_partition("v", 0, "me")
    with bulk.connection.transaction():
        assert bulk.fail_streams("v", lease, [failure(dead, "again")]) == 1
        bulk.commit_batch("v", [lease])
    letters = {(each.decider_id, each.last_error, each.attempts) for each in bulk.dead_letters()}
    assert letters == {(dead, "again", 2), (elsewhere, "no such customer", 1)}
    assert bulk.claim_batch("v", "me") == []
    assert bulk.retry_dead_letters("v", "order", dead) == 1
    # its rows were rebuilt without it
    assert [each for _, each in finish(bulk, bulk.claim_batch("v", "me"))] == [events[1], events[4]]
