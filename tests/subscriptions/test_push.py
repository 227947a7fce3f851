"""Events of a rows view pushed to a real HTTP server: what acknowledges, what redelivers, in which order."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest

from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore, LeasedEvent, NewEvent
from millrace.resources.subscriptions import push as webhook
from millrace.resources.subscriptions.push import push_events
from tests.support.factories import PATIENCE_S, new_event, pump, register_orders, rows, value

Answer = Callable[[dict[str, Any]], int | tuple[int, bytes]]


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent, and answers as the test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.bodies: list[dict[str, Any]] = []
        self.answer: Answer = lambda _: 204
        self.promises = 0  # how long the answer's body says it is, if that is a lie
        self.url = f"http://127.0.0.1:{self.server_address[1]}/events"


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        answer = self.server.answer(body)
        status, text = answer if isinstance(answer, tuple) else (answer, b"")
        if status == 0:
            return  # hangs up without an answer
        self.send_response(status)
        if status in {301, 302, 307}:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(self.server.promises or len(text)))
        self.end_headers()
        with suppress(ConnectionError):  # who has read enough hangs up
            self.wfile.write(text)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def pushed(store: EventStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> EventStore:
    monkeypatch.setattr(webhook, "RETRY_MS", 0)
    register_orders(store)
    store.register_view("hook", "-infinity", pooling_delay_s=0, edge_function_url=receiver.url)
    return store


def place(store: EventStore, *decider_ids: str, events: tuple[str, ...] = ("placed", "paid", "shipped")) -> None:
    store.append_events(new_event(decider_id, event=event) for event in events for decider_id in decider_ids)
    pump(store, "hook")


def push(dsn: str, *, budget_s: float = PATIENCE_S) -> int:
    return push_events(dsn, "hook", budget_s=budget_s, idle_s=0).events


def received(receiver: Receiver, decider_id: str) -> list[str]:
    return [body["event"] for body in receiver.bodies if body["decider_id"] == decider_id]


def locks(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select decider_id, in_flight from event_store.stream_locks where in_flight is not null")


def test_an_answer_2xx_acknowledges_and_every_event_comes_once_in_its_streams_order(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    place(pushed, "a", "b")
    receiver.answer = lambda body: 200 if body["decider_id"] == "a" else 202
    assert push(dsn) == 6
    assert received(receiver, "a") == received(receiver, "b") == ["placed", "paid", "shipped"]
    assert push(dsn) == 0
    assert len(receiver.bodies) == 6


def test_the_body_is_the_event_with_its_data_as_json(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
    data = {"text": "é'\"\\", "nested": {"list": [1, None, True]}, "amount": 12.5}
    event = NewEvent("order", "a", "placed", uuid4(), data, uuid4())
    (stored,) = pushed.append_events([event])
    pump(pushed, "hook")
    push(dsn)
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
    assert push(dsn) == 6
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
    assert push(dsn) == 1
    assert pushed.dead_letters("hook") == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 418, 422, 499])
def test_an_event_that_the_receiver_refuses_waits_and_ends_as_a_dead_letter(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 2")
    place(pushed, "a", "b")
    receiver.answer = lambda body: (status, b"no such customer") if body["decider_id"] == "a" else 200
    assert push(dsn) == 3
    assert received(receiver, "a") == ["placed"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]
    waits = rows(
        pushed.connection,
        """
        select attempts, locked_until > clock_timestamp(), last_error like %s from event_store.stream_locks
        where decider_id = 'a'
        """,
        "HTTP %: no such customer",
    )
    assert waits == [(1, True, True)]
    wake(pushed)
    assert push(dsn) == 0
    (letter,) = pushed.dead_letters("hook")
    assert (letter.decider_id, letter.event, letter.attempts, letter.waiting) == ("a", "placed", 2, 3)
    assert letter.last_error.startswith(f"HTTP {status} ")
    receiver.answer = lambda _: 200
    assert pushed.retry_dead_letters("hook") == 1
    assert push(dsn) == 3
    assert received(receiver, "a") == ["placed"] * 3 + ["paid", "shipped"]


def test_an_event_that_only_postgres_holds_as_a_number_fails_and_is_not_sent_for_ever(
    pushed: EventStore, dsn: str, receiver: Receiver
) -> None:
    pushed.connection.execute(
        "select from event_store.append_event('placed', %s, 'order', 'huge'::text, %s, %s, null)",
        (uuid4(), f'{{"n": 1{"0" * 400}.5}}', uuid4()),
    )
    place(pushed, "a", events=("placed",))
    assert push(dsn) == 1
    assert {body["decider_id"] for body in receiver.bodies} == {"a"}
    ((error, attempts),) = rows(
        pushed.connection, "select last_error, attempts from event_store.stream_locks where decider_id = 'huge'"
    )
    assert "cannot be sent as JSON" in error
    assert attempts == 1


def wake(store: EventStore) -> None:
    """Let every stream's wait be over."""
    store.connection.execute("update event_store.stream_locks set locked_until = '-infinity' where parked_at is null")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, b"no such customer"), "HTTP 409 Conflict: no such customer"),
        ((404, b""), "HTTP 404 Not Found: "),
        ((400, "é".encode() * 600), "HTTP 400 Bad Request: " + "é" * 500),
        ((400, b"x" * 5_000_000), "HTTP 400 Bad Request: " + "x" * 500),
        ((400, b"a\0b\xff"), "HTTP 400 Bad Request: a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
    ],
    ids=["text", "nothing", "long", "endless", "no text"],
)
def test_the_error_is_what_the_receiver_answered(
    pushed: EventStore, dsn: str, receiver: Receiver, answer: tuple[int, bytes], error: str
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: answer
    assert push(dsn) == 0
    assert [letter.last_error for letter in pushed.dead_letters()] == [error]


@pytest.mark.parametrize("status", [200, 400])
def test_the_status_counts_whatever_becomes_of_the_body(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    pushed.connection.execute("update event_store.views set max_attempts = 1")
    place(pushed, "a", events=("placed",))
    receiver.promises = 1000  # and then hangs up
    receiver.answer = lambda _: (status, b"half an ans")
    assert push(dsn) == (status == 200)
    errors = [letter.last_error for letter in pushed.dead_letters()]
    assert [error.partition(":")[0] for error in errors] == ["HTTP 400 Bad Request"] * (status == 400)


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_answer_that_comes_after_another_pusher_took_over_changes_nothing(
    pushed: EventStore, dsn: str, receiver: Receiver, status: int
) -> None:
    place(pushed, "a", events=("placed",))
    held: list[LeasedEvent] = []

    def taken_over(_: dict[str, Any]) -> int:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update event_store.stream_locks set locked_until = '-infinity'")
            held.extend(EventStore(connection).lease_events("hook", 1, 600))
        return status

    receiver.answer = taken_over
    assert push(dsn) == 0
    (event,) = held
    assert locks(pushed.connection) == [("a", event.offset)]
    pushed.ack_event("hook", "a", event.offset, event.lease_token)


def test_an_answer_that_does_not_come_in_time_redelivers(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.2)
    place(pushed, "a", events=("placed",))
    answered = threading.Event()

    def too_late_once(_: dict[str, Any]) -> int:
        if len(receiver.bodies) == 1:
            answered.wait(PATIENCE_S)
        return 200

    receiver.answer = too_late_once
    assert push(dsn) == 1
    answered.set()
    assert received(receiver, "a") == ["placed", "placed"]


def test_a_refused_event_waits_before_it_is_sent_again(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.answer = lambda body: 500 if body["decider_id"] == "a" else 200
    assert push(dsn) == 3
    assert received(receiver, "a") == ["placed"]
    assert received(receiver, "b") == ["placed", "paid", "shipped"]


def test_what_a_receiver_that_is_away_answered_is_the_locks_error_until_it_takes_the_event(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "RETRY_MS", 60_000)
    place(pushed, "a", events=("placed",))
    receiver.answer = lambda _: (503, b"back at noon")
    assert push(dsn) == 0
    errors: LiteralString = "select last_error from event_store.stream_locks where last_error is not null"
    assert rows(pushed.connection, errors) == [("HTTP 503 Service Unavailable: back at noon",)]
    assert pushed.dead_letters() == []
    wake(pushed)
    receiver.answer = lambda _: 200
    assert push(dsn) == 1
    assert rows(pushed.connection, errors) == []


def test_a_receiver_that_nobody_listens_at_gives_every_event_back(
    pushed: EventStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "RETRY_MS", 60_000)
    place(pushed, "a", "b")
    receiver.shutdown()
    receiver.server_close()
    assert push(dsn) == 0
    assert locks(pushed.connection) == []
    for error, attempts in rows(pushed.connection, "select last_error, attempts from event_store.stream_locks"):
        assert error.startswith("No answer: ")
        assert "Connection refused" in error
        assert attempts == 0


def test_an_event_that_another_pusher_took_over_is_left_to_it(pushed: EventStore, dsn: str, receiver: Receiver) -> None:
    place(pushed, "a", "b", events=("placed",))

    def taken_over(body: dict[str, Any]) -> int:
        # the receiver was so slow that the lock ended: another pusher delivered and acknowledged it meanwhile
        if body["decider_id"] == "a":
            with psycopg.connect(dsn, autocommit=True) as connection:
                EventStore(connection).ack_event("hook", "a", body["offset"])
        return 200

    receiver.answer = taken_over
    assert push(dsn) == 1
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

    monkeypatch.setattr(webhook, "time", Clock)
    receiver.answer = slow
    assert push(dsn, budget_s=150) == 2
    assert len(receiver.bodies) == 2
    assert locks(pushed.connection) == []
    assert push(dsn, budget_s=1_000) == 1
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

    monkeypatch.setattr(webhook, "time", Clock)
    receiver.answer = slow
    report = push_events(dsn, "hook", budget_s=10_000, idle_s=0)
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
    assert push(dsn) == 1
    assert lasts[0] > webhook.TIMEOUT_S


@pytest.mark.parametrize("view", ["without a URL", "bulk", "not registered"])
def test_a_view_without_url_is_refused_with_a_remedy(store: EventStore, dsn: str, view: str) -> None:
    store.register_view("without a URL", "-infinity")
    store.register_view("bulk", "-infinity", mode="bulk")
    with pytest.raises(MillraceError, match="register it with a URL"):
        push_events(dsn, view, budget_s=1, idle_s=0)
