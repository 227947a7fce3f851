"""Simulates the shop: many concurrent orders with interleaved events, each order as planned by `lives`.

Each step belongs to a life chosen at random. Only unfinished orders are kept in memory, at most `MOST_LIVES`. The same
seed gives the same lives; ids carry a number of the run, so runs never collide. Orders that a stopped run left
unfinished stay unfinished, as abandoned orders do.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psycopg
from tenacity import (
    Retrying,
    before_sleep_log,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential,
)

from millrace import NO_STREAM, Conflict, EventStore, NewEvent, on, uuid7
from millrace.errors import SchemaMismatch, StreamClosed, Unreachable
from millrace.examples.shop.events import register_shop
from millrace.examples.shop.lives import Step, plan_life
from millrace.personal import Plain, Sealer

MOST_LIVES = 100
# After an outage, catch up on at most this many seconds.
CATCH_UP_S = 1.0

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulationReport:
    """The result of a simulation: events appended, orders begun, and appends retried after a conflict."""

    events: int
    orders: int
    conflicts: int
    seconds: float


def simulate(
    dsn: str,
    *,
    rate: float | None,
    events: int | None = None,
    seed: int | None = None,
    keys: Path | None = None,
    stop: threading.Event,
) -> SimulationReport:
    """Append events of the shop until there are `events` of them or `stop` is set.

    Registers the shop first. Waits for a database that goes away: the append is retried with the same event_id, so it
    happens once even if the reply was lost.

    Args:
        dsn: The event store's database.
        rate: Events per second, None for no limit.
        events: How many events, None for no end.
        seed: Makes the lives repeatable.
        keys: The folder of keys of people, with which a new customer's address is sealed; without it there is none.
        stop: Ends it from another thread; the current append completes.

    Raises:
        InvalidSetting: The folder of keys lacks a file.
        Unreachable: The database does not answer at the start.
        SchemaMismatch: The database has no event store.
    """
    started = time.monotonic()
    with _Session(dsn, stop, Sealer.from_folder(keys) if keys else None) as session:
        run = _Run(session, random.Random(seed))  # noqa: S311 - lives, not secrets
        pace_from = started
        while not stop.is_set() and (events is None or run.events < events):
            appended = run.begin(events) if run.wants_order() else run.step()
            if rate is not None:
                pace_from = max(pace_from + appended / rate, time.monotonic() - CATCH_UP_S)
                stop.wait(max(0.0, pace_from - time.monotonic()))
    return SimulationReport(run.events, run.orders, run.conflicts, time.monotonic() - started)


class _Stopped(Exception):
    """The simulation was stopped before a call succeeded."""


@dataclass
class _Running:
    """An unfinished life: the steps to come, and the version of each of its streams."""

    steps: deque[Step]
    versions: dict[str, int] = field(default_factory=dict)


class _Run:
    def __init__(self, session: "_Session", chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self._lives: list[_Running] = []
        self._customers: set[str] = set()  # customers that this run knows to be registered
        self._run = uuid4()  # not from the seed: two runs with one seed have different orders
        self.events = 0
        self.orders = 0
        self.conflicts = 0

    def wants_order(self) -> bool:
        """Return whether a new order comes next; never with `MOST_LIVES` unfinished ones."""
        return not self._lives or (len(self._lives) < MOST_LIVES and self._chance.random() < 0.15)

    def begin(self, most_events: int | None) -> int:
        """Register the customer, unless that is done; place an order with its lines in one batch; return their number.

        The run ends at `most_events`, and the order has only the lines that fit.
        """
        before = self.events
        life = plan_life(self._chance, f"{self._run.hex[:12]}-{self.orders + 1}")
        try:
            self._register(life.customer)
            start = life.start[: None if most_events is None else max(0, most_events - self.events)]
            if start:
                self._place(start, life.rest)
        except _Stopped:
            pass
        return self.events - before

    def _register(self, step: Step) -> None:
        if step.decider_id in self._customers:
            return
        # Only one run stores a customer's first event. Retries keep its id, so this run knows whether it is the one.
        first = [NewEvent(step.event, step.data)]
        if self._session.sealer:
            email = Plain(f"customer:{step.decider_id}", f"{step.decider_id}@example.com")
            first += [NewEvent("email_given", {"customer_id": step.decider_id, "email": email})]
        with suppress(Conflict):
            self._session.call(
                lambda store: store.append(step.decider, step.decider_id, *first, expected_version=NO_STREAM)
            )
            self.events += len(first)
        self._customers.add(step.decider_id)

    def _place(self, start: tuple[Step, ...], rest: tuple[Step, ...]) -> None:
        command_id, (first, *_) = uuid7(), start
        events = [NewEvent(step.event, step.data, command_id=command_id, final=step.final) for step in start]
        placed = on(first.decider, first.decider_id, *events, expected_version=NO_STREAM)
        self._session.call(lambda store: store.append_all([placed]))
        self.orders += 1
        self.events += len(events)
        self._lives.append(_Running(deque(rest), {first.decider_id: len(events)}))

    def step(self) -> int:
        """Append the next event of a life chosen at random, forget the life if that was its last; return 1.

        Return 0 if another writer closed the stream, which ends the life.
        """
        chosen = self._chance.randrange(len(self._lives))
        life = self._lives[chosen]
        try:
            self._append(life, life.steps.popleft())
        except _Stopped:
            return 0
        except StreamClosed:
            life.steps.clear()
            return 0
        finally:
            if not life.steps:
                # the last life takes its place, so that forgetting takes constant time
                self._lives[chosen] = self._lives[-1]
                self._lives.pop()
        self.events += 1
        return 1

    def _append(self, life: _Running, step: Step) -> None:
        event = NewEvent(step.event, step.data, final=step.final)
        while True:
            version = life.versions.get(step.decider_id, NO_STREAM)

            def append(store: EventStore, version: int = version) -> None:
                store.append(step.decider, step.decider_id, event, expected_version=version)

            try:
                self._session.call(append)
            except Conflict:
                # another writer appended to the stream: continue from its head; its events may be purged
                self.conflicts += 1
                head = self._session.call(lambda store: store.head(step.decider, step.decider_id))
                life.versions[step.decider_id] = NO_STREAM if head is None else head.version
                continue
            life.versions[step.decider_id] = version + 1
            return


class _Session:
    """A connection that reconnects: calls are retried until the database answers or the simulation is to stop."""

    def __init__(self, dsn: str, stop: threading.Event, sealer: Sealer | None) -> None:
        self._dsn = dsn
        self.sealer = sealer
        self._stop = stop
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> "_Session":
        # A wrong address fails at once; wait only for a database that has answered before.
        try:
            register_shop(self._store())
        except psycopg.OperationalError as error:
            self.__exit__()
            raise Unreachable("The database does not answer.", detail=str(error).strip()) from error
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as error:
            self.__exit__()
            raise SchemaMismatch("The database has no event store.", hint="Run: millrace migrate") from error
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection:
            self._connection.close()

    def call(self, work: Callable[[EventStore], T]) -> T:
        """Return the result of `work`, which must be safe to retry.

        Raises:
            _Stopped: The database was gone when the simulation was stopped.
        """
        retrying = Retrying(
            retry=retry_if_exception_type((psycopg.OperationalError, psycopg.InterfaceError)),
            wait=wait_exponential(multiplier=0.1, max=5),
            sleep=sleep_using_event(self._stop),
            stop=stop_when_event_set(self._stop),
            before_sleep=before_sleep_log(logger, logging.WARNING),
            reraise=True,
        )
        try:
            return retrying(lambda: work(self._store()))
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise _Stopped from error

    def _store(self) -> EventStore:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        return EventStore(self._connection, sealer=self.sealer)
