"""Pushes and the locks that they hold: another pusher, the end of a lock, the end of the budget."""

import threading
from typing import Any

import psycopg
import pytest

from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.handlers.push import push_events
from millrace.patience import BUSY_S
from tests.support.factories import value
from tests.support.views.receiver import Receiver, deliver, locks, place, pushed, receiver

__all__ = ["pushed", "receiver"]


def test_an_answer_after_a_takeover_changes_nothing(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    held: list[Delivery] = []

    def taken_over(body: dict[str, Any]) -> int:
        # in one transaction: the pusher itself would get it again
        with psycopg.connect(dsn) as connection:
            connection.execute("update event_store.stream_locks set locked_until = event_store_private.clock()")
            held.extend(PlatformStore(connection).lease_events("hook", 1, 600))
        return int(body["decider_id"])

    receiver.answer = taken_over
    for status in ("200", "400", "500"):
        place(pushed, status, events=("placed",))
        assert deliver(dsn) == 0
        event = held.pop()
        assert held == []
        assert locks(pushed.connection) == [(status, event.offset)]
        pushed.ack_event("hook", status, event.offset, event.lease_token)


def test_the_budget_is_kept(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(pushed, "a", "b", "c", "d", "e", events=("placed",))
    over = threading.Event()
    is_over = push._is_over
    monkeypatch.setattr(push, "_is_over", lambda *arguments: over.is_set() or is_over(*arguments))

    def last(_: dict[str, Any]) -> int:
        over.set()
        return 200

    receiver.answer = last
    sent = push_events(dsn, "hook", budget_s=10_000, idle_s=10_000, allowed=["127.0.0.1"], concurrency=1).events
    assert 1 <= sent == len(receiver.bodies)
    assert locks(pushed.connection) == []
    receiver.answer = lambda _: 200
    over.clear()
    assert sent + deliver(dsn) == 5
    assert len({body["event_id"] for body in receiver.bodies}) == len(receiver.bodies) == 5


@pytest.mark.usefixtures("pushed")
def test_a_budget_that_is_used_up_ends_a_push(dsn: str) -> None:
    assert push_events(dsn, "hook", budget_s=0.2, idle_s=10_000, allowed=["127.0.0.1"]).events == 0


def test_locks_outlast_the_slowest_receiver(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    pushed.connection.execute("update event_store.views set lock_timeout_s = 1 where view = 'hook'")
    place(pushed, "a", events=("placed",))
    lasts: list[float] = []
    left = "select extract(epoch from locked_until - clock_timestamp())::float8 from event_store.stream_locks"

    def look(_: dict[str, Any]) -> int:
        lasts.append(value(pushed.connection, left))
        return 200

    receiver.answer = look
    assert deliver(dsn) == 1
    assert lasts[0] > BUSY_S
