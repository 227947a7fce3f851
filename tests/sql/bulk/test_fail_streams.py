"""A stream that fails waits by itself: the rest of its batch goes on; it may fail at a named event."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from millrace.resources.errors import (
    NotInFlight,
    PositionOutOfRange,
)
from millrace.resources.event_store import EventStore, Lease, StreamFailure
from tests.support.factories import Connect, append, append_to, at_once, ids_of_one_partition, rows, value
from tests.support.views.failing_streams import Delivered, at, failure, finish, locks, read, state

# A21


def test_a_poisoned_stream_waits_and_the_others_of_its_batch_are_acknowledged(
    bulk: EventStore, streams: list[str]
) -> None:
    bad, good, other = streams
    a, b, c, d = (event.event_id for event in append_to(bulk, bad, good, bad, other))
    assert finish(bulk, bulk.claim_batch("v", "me"), {bad}) == [(good, b), (other, d)]
    assert value(bulk.connection, "select position from event_store.checkpoints where partition = 0") == 4
    assert locks(bulk) == [(bad, 1)]
    at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(bad, a), (bad, c)]
    assert locks(bulk) == []


def test_later_events_of_a_failed_stream_wait_behind_it(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    first = [event.event_id for event in append_to(bulk, bad, bad)]
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    second = [event.event_id for event in append_to(bulk, bad, good, bad)]
    at(bulk, 4)
    assert finish(bulk, bulk.claim_batch("v", "me")) == [(good, second[1])]
    assert bulk.view_lag("v")[0].lag == 4
    at(bulk, 5)
    third = [event.event_id for event in append_to(bulk, good, bad)]
    assert finish(bulk, bulk.claim_batch("v", "me")) == [
        *[(bad, event_id) for event_id in (*first, second[0], second[2], third[1])],
        (good, third[0]),
    ]
    assert locks(bulk) == []
    assert bulk.view_lag("v")[0].lag == 0


def test_a_failing_stream_is_tried_later_each_time_then_parked(bulk: EventStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=4)
    append_to(bulk, streams[0])
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


def parked(store: EventStore, decider_id: str, others: Collection[str] = ()) -> Delivered:
    """Park a stream of three events; return them."""
    store.register_view("v", mode="bulk", max_attempts=1)
    events = [(decider_id, event.event_id) for event in append_to(store, decider_id, decider_id)]
    assert finish(store, store.claim_batch("v", "me"), {decider_id}) == []
    events += [(decider_id, event.event_id) for event in append_to(store, decider_id)]
    if others:
        append_to(store, *others)
    finish(store, store.claim_batch("v", "me"))
    assert [dead.decider_id for dead in store.dead_letters()] == [decider_id]
    assert store.claim_batch("v", "me") == []
    return events


def test_a_parked_stream_that_is_retried_resumes_in_order(bulk: EventStore, streams: list[str]) -> None:
    events = parked(bulk, streams[0], streams[1:])
    assert bulk.retry_dead_letters("v") == 1
    assert finish(bulk, bulk.claim_batch("v", "me")) == events
    assert locks(bulk) == []


def test_a_discarded_event_is_skipped_and_only_that_one(bulk: EventStore, streams: list[str]) -> None:
    events = parked(bulk, streams[0])
    discarded = bulk.discard_dead_letter("v", "order", streams[0], "a test order")
    assert discarded is not None
    assert (streams[0], discarded.event_id) == events[0]
    assert finish(bulk, bulk.claim_batch("v", "me")) == events[1:]
    assert locks(bulk) == []


def test_a_retry_has_all_attempts_again_after_a_success(bulk: EventStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=2)
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    at(bulk, 5)
    finish(bulk, bulk.claim_batch("v", "me"))
    append_to(bulk, streams[0])
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    assert bulk.dead_letters() == []
    assert locks(bulk) == [(streams[0], 1)]


def test_many_streams_fail_and_how_many_are_parked_is_returned(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    bulk.fail_streams("v", lease, [failure(streams[0])])
    bulk.commit_batch("v", [lease])
    bulk.register_view("v", mode="bulk", max_attempts=2)
    at(bulk, 5)
    append_to(bulk, *streams)
    (lease,) = bulk.claim_batch("v", "me")
    assert bulk.fail_streams("v", lease, [failure(each, "é" * 10_000) for each in streams]) == 1
    bulk.commit_batch("v", [lease])
    assert [(dead.decider_id, dead.waiting) for dead in bulk.dead_letters()] == [(streams[0], 2)]
    assert {len(dead.last_error) for dead in bulk.dead_letters()} == {10_000}


# A19


def test_twenty_pending_events_of_one_stream_come_in_one_claim_in_order(bulk: EventStore, streams: list[str]) -> None:
    events = [(streams[0], event.event_id) for event in append_to(bulk, *[streams[0]] * 20)]
    (lease,) = bulk.claim_batch("v", "me")
    assert (lease.from_position, lease.to_position) == (0, 20)
    assert finish(bulk, [lease], streams) == []
    at(bulk, 5)
    assert finish(bulk, bulk.claim_batch("v", "me")) == events


# What a lease does not deliver


def test_only_streams_that_the_lease_delivers_can_fail(bulk: EventStore, streams: list[str]) -> None:
    behind, waiting, delivered = streams
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=1)
    append_to(bulk, behind, waiting)
    finish(bulk, bulk.claim_batch("v", "me"), {waiting})
    append_to(bulk, waiting, delivered, elsewhere)
    leases = {lease.partition: lease for lease in bulk.claim_batch("v", "me")}
    append_to(bulk, behind)  # after the claim
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


def test_two_failures_of_one_batch_at_once_count_once(bulk: EventStore, streams: list[str], connect: Connect) -> None:
    append_to(bulk, streams[0])
    (lease,) = bulk.claim_batch("v", "me")
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([lambda s=s: s.fail_streams("v", lease, [failure(streams[0])]) for s in stores])  # type: ignore[misc]
    assert sorted(type(result.exception()).__name__ for result in results) == ["NoneType", "NotInFlight", "NotInFlight"]
    assert locks(bulk) == [(streams[0], 1)]


# A20


def test_a_stream_whose_next_event_has_no_partition_offset_yet_is_not_due(
    bulk: EventStore, streams: list[str], connect: Connect
) -> None:
    bad = streams[0]
    append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    at(bulk, 5)
    leases = bulk.claim_batch("v", "me")
    append_to(bulk, bad)
    with bulk.connection.transaction():
        bulk.commit_batch("v", leases)
    somebody = connect(autocommit=False)
    somebody.execute("select from event_store.sequencer for update")  # nobody else sequences
    assert bulk.claim_batch("v", "me") == []
    somebody.rollback()
    assert len(finish(bulk, bulk.claim_batch("v", "me"))) == 1
    assert locks(bulk) == []


def test_a_due_retry_in_a_leased_partition_waits_for_the_lease(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    append_to(bulk, bad)
    finish(bulk, bulk.claim_batch("v", "me"), {bad})
    append_to(bulk, good)
    leases = bulk.claim_batch("v", "me")
    at(bulk, 5)
    assert bulk.claim_batch("v", "them") == []
    assert [each[0] for each in finish(bulk, leases)] == [good]
    assert [each[0] for each in finish(bulk, bulk.claim_batch("v", "them"))] == [bad]


def test_a_failed_stream_that_the_view_wants_no_more_of_is_forgotten(bulk: EventStore, streams: list[str]) -> None:
    append_to(bulk, *streams)
    finish(bulk, bulk.claim_batch("v", "me"), streams)
    bulk.register_view("v", mode="bulk", deciders=["invoice"])
    at(bulk, 5)
    assert bulk.claim_batch("v", "me") == []
    assert locks(bulk) == []


def test_unwanted_events_of_a_failed_stream_are_left_out_of_its_retry(orders: EventStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", events=["paid"])
    at(orders, 0)
    last, wanted = None, []
    for event in ("placed", "paid", "placed", "paid", "placed"):
        last = append(orders, "o-1", last, event=event).event_id
        wanted += [last] if event == "paid" else []
    leases = orders.claim_batch("v", "me")
    orders.fail_streams("v", leases[0], [failure("o-1")])
    orders.commit_batch("v", leases)
    at(orders, 5)
    leases = orders.claim_batch("v", "me")
    assert [e.event_id for e in read(orders, leases)] == wanted
    orders.commit_batch("v", leases)
    assert locks(orders) == []


def fail(store: EventStore, leases: list[Lease], decider_id: str, offset: int) -> None:
    with store.connection.transaction():
        for lease in leases:
            store.fail_streams("v", lease, [replace(failure(decider_id), offset=offset)])
        store.commit_batch("v", leases)


def delivered(store: EventStore) -> tuple[list[Lease], list[int]]:
    leases = store.claim_batch("v", "me")
    return leases, [event.offset for lease in leases for event in store.read_batch("v", lease)]


def test_what_comes_before_the_named_event_is_acknowledged(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    append_to(bulk, bad, bad, good, bad)
    leases, (first, second, other, third) = delivered(bulk)
    assert first < second < other < third
    fail(bulk, leases, bad, second)
    assert bulk.view_lag("v")[0].lag == 2
    at(bulk, 5)
    leases, offsets = delivered(bulk)
    assert offsets == [second, third]
    bulk.commit_batch("v", leases)
    assert locks(bulk) == []


def test_attempts_count_for_one_event_and_begin_anew_with_another(bulk: EventStore, streams: list[str]) -> None:
    bad = streams[0]
    append_to(bulk, bad, bad, bad)
    leases, (_, second, third) = delivered(bulk)
    fail(bulk, leases, bad, second)
    at(bulk, 5)
    leases, _ = delivered(bulk)
    fail(bulk, leases, bad, second)
    assert locks(bulk) == [(bad, 2)]
    at(bulk, 20)
    leases, _ = delivered(bulk)
    fail(bulk, leases, bad, third)
    assert locks(bulk) == [(bad, 1)]
    assert rows(bulk.connection, "select last_offset from event_store.stream_locks") == [(third - 1,)]


def test_a_dead_letter_names_the_event_that_failed_and_gives_up_no_other(bulk: EventStore, streams: list[str]) -> None:
    bulk.register_view("v", mode="bulk", max_attempts=1)
    bad = streams[0]
    append_to(bulk, bad, bad, bad)
    leases, (_, second, third) = delivered(bulk)
    fail(bulk, leases, bad, second)
    (letter,) = bulk.dead_letters("v")
    assert (letter.offset, letter.waiting) == (second, 2)
    bulk.discard_dead_letter("v", "order", bad, "nobody can read it", second)
    assert delivered(bulk)[1] == [third]


def test_in_a_rebuild_it_goes_back_to_the_named_event(bulk: EventStore, streams: list[str]) -> None:
    bad = streams[0]
    append_to(bulk, bad, bad, bad)
    leases, (_, second, third) = delivered(bulk)
    fail(bulk, leases, bad, third)
    lease = bulk.claim_partition("v", 0, "me")
    fail(bulk, [lease], bad, second)
    assert locks(bulk) == [(bad, 1)]
    at(bulk, 5)
    assert delivered(bulk)[1] == [second, third]


def test_an_event_that_the_lease_does_not_deliver_is_refused(bulk: EventStore, streams: list[str]) -> None:
    bad, good, _ = streams
    append_to(bulk, bad, good, bad)
    leases, (first, other, second) = delivered(bulk)
    append_to(bulk, bad)
    bulk.sequence_events()
    for offset in (first - 1, other, second + 1, second + 100):
        with pytest.raises(NotInFlight, match=f"at offset {offset}"):
            bulk.fail_streams("v", leases[0], [replace(failure(bad), offset=offset)])
    assert locks(bulk) == []


def test_a_commit_that_ends_before_the_failed_event_would_lose_what_lies_between_and_is_refused(
    bulk: EventStore, streams: list[str]
) -> None:
    bad, good, _ = streams
    append_to(bulk, good, bad, bad)
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
