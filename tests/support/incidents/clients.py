"""Clients that continue during an incident, and remember the store's acknowledgements."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from uuid import UUID, uuid4

import psycopg

from millrace.event_store import Json
from millrace.event_store.platform import PlatformStore
from tests.support.factories import start
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_event

Work = Callable[[PlatformStore], None]


class Appender:
    """Appends first events; retries each under the same `event_id` until it is acknowledged."""

    def __init__(self, prefix: str, *, decider: str = "order", event: str = "placed", data: Json = None) -> None:
        self.acknowledged: list[UUID] = []
        # SQLSTATEs of refusals; None for a lost connection
        self.refused: list[str | None] = []
        self._prefix, self._decider, self._event, self._data = prefix, decider, event, data or {"n": 1}
        self._numbers = count()
        self._next: UUID | None = None

    def __call__(self, store: PlatformStore) -> None:
        if self._next is None:
            self._next, self._number = uuid4(), next(self._numbers)
        try:
            append_event(
                store,
                self._event,
                self._next,
                self._decider,
                f"{self._prefix}-{self._number}",
                self._data,
                self._next,
                None,
            )
        except psycopg.Error as error:
            self.refused.append(error.sqlstate)
            raise
        self.acknowledged.append(self._next)
        self._next = None


class BulkConsumer:
    """Consumes a bulk view; an event is consumed when its commit is acknowledged."""

    def __init__(self, view: str) -> None:
        self.consumed: list[UUID] = []
        self._view = view

    def __call__(self, store: PlatformStore) -> None:
        leases = store.claim_batch(self._view, "old code", 50, 5)
        found = [event.event_id for lease in leases for event in store.read_batch(self._view, lease)]
        if leases:
            store.commit_batch(self._view, leases)
            self.consumed += found


@contextmanager
def going_on(dsn: str, *works: Work) -> Iterator[None]:
    """Repeat each work on its own connection until the block ends."""
    stop = threading.Event()

    def run(work: Work) -> None:
        connection: psycopg.Connection | None = None
        while not stop.is_set():
            try:
                if connection is None:
                    connection = psycopg.connect(dsn, autocommit=True, connect_timeout=5)
                work(PlatformStore(connection))
                stop.wait(0.01)
            except psycopg.Error:
                if connection is not None and connection.closed:
                    connection = None
                stop.wait(0.05)
        if connection is not None:
            connection.close()

    threads = [start(lambda work=work: run(work)) for work in works]  # type: ignore[misc]
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.result(patience())


def more(numbers: list[UUID], by: int = 20) -> None:
    seen = len(numbers)
    wait_until(lambda: len(numbers) >= seen + by, f"{by} more events than {seen}")
