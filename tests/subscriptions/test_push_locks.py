"""Pushes and the locks that they hold: another pusher, the end of a lock, the end of the budget."""

from typing import Any

import psycopg
import pytest

from millrace.resources.event_store import EventStore, LeasedEvent
from millrace.resources.subscriptions import push
from millrace.resources.subscriptions.push import push_events
from tests.support.factories import value
from tests.support.views.receiver import Receiver, deliver, locks, place, pushed, received, receiver

__all__ = ["pushed", "receiver"]


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_answer_that_comes_after_another_pusher_took_over_changes_nothing(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    place(pushed, "a", events=("placed",))
    held: list[LeasedEvent] = []

    def taken_over(_: dict[str, Any]) -> int:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update event_store.stream_locks set locked_until = event_store_private.clock()")
            held.extend(EventStore(connection).lease_events("hook", 1, 600))
        return status

    receiver.answer = taken_over
    assert deliver(dsn) == 0
    (event,) = held
    assert locks(pushed.connection) == [("a", event.offset)]
    pushed.ack_event("hook", "a", event.offset, event.lease_token)


def test_an_event_that_another_pusher_took_over_is_left_to_it(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", "b", events=("placed",))

    def taken_over(body: dict[str, Any]) -> int:
        # the receiver was so slow that the lock ended: another pusher delivered and acknowledged it meanwhile
        if body["decider_id"] == "a":
            with psycopg.connect(dsn, autocommit=True) as connection:
                EventStore(connection).ack_event("hook", "a", body["offset"])
        return 200

    receiver.answer = taken_over
    assert deliver(dsn) == 1
    assert received(receiver, "a") == received(receiver, "b") == ["placed"]


def test_the_budget_is_kept_in_the_middle_of_a_batch_and_what_was_not_sent_is_free_at_once(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    now = 0.0

    def slow(_: dict[str, Any]) -> int:
        nonlocal now
        now += 100
        return 200

    class Clock:
        monotonic = staticmethod(lambda: now)

    monkeypatch.setattr(push, "time", Clock)
    receiver.answer = slow
    assert deliver(dsn, budget_s=150) == 2
    assert len(receiver.bodies) == 2
    assert locks(pushed.connection) == []
    assert deliver(dsn, budget_s=1_000) == 1
    assert len({body["event_id"] for body in receiver.bodies}) == 3


def test_what_could_not_be_sent_before_its_lock_ends_is_given_back_and_fetched_again(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(pushed, "a", "b", "c", "d", events=("placed",))
    now = 0.0

    def slow(_: dict[str, Any]) -> int:
        nonlocal now
        now += 100
        return 200

    class Clock:
        monotonic = staticmethod(lambda: now)

    monkeypatch.setattr(push, "time", Clock)
    receiver.answer = slow
    report = push_events(dsn, "hook", budget_s=10_000, idle_s=0, allowed=["127.0.0.1"])
    assert (report.batches, report.events) == (2, 4)
    assert len({body["event_id"] for body in receiver.bodies}) == len(receiver.bodies) == 4


def test_locks_outlast_the_slowest_receiver(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
    pushed.connection.execute("update event_store.views set lock_timeout_s = 1 where view = 'hook'")
    place(pushed, "a", events=("placed",))
    lasts: list[float] = []

    def look(_: dict[str, Any]) -> int:
        with psycopg.connect(dsn) as connection:
            lasts.append(
                value(
                    connection,
                    "select extract(epoch from locked_until - clock_timestamp())::float8 from event_store.stream_locks",
                )
            )
        return 200

    receiver.answer = look
    assert deliver(dsn) == 1
    assert lasts[0] > push.TIMEOUT_S
