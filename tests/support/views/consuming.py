"""Consumers in this process, while a test continues."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from millrace.handlers.consumer import consume
from millrace.handlers.declaration import Subscription
from millrace.handlers.log_lines import Counters
from millrace.personal.sealer import Sealer
from tests.support.factories import new_event, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events


@dataclass
class Running:
    stop: threading.Event
    ended: "Future[None]"
    counters: dict[str, Counters] = field(default_factory=dict)


@contextmanager
def consuming(dsn: str, *subscriptions: Subscription, sealer: Sealer | None = None) -> Iterator[Running]:
    """Consume registered views during the block; stop at the end, and raise the consumer's error, if any."""
    stop = threading.Event()
    counters: dict[str, Counters] = {}

    def run() -> None:
        consume(dsn, subscriptions, stop=stop, counters=counters, sealer=sealer)

    running = Running(stop, start(run), counters)
    views = [each.view for each in subscriptions]
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = PlatformStore(connection)
        wait_until(lambda: running.ended.done() or all(map(store.is_registered, views)), "views are registered")
    try:
        yield running
    finally:
        stop.set()
        running.ended.exception(patience())
    running.ended.result(0)


def fill(store: PlatformStore, streams: int, events: int = 3, prefix: str = "s") -> None:
    """Append `events` events to each of `streams` streams: placed, paid, shipped, and so on."""
    names = ("placed", "paid", "shipped")
    append_events(
        store, (new_event(f"{prefix}-{s}", event=names[n % 3]) for n in range(events) for s in range(streams))
    )


def owed(store: PlatformStore, view: str) -> int:
    return sum(each.lag for each in store.view_lag(view))


def wait_consumed(store: PlatformStore, view: str) -> None:
    store.sequence_events()
    wait_until(lambda: owed(store, view) == 0, f"{view} has all events")


def wait_waking(store: PlatformStore, state: Callable[[], bool], what: str) -> None:
    """Wait until a state is reached, and end every stream's backoff meanwhile."""

    def there() -> bool:
        store.connection.execute(
            "update event_store.stream_locks set locked_until = event_store_private.clock() where parked_at is null"
            " and in_flight is null and locked_until > event_store_private.clock()"
        )
        return state()

    wait_until(there, what)


def wait_locked(store: PlatformStore, view: str, number: int) -> None:
    query = "select count(*) from event_store.stream_locks where view = %s and in_flight is not null"
    wait_until(lambda: value(store.connection, query, view) == number, f"{number} events in flight")


class Seen:
    def __init__(self) -> None:
        self.by_stream: dict[str, list[int]] = {}
        self.events: list[Delivery] = []

    def add(self, event: Delivery) -> None:
        # each stream has one handler at a time
        self.by_stream.setdefault(event.decider_id, []).append(event.version)
        self.events.append(event)

    def assert_each_once_in_order(self, streams: int, events: int) -> None:
        assert len(self.by_stream) == streams
        assert all(versions == list(range(1, events + 1)) for versions in self.by_stream.values()), self.by_stream
