"""The source reads what leases deliver: the same rows as `read_batch`, without the streams that have a lock."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from millrace.resources.event_log_source import InvalidOption
from millrace.resources.event_store import EventStore, Lease
from tests.sql.bulk.test_claim_batch import bulk
from tests.support.building.event_log_reads import options_of, read, reader_of
from tests.support.factories import append_to, ids_of_one_partition
from tests.support.views.failing_streams import at, failure, streams

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bulk", "streams"]


def delivered(store: EventStore, leases: "Sequence[Lease]") -> list[tuple[str, int]]:
    return sorted((e.decider_id, e.offset) for lease in leases for e in store.read_batch("v", lease))


def stated(leases: "Sequence[Lease]", retried: "Sequence[int]", view: str = "v") -> dict[str, Any]:
    return {
        "startingOffsets": {str(lease.partition): lease.from_position for lease in leases},
        "endingOffsets": {str(lease.partition): lease.to_position for lease in leases},
        "view": view,
        "leaseTokens": {str(lease.partition): lease.lease_token for lease in leases if lease.partition in retried},
    }


def test_it_reads_ranges_without_locked_streams_and_what_the_lease_tries_again(
    bulk: EventStore, dsn: str, streams: list[str]
) -> None:
    due, waiting, good = streams
    (elsewhere,) = ids_of_one_partition(bulk.connection, 1, partition=4)
    append_to(bulk, due, due, good)
    (lease,) = bulk.claim_batch("v", "me")
    assert bulk.locked_partitions("v", [lease]) == []
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(due)])
        bulk.commit_batch("v", [lease])
    at(bulk, 3)
    append_to(bulk, waiting, good)
    (lease,) = bulk.claim_batch("v", "me")
    with bulk.connection.transaction():
        bulk.fail_streams("v", lease, [failure(waiting)])
        bulk.commit_batch("v", [lease])

    at(bulk, 5)
    append_to(bulk, due, waiting, good, elsewhere)
    leases = bulk.claim_batch("v", "me")
    locked = bulk.locked_partitions("v", leases)
    assert [(each.partition, each.retries) for each in locked] == [(0, 1)]
    expected = delivered(bulk, leases)
    assert [decider_id for decider_id, _ in expected] == sorted([due, due, due, good, elsewhere])

    # whatever is appended now is not in it
    append_to(bulk, due, good)
    bulk.sequence_events()
    found = read(dsn, **stated(leases, [0]))
    assert sorted((row["decider_id"], row["offset"]) for row in found) == expected
    unlocked = read(dsn, **stated(leases, []))
    assert {row["decider_id"] for row in unlocked} == {good, elsewhere}
    nothing_new = stated(leases, [0]) | {"startingOffsets": stated(leases, [])["endingOffsets"]}
    assert {row["decider_id"] for row in read(dsn, **nothing_new)} == {due}
    # a task for what is tried again, beside those for ranges
    assert len(reader_of(dsn, **stated(leases, [0])).partitions()) == 2


def test_tokens_that_fit_no_range_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"leaseTokens": {"0": 1}, "endingOffsets": {"0": 1}}, "only with the option view"),
        ({"leaseTokens": {"0": 1}, "view": "v"}, "log partitions that endingOffsets names"),
        ({"leaseTokens": {"1": 1}, "view": "v", "endingOffsets": {"0": 1}}, "log partitions that endingOffsets names"),
        ({"leaseTokens": ["0"], "view": "v"}, "token of its lease"),
    ]
    for options, sentence in wrong:
        with pytest.raises(InvalidOption, match=sentence) as refused:
            options_of(dsn="postgresql://", **options)
        assert json.dumps(options["leaseTokens"]) in str(refused.value)
