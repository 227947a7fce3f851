"""A stream that fails at a named event: the events before it are acknowledged, and attempts count for that event."""

from dataclasses import replace
from typing import Any

import pytest

from millrace.resources.errors import Malformed, NotInFlight, PositionOutOfRange
from millrace.resources.event_store import EventStore, Lease
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.factories import append_to, rows
from tests.support.views.failing_streams import at, failure, locks, streams

__all__ = ["bulk", "streams"]


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
    wrong: Any
    for wrong in (-1, 1.5, "x", True, 10**19):
        with pytest.raises(Malformed, match="whole offset"):
            bulk.fail_streams("v", leases[0], [replace(failure(bad), offset=wrong)])
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
