"""Events of a rows view pushed to a real HTTP server: what acknowledges, what redelivers, in which order."""

import hashlib
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, LiteralString
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore, NewEvent
from millrace.resources.subscriptions import push
from millrace.resources.subscriptions.push import push_events
from tests.support.factories import pump, rows
from tests.support.hostile_json import UNREADABLE, append_text
from tests.support.patience import patience
from tests.support.views.receiver import Receiver, deliver, locks, place, pushed, received, receiver, wake

__all__ = ["pushed", "receiver"]


def sha(said: bytes) -> str:
    return hashlib.sha256(said).hexdigest()[:12]


def test_an_answer_2xx_acknowledges_and_every_event_comes_once_in_its_streams_order(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    place(pushed, "a", "b")
    receiver.answer = lambda body: 200 if body["decider_id"] == "a" else 202
    assert deliver(dsn) == 6
    assert received(receiver, "a") == received(receiver, "b") == ["placed", "paid", "shipped"]
    assert deliver(dsn) == 0
    assert len(receiver.bodies) == 6


def test_the_body_is_the_event_with_its_data_as_json(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
    data = {"text": "é'\"\\", "nested": {"list": [1, None, True]}, "amount": 12.5}
    event = NewEvent("order", "a", "placed", uuid4(), data, uuid4())
    (stored,) = pushed.append_events([event])
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


@pytest.mark.parametrize(
    "status",
    [500, 503, 408, 425, 429, 302, 307, 304, 0, 600],
    ids=lambda status: str(status) if status else "hangs up",
)
def test_an_answer_that_is_no_refusal_redelivers_the_event_before_its_followers(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    place(pushed, "a", "b")
    refused: list[str] = []

    def once(body: dict[str, Any]) -> int:
        if body["decider_id"] == "a" and body["event"] == "paid" and len(refused) < 2:
            refused.append(body["event_id"])
            return status
        return 200

    receiver.answer = once
    assert deliver(dsn) == 6
    assert len(refused) == 2
    assert received(receiver, "a") == ["placed", "paid", "paid", "paid", "shipped"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]


def test_a_receiver_that_is_not_there_never_makes_a_dead_letter(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "a", events=("placed",))
    answers = iter([500, 503, 429, 0, 302, 200])
    receiver.answer = lambda _: next(answers)
    assert deliver(dsn) == 1
    assert pushed.dead_letters("hook") == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 418, 422, 499])
def test_an_event_that_the_receiver_refuses_waits_and_ends_as_a_dead_letter(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 2")
    place(pushed, "a", "b")
    receiver.answer = lambda body: (status, b"no such customer") if body["decider_id"] == "a" else 200
    assert deliver(dsn) == 3
    assert received(receiver, "a") == ["placed"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]
    waits = rows(
        pushed.connection,
        """
        select attempts, locked_until > clock_timestamp(), last_error like %s from event_store.stream_locks
        where decider_id = 'a'
        """,
        f"HTTP {status}%, 16 bytes, sha256 {sha(b'no such customer')}",
    )
    assert waits == [(1, True, True)]
    wake(pushed)
    assert deliver(dsn) == 0
    (letter,) = pushed.dead_letters("hook")
    assert (letter.decider_id, letter.event, letter.attempts, letter.waiting) == ("a", "placed", 2, 3)
    assert letter.last_error.startswith(f"HTTP {status}")
    receiver.answer = lambda _: 200
    assert pushed.retry_dead_letters("hook") == 1
    assert deliver(dsn) == 3
    assert received(receiver, "a") == ["placed"] * 3 + ["paid", "shipped"]


def test_the_data_are_sent_as_postgres_prints_them_also_a_number_that_is_none_elsewhere(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    append_text(pushed, "huge", f'{{"n": 1{"0" * 400}.50, "m": 0.10, "é": "é"}}')
    pump(pushed, "hook")
    assert deliver(dsn) == 1
    (text,) = receiver.texts
    assert f'"m": 0.10, "n": 1{"0" * 400}.50, "é": "é"}}' in text


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_an_event_that_its_receiver_cannot_read_is_refused_by_it_and_holds_up_no_other_stream(
    pushed: EventStore, dsn: str, receiver: Receiver, text: str
) -> None:
    append_text(pushed, "huge", text)
    place(pushed, *(f"o-{n}" for n in range(20)), events=("placed",))
    assert deliver(dsn) == 20
    assert len(receiver.texts) == 21
    waits = rows(
        pushed.connection,
        "select decider_id, attempts from event_store.stream_locks where last_error like %s",
        "HTTP 400 Bad Request%",
    )
    assert waits == [("huge", 1)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, b"no such customer"), "HTTP 409 Conflict, 16 bytes"),
        ((404, b""), "HTTP 404 Not Found, 0 bytes"),
        ((400, "é".encode() * 600), "HTTP 400 Bad Request, 1200 bytes"),
        ((400, b"x" * 5_000_000), "HTTP 400 Bad Request, at least 2000 bytes"),
        ((400, b"a\0b\xff"), "HTTP 400 Bad Request, 4 bytes"),
    ],
    ids=["text", "nothing", "long", "endless", "no text"],
)
def test_the_store_keeps_an_answers_status_and_hash_and_its_text_goes_to_the_run(
    pushed: EventStore, dsn: str, receiver: Receiver, answer: tuple[int, bytes], error: str
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: answer
    told: list[str] = []
    push_events(dsn, "hook", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"], on_failure=told.append)
    kept = f"{error}, sha256 {sha(answer[1][:2000])}"
    assert [letter.last_error for letter in pushed.dead_letters()] == [kept]
    (offset,) = {letter.offset for letter in pushed.dead_letters()}
    assert told == [f"order a, offset {offset}: {kept}: {answer[1][:2000].decode(errors='replace')}"]


@pytest.mark.parametrize("status", [200, 400])
def test_the_status_counts_whatever_becomes_of_the_body(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "a", events=("placed",))
    receiver.promises = 1000  # and then hangs up
    receiver.answer = lambda _: (status, b"half an ans")
    assert deliver(dsn) == (status == 200)
    errors = [letter.last_error for letter in pushed.dead_letters()]
    assert [error.partition(",")[0] for error in errors] == ["HTTP 400 Bad Request"] * (status == 400)


def test_an_answer_that_does_not_come_in_time_redelivers(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "TIMEOUT_S", 0.2)
    place(pushed, "a", events=("placed",))
    answered = threading.Event()

    def too_late_once(_: dict[str, Any]) -> int:
        if len(receiver.bodies) == 1:
            answered.wait(patience())
        return 200

    receiver.answer = too_late_once
    assert deliver(dsn) == 1
    answered.set()
    assert received(receiver, "a") == ["placed", "placed"]


def test_a_refused_event_waits_before_it_is_sent_again(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.answer = lambda body: 500 if body["decider_id"] == "a" else 200
    assert deliver(dsn) == 3
    assert received(receiver, "a") == ["placed"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]


def test_what_a_receiver_that_is_away_answered_is_the_locks_error_until_it_takes_the_event(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: (503, b"back at noon")
    assert deliver(dsn) == 0
    errors: LiteralString = "select last_error from event_store.stream_locks where last_error is not null"
    assert rows(pushed.connection, errors) == [
        (f"HTTP 503 Service Unavailable, 12 bytes, sha256 {sha(b'back at noon')}",)
    ]
    assert pushed.dead_letters() == []
    wake(pushed)
    receiver.answer = lambda _: 200
    assert deliver(dsn) == 1
    assert rows(pushed.connection, errors) == []


def test_a_receiver_that_nobody_listens_at_gives_every_event_back(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.shutdown()
    receiver.server_close()
    assert deliver(dsn) == 0
    assert locks(pushed.connection) == []
    for error, attempts in rows(pushed.connection, "select last_error, attempts from event_store.stream_locks"):
        # the same as of a port that nobody answers at: what is reachable is no business of readers
        assert error == "No answer."
        assert attempts == 0


@pytest.mark.parametrize("view", ["without a URL", "bulk", "not registered"])
def test_a_view_without_url_is_refused_with_a_remedy(store: EventStore, dsn: str, view: str) -> None:
    store.register_view("without a URL", "-infinity")
    store.register_view("bulk", "-infinity", mode="bulk")
    with pytest.raises(MillraceError, match="register it with a URL"):
        push_events(dsn, view, budget_s=1, idle_s=0)


def test_sixteen_streams_are_delivered_at_once_and_each_in_order(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    place(pushed, *(f"o-{n}" for n in range(16)))
    together = threading.Barrier(16)

    def all_at_once(body: dict[str, Any]) -> int:
        if body["event"] == "placed":
            together.wait(patience())
        return 200

    receiver.answer = all_at_once
    assert deliver(dsn) == 48
    assert {tuple(received(receiver, f"o-{n}")) for n in range(16)} == {("placed", "paid", "shipped")}


def test_a_receiver_that_is_gone_gets_no_more_and_the_view_is_disabled(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.answer = lambda _: 410
    assert push_events(dsn, "hook", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"], concurrency=1).events == 0
    assert len(receiver.bodies) == 1
    assert [view.enabled for view in pushed.view_info("hook")] == [False]
    entry = next(entry for entry in pushed.audit_log("hook") if entry.operation == "enable_view")
    assert "HTTP 410 Gone" in str(entry.reason)
    assert pushed.dead_letters("hook") == []
    receiver.answer = lambda _: 200
    assert deliver(dsn) == 0
    pushed.enable_view("hook")
    assert deliver(dsn) == 3


def test_a_drain_that_may_not_disable_the_view_says_so_and_blames_no_event(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.answer = lambda _: 410
    said: list[str] = []
    as_consumer = make_conninfo(dsn, options="-c role=event_store_consumer")
    push_events(
        as_consumer, "hook", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"], concurrency=1, on_failure=said.append
    )
    assert len(receiver.bodies) == 1
    assert "cannot be disabled: permission denied" in said[-1]
    assert [view.enabled for view in pushed.view_info("hook")] == [True]
    assert rows(pushed.connection, "select sum(attempts) from event_store.stream_locks") == [(0,)]


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_says_when_it_is_back_gets_nothing_before(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    place(pushed, "a", "b", "c", events=("placed",))
    receiver.headers = {"Retry-After": "600"}
    receiver.answer = lambda _: status
    assert push_events(dsn, "hook", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"], concurrency=1).events == 0
    assert len(receiver.bodies) == 1
    query: LiteralString = (
        "select locked_until > clock_timestamp() + interval '9 minutes', attempts from event_store.stream_locks"
    )
    assert rows(pushed.connection, query) == [(True, 0)] * 3


@pytest.mark.parametrize("header", ["soon", "", "-5", "Wed, 99 Oct 2015 07:28:00 GMT", "\u00b2"])
def test_a_retry_after_that_says_nothing_is_none(header: str) -> None:
    assert push.seconds_of(header) is None


def test_a_retry_after_is_a_number_of_seconds_or_a_time() -> None:
    assert push.seconds_of("120") == 120
    assert push.seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)
    assert 55 < (push.seconds_of(in_a_minute) or 0) <= 60
