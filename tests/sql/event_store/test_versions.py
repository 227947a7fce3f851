"""The version of an event: 1, 2, 3 … along its stream, however it is appended; a writer's expected version."""

from typing import Any, LiteralString
from uuid import uuid4

import pytest

from millrace.errors import Conflict, EventIdReused, Malformed, StreamClosed
from millrace.event_store import Event
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, new_event, refusal, rows, start, value
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_event, append_events


def versions(store: PlatformStore) -> list[int]:
    """Return the versions of the stream o-1 in the order of their offsets."""
    query: LiteralString = (
        """select array_agg(version order by "offset") from event_store.events where decider_id = 'o-1'"""
    )
    found: list[int] = value(store.connection, query)
    return found


def expecting(store: PlatformStore, expected: int | None, decider_id: str = "o-1", **more: Any) -> Event:  # noqa: ANN401
    stated = {"previous_id": None, "expected_version": expected, **more}
    return append_event(store, "placed", uuid4(), "order", decider_id, {}, uuid4(), **stated)


def expected(version: int | None, decider_id: str = "o-1") -> BatchEvent:
    return BatchEvent("order", decider_id, "placed", uuid4(), {}, uuid4(), expected_version=version)


def test_the_expected_version_is_the_lock(orders: PlatformStore) -> None:
    first = expecting(orders, 0)
    assert first.previous_id is None
    second = expecting(orders, 1)
    assert second.previous_id == first.event_id
    third = expecting(orders, 2, previous_id=second.event_id)
    assert versions(orders) == [1, 2, 3]
    for wrong in (0, 2, 4, 9223372036854775807):
        refused = refusal(Conflict, lambda wrong=wrong: expecting(orders, wrong))  # type: ignore[misc]
        assert refused.message == "expected_version must be the version of the decider stream"
        assert f"expected_version {wrong}; stream (order, o-1) has" in (refused.detail or "")
        assert f"{third.event_id} at version 3" in (refused.detail or "")
    refused = refusal(Conflict, lambda: expecting(orders, 3, previous_id=second.event_id))
    assert f"previous_id {second.event_id} and expected_version 3" in (refused.detail or "")
    assert "has no event" in (refusal(Conflict, lambda: expecting(orders, 1, "o-2")).detail or "")
    refused_for = refusal(Malformed, lambda: expecting(orders, -2))
    assert refused_for.detail == "expected_version is -2; it is 0 for a new stream"
    assert versions(orders) == [1, 2, 3]
    expecting(orders, 3, final=True)
    refusal(StreamClosed, lambda: expecting(orders, 4))


def test_a_retry_with_the_same_expected_version_returns_the_stored_event(orders: PlatformStore) -> None:
    append(orders, "o-1")
    event: tuple[Any, ...] = uuid4(), "order", "o-1", {}, uuid4(), None
    stored = append_event(orders, "placed", *event, expected_version=1)
    append(orders, "o-1", stored.event_id)
    assert append_event(orders, "placed", *event, expected_version=1) == stored
    for other in (0, 2, None):
        refusal(EventIdReused, lambda other=other: append_event(orders, "placed", *event, expected_version=other))  # type: ignore[misc]
    assert versions(orders) == [1, 2, 3]


def test_a_batch_counts_on_along_its_streams(orders: PlatformStore) -> None:
    append(orders, "o-1")
    batch = [expected(1), expected(0, "o-2"), expected(2), new_event("o-1"), expected(1, "o-2"), expected(4)]
    done = append_events(orders, batch)
    assert [event.version for event in done] == [2, 1, 3, 4, 2, 5]
    assert [event.offset for event in done] == sorted(event.offset for event in done)
    again = append_events(orders, batch)
    assert [(event.version, event.appended) for event in again] == [(event.version, False) for event in done]
    refused = refusal(Conflict, lambda: append_events(orders, [expected(5), expected(2, "o-2"), expected(7)]))
    assert refused.message == "expected_version must be the version of the decider stream"
    refusal(EventIdReused, lambda: append_events(orders, [BatchEvent(**{**vars(batch[0]), "expected_version": 2})]))
    refused_for = refusal(Malformed, lambda: append_events(orders, [expected(-3)]))
    assert refused_for.detail == "event 1 of the batch: expected_version is -3; it is 0 for a new stream"
    chained = BatchEvent("order", "o-3", "placed", uuid4(), {}, uuid4(), expected_version=1)
    refusal(Conflict, lambda: append_events(orders, [chained]))
    assert versions(orders) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("by", ["event", "batch"])
def test_a_conflict_waits_for_nobody_and_holds_no_lock(orders: PlatformStore, connect: Connect, by: str) -> None:
    append(orders, "o-1", append(orders, "o-1").event_id)
    ahead, late = PlatformStore(connect(autocommit=False)), PlatformStore(connect(autocommit=False))
    expecting(ahead, 2)  # and it does not commit
    late.connection.execute("select")

    def write() -> None:
        with late.connection.transaction():  # a savepoint: locks taken before it would stay
            append_events(late, [expected(1)]) if by == "batch" else expecting(late, 1)

    assert isinstance(start(write).exception(patience()), Conflict)
    # except its own ids, and sequences, which Postgres keeps locked until the transaction ends
    held = """
        select l.locktype, l.mode from pg_locks l
        where l.pid = %s and l.locktype not in ('virtualxid', 'transactionid')
          and not exists (select from pg_sequence s where s.seqrelid = l.relation)
    """
    assert rows(orders.connection, held, late.connection.info.backend_pid) == []
    ahead.connection.commit()
    assert versions(orders) == [1, 2, 3]
