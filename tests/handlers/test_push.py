"""Events of a rows view pushed to a real HTTP server: acknowledgement, redelivery, order."""

import hashlib
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, LiteralString
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.handlers.push import push_events
from millrace.handlers.receivers import Allowed
from millrace.patience import BUSY_S
from tests.support.factories import pump, rows
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events
from tests.support.views.receiver import Receiver, deliver, locks, place, pushed, received, receiver, wake

__all__ = ["pushed", "receiver"]


def sha(said: bytes) -> str:
    return hashlib.sha256(said).hexdigest()[:12]


# no refusals: the receiver is unavailable; 0 hangs up
NOT_THERE = (500, 503, 408, 425, 429, 302, 307, 304, 0, 600)
REFUSALS = (400, 401, 404, 409, 418, 422, 499)


def test_an_answer_2xx_acknowledges_and_others_redeliver(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    """Each stream is answered with the status in its name: a status other than 2xx twice, at the second event."""
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "200", "202", *map(str, NOT_THERE))

    def answer(body: dict[str, Any]) -> int:
        status = int(body["decider_id"])
        is_refused = body["event"] == "paid" and received(receiver, body["decider_id"]).count("paid") < 3
        return status if status // 100 == 2 or is_refused else 200

    receiver.answer = answer
    assert deliver(dsn) == 3 * (2 + len(NOT_THERE))
    for status in (200, 202):
        assert received(receiver, str(status)) == ["placed", "paid", "shipped"], status
    for status in NOT_THERE:
        assert received(receiver, str(status)) == ["placed", "paid", "paid", "paid", "shipped"], status
    assert pushed.dead_letters("hook") == []
    came = len(receiver.bodies)
    assert deliver(dsn) == 0
    assert len(receiver.bodies) == came


def test_the_body_is_the_event_with_its_data_as_json(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    data = {"text": "é'\"\\", "nested": {"list": [1, None, True]}, "amount": 12.5}
    event = BatchEvent("order", "a", "placed", uuid4(), data, uuid4())
    (stored,) = append_events(pushed, [event])
    pump(pushed, "hook")
    deliver(dsn)
    (body,) = receiver.bodies
    assert body["data"] == data
    assert body["event_id"] == str(event.event_id)
    assert (body["offset"], body["previous_id"], body["final"]) == (stored.offset, None, False)
    assert set(body) == {
        "event", "event_id", "event_version", "decider", "decider_id", "data", "command_id", "previous_id", "final",
        "created_at", "offset",
    }  # fmt: skip


def test_what_the_receiver_refuses_ends_as_a_dead_letter(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    refused = list(map(str, REFUSALS))
    pushed.connection.execute("update event_store.views set max_attempts = 2")
    place(pushed, *refused, "b")
    receiver.answer = lambda body: (int(body["decider_id"]), b"no") if body["decider_id"] in refused else 200
    assert deliver(dsn) == 3
    assert received(receiver, "b") == ["placed", "paid", "shipped"]
    query: LiteralString = """
        select decider_id, attempts, locked_until > clock_timestamp(), last_error from event_store.stream_locks
        where decider_id <> 'b' order by 1
    """
    waits = rows(pushed.connection, query)
    assert [row[:3] for row in waits] == [(name, 1, True) for name in refused]
    for name, *_, error in waits:
        assert error.startswith(f"HTTP {name}")
        assert error.endswith(f", 2 bytes, sha256 {sha(b'no')}")
    wake(pushed)
    assert deliver(dsn) == 0
    letters = sorted(pushed.dead_letters("hook"), key=lambda letter: letter.decider_id)
    assert [(each.decider_id, each.event, each.attempts, each.waiting) for each in letters] == [
        (name, "placed", 2, 3) for name in refused
    ]
    receiver.answer = lambda _: 200
    assert pushed.retry_dead_letters("hook") == len(refused)
    assert deliver(dsn) == 3 * len(refused)
    for name in refused:
        assert received(receiver, name) == ["placed"] * 3 + ["paid", "shipped"], name


def test_an_answer_is_kept_as_status_and_hash(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    answers = {
        "text": ((409, b"no such customer"), "HTTP 409 Conflict, 16 bytes"),
        "nothing": ((404, b""), "HTTP 404 Not Found, 0 bytes"),
        "long": ((400, "é".encode() * 600), "HTTP 400 Bad Request, 1200 bytes"),
        "endless": ((400, b"x" * 5_000_000), "HTTP 400 Bad Request, at least 2000 bytes"),
        "no text": ((400, b"a\0b\xff"), "HTTP 400 Bad Request, 4 bytes"),
    }
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, *answers, events=("placed",))
    receiver.answer = lambda body: answers[body["decider_id"]][0]
    told: list[str] = []
    deliver(dsn, said=told.append)
    kept = {name: f"{error}, sha256 {sha(said[:2000])}" for name, ((_, said), error) in answers.items()}
    letters = pushed.dead_letters()
    assert {letter.decider_id: letter.last_error for letter in letters} == kept
    assert sorted(told) == sorted(
        f"order {name}, offset {letter.offset}: {kept[name]}: {answers[name][0][1][:2000].decode(errors='replace')}"
        for letter in letters
        for name in [letter.decider_id]
    )


def test_the_status_counts_whatever_becomes_of_the_body(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "200", "400", events=("placed",))
    receiver.promises = 1000  # and then hangs up
    receiver.answer = lambda body: (int(body["decider_id"]), b"half an ans")
    assert deliver(dsn) == 1
    (letter,) = pushed.dead_letters("hook")
    assert (letter.decider_id, letter.last_error.partition(",")[0]) == ("400", "HTTP 400 Bad Request")


def test_late_is_redelivered(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "BUSY_S", 0.2)
    place(pushed, "a", events=("placed",))
    answered = threading.Event()

    def too_late_once(_: dict[str, Any]) -> int:
        if len(receiver.bodies) == 1:
            answered.wait(patience())
        return 200

    receiver.answer = too_late_once
    assert deliver(dsn) == 1
    answered.set()
    # more deliveries, if a busy machine delays the next answer too
    assert received(receiver, "a")[:2] == ["placed", "placed"]


def test_other_streams_go_on(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.answer = lambda body: (503, b"back at noon") if body["decider_id"] == "a" else 200
    assert deliver(dsn) == 3
    assert received(receiver, "a") == ["placed"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]
    errors: LiteralString = "select last_error from event_store.stream_locks where last_error is not null"
    error = f"HTTP 503 Service Unavailable, 12 bytes, sha256 {sha(b'back at noon')}"
    assert rows(pushed.connection, errors) == [(error,)]
    assert pushed.dead_letters() == []
    wake(pushed)
    receiver.answer = lambda _: 200
    assert deliver(dsn) == 3
    assert rows(pushed.connection, errors) == []


def test_no_receiver_listens(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.shutdown()
    receiver.server_close()
    assert deliver(dsn) == 0
    assert locks(pushed.connection) == []
    # the same as for a port without a server: readers must not learn which addresses are reachable
    waits = {*rows(pushed.connection, "select last_error, attempts from event_store.stream_locks")}
    assert waits == {("No answer.", 0)}


def test_a_view_without_url_is_refused_with_a_remedy(store: PlatformStore, dsn: str) -> None:
    store.register_view("without a URL", "-infinity")
    store.register_view("bulk", "-infinity", mode="bulk")
    for view in ("without a URL", "bulk", "not registered"):
        with pytest.raises(MillraceError, match="register it with a URL"):
            push_events(dsn, view, budget_s=1, idle_s=0)


def test_sixteen_streams_are_delivered_at_once_in_order(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, *(f"o-{n}" for n in range(16)))
    together = threading.Barrier(16)

    def all_at_once(body: dict[str, Any]) -> int:
        if body["event"] == "placed":
            together.wait(patience())
        return 200

    receiver.answer = all_at_once
    assert deliver(dsn) == 48
    assert {tuple(received(receiver, f"o-{n}")) for n in range(16)} == {("placed", "paid", "shipped")}


def test_a_receiver_that_is_gone_disables_the_view(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.answer = lambda _: 410
    assert deliver(dsn, concurrency=1) == 0
    assert len(receiver.bodies) == 1
    assert [view.enabled for view in pushed.view_info("hook")] == [False]
    entry = next(entry for entry in pushed.audit_log("hook") if entry.operation == "enable_view")
    assert "HTTP 410 Gone" in str(entry.reason)
    assert pushed.dead_letters("hook") == []
    receiver.answer = lambda _: 200
    assert deliver(dsn) == 0
    pushed.enable_view("hook")
    assert deliver(dsn) == 3


def test_who_may_not_disable_the_view_says_so(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.answer = lambda _: 410
    said: list[str] = []
    # a login with fewer privileges than drains
    grant = "grant execute on function event_store_platform.push_secrets(text) to event_store_consumer"
    pushed.connection.execute(grant)
    deliver(make_conninfo(dsn, options="-c role=event_store_consumer"), concurrency=1, said=said.append)
    assert len(receiver.bodies) == 1
    assert "cannot be disabled: permission denied" in said[-1]
    assert [view.enabled for view in pushed.view_info("hook")] == [True]
    assert rows(pushed.connection, "select sum(attempts) from event_store.stream_locks") == [(0,)]


def test_a_receiver_gets_nothing_before_it_is_back(pushed: PlatformStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.headers = {"Retry-After": "600"}
    waits = "select locked_until > clock_timestamp() + interval '9 minutes', attempts from event_store.stream_locks"
    for number, status in enumerate((429, 503), 1):
        wake(pushed)
        receiver.answer = lambda _, status=status: status  # type: ignore[misc]
        assert deliver(dsn, concurrency=1) == 0
        assert len(receiver.bodies) == number
        assert rows(pushed.connection, waits) == [(True, 0)] * 3, status


def test_one_probes_the_dead(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(pushed, *(f"s-{n}" for n in range(40)), events=("placed",))
    receiver.answer = lambda _: 0
    monkeypatch.setattr(push, "RETRY_MS", 600_000)
    deliver(dsn, concurrency=1)
    assert len(receiver.bodies) == push.DEAD_AFTER
    assert rows(pushed.connection, "select sum(attempts) from event_store.stream_locks") == [(0,)]


@pytest.mark.parametrize("answer", [200, 400])
def test_probes_of_a_dead_receiver_come_later_and_later(monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    now, waits = [100.0], []
    monkeypatch.setattr(push, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pusher = push.Pusher("", "hook", "http://localhost", Allowed(), print)
    # more than one may be under way
    for _ in range(2 * push.DEAD_AFTER):
        pusher._count_answer(away=True, is_probe=False)
    for _ in range(6):
        wait, is_probe = pusher._pause()
        waits.append(wait)
        assert not is_probe
        now[0] += wait
        assert pusher._pause() == (0, True)
        # the others wait for the probe's result
        assert pusher._pause() == (2 * BUSY_S, False)
        pusher._count_answer(away=True, is_probe=True)
    assert waits == [5, 10, 20, 40, 60, 60]
    pusher._count_answer(away=answer in push.AWAY, is_probe=True)
    wait, is_probe = pusher._pause()
    assert wait <= 0
    assert not is_probe


def test_a_retry_after_is_seconds_or_a_time_or_none() -> None:
    far = "Wed, 21 Oct 2015 07:28:00 +" + "9" * 30
    for nothing in ("soon", "", "-5", "Wed, 99 Oct 2015 07:28:00 GMT", "\u00b2", "9" * 5000 + " Oct", far):
        assert push.seconds_of(nothing) is None, nothing
    assert push.seconds_of("120") == 120
    assert push.seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 1800 < (push.seconds_of(in_an_hour) or 0) <= 3600
