"""A real HTTP server that receives pushed events, keeps the requests and answers as a test wants."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.handlers.push import push_events
from tests.support.factories import new_event, pump, register_orders, rows
from tests.support.patience import patience
from tests.support.running.http_servers import Silent, serving
from tests.support.sql_calls import append_events

Answer = Callable[[dict[str, Any]], int | tuple[int, bytes]]


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.texts: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.given: list[dict[str, str]] = []  # the headers of each request, by their names in lower case
        self.answer: Answer = lambda _: 204
        self.headers: dict[str, str] = {}  # of each answer
        self.promises = 0  # a false length of the answer's body, if not 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/events"


class _Post(Silent, BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.texts.append(text)
        self.server.given.append({name.lower(): value for name, value in self.headers.items()})
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            answer: int | tuple[int, bytes] = 400, b"unreadable"
        else:
            self.server.bodies.append(body)
            answer = self.server.answer(body)
        status, said = answer if isinstance(answer, tuple) else (answer, b"")
        if status == 0:
            return  # hangs up without an answer
        self.send_response(status)
        if status in {301, 302, 307}:
            self.send_header("Location", "/elsewhere")
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(self.server.promises or len(said)))
        self.end_headers()
        with suppress(ConnectionError):  # a client that has read enough hangs up
            self.wfile.write(said)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as server:
        yield server


@pytest.fixture
def pushed(store: PlatformStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> PlatformStore:
    monkeypatch.setattr(push, "RETRY_MS", 0)
    register_orders(store)
    store.register_view("hook", "-infinity", pooling_delay_s=0, edge_function_url=receiver.url)
    return store


def place(store: PlatformStore, *decider_ids: str, events: tuple[str, ...] = ("placed", "paid", "shipped")) -> None:
    append_events(store, (new_event(decider_id, event=event) for event in events for decider_id in decider_ids))
    pump(store, "hook")


def deliver(
    dsn: str,
    *,
    budget_s: float = patience(),
    concurrency: int = 16,
    said: Callable[[str], None] = lambda _: None,
    keys: Path | None = None,
) -> int:
    """Push to `hook`; return how many events it acknowledged."""
    done = push_events(
        dsn,
        "hook",
        budget_s=budget_s,
        idle_s=0,
        allowed=["127.0.0.1"],
        on_failure=said,
        concurrency=concurrency,
        keys=keys,
    )
    return done.events


def received(receiver: Receiver, decider_id: str) -> list[str]:
    return [body["event"] for body in receiver.bodies if body["decider_id"] == decider_id]


def locks(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(connection, "select decider_id, in_flight from event_store.stream_locks where in_flight is not null")


def wake(store: PlatformStore) -> None:
    store.connection.execute(
        "update event_store.stream_locks set locked_until = event_store_private.clock() where parked_at is null"
    )
