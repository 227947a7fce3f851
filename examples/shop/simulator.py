"""Simulates the shop: many orders live at once, and their events come interleaved, as `lives` plans each order.

One step of a life chosen at random happens at a time. Only unfinished orders are kept in memory, `MOST_LIVES` at most.
The same seed gives the same lives; ids carry a number of the run, so runs never meet. Orders that a stopped run left
unfinished stay so, as abandoned orders do.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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

MOST_LIVES = 100
# An outage is not made up for at full speed: at most this much of the pace is caught up.
CATCH_UP_S = 1.0

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulationReport:
    """What a simulation did: events appended, orders begun, and appends that another writer made it repeat."""

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
    stop: threading.Event,
) -> SimulationReport:
    """Append events of the shop until there are `events` of them or `stop` is set.

    Registers the shop first. A database that goes away is waited for: the append is repeated under its event_id, so it
    happens once even if the reply was lost.

    Args:
        dsn: The event store's database.
        rate: Events per second, None for as fast as it goes.
        events: How many, None for ever.
        seed: Makes the lives repeatable.
        stop: Ends it from another thread; the append at hand is finished.

    Raises:
        Unreachable: The database does not answer at the start.
        SchemaMismatch: The database has no event store.
    """
    started = time.monotonic()
    with _Session(dsn, stop) as session:
        run = _Run(session, random.Random(seed))  # noqa: S311 - lives, not secrets
        pace_from = started
        while not stop.is_set() and (events is None or run.events < events):
            appended = run.begin(events) if run.wants_order() else run.step()
            if rate is not None:
                pace_from = max(pace_from + appended / rate, time.monotonic() - CATCH_UP_S)
                stop.wait(max(0.0, pace_from - time.monotonic()))
    return SimulationReport(run.events, run.orders, run.conflicts, time.monotonic() - started)


class _Stopped(Exception):
    """The simulation is to stop, and what was asked for did not happen."""


@dataclass
class _Running:
    """A life that goes on: the steps to come, and the version of each of its streams."""

    steps: deque[Step]
    versions: dict[str, int] = field(default_factory=dict)


class _Run:
    def __init__(self, session: "_Session", chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self._lives: list[_Running] = []
        self._customers: set[str] = set()  # who is registered, as far as this run knows
        self._run = uuid4()  # not by the seed: two runs of one seed are different orders
        self.events = 0
        self.orders = 0
        self.conflicts = 0

    def wants_order(self) -> bool:
        """Tell whether a new order comes next; at the most lives none does."""
        return not self._lives or (len(self._lives) < MOST_LIVES and self._chance.random() < 0.15)

    def begin(self, most_events: int | None) -> int:
        """Register the customer, unless that is done; place an order, its lines in one batch; return how many events.

        With `most_events` the run ends there, and the order has only the lines for which there is room.
        """
        before = self.events
        life = plan_life(self._chance, f"{self._run.hex[:12]}-{self.orders + 1}")
        try:
            self._register(life.customer)
            start = life.start[: None if most_events is None else most_events - self.events]
            if start:
                self._place(start, life.rest)
        except _Stopped:
            pass
        return self.events - before

    def _register(self, step: Step) -> None:
        if step.decider_id in self._customers:
            return
        # Of all runs one has a customer's first event stored. The id is that of each repetition, so this one knows.
        first = NewEvent(step.event, step.data)
        with suppress(Conflict):
            self._session.call(
                lambda store: store.append(step.decider, step.decider_id, first, expected_version=NO_STREAM)
            )
            self.events += 1
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

        A stream that somebody else closed ends the life: 0.
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
                # the last one takes its place: forgetting costs the same however many there are
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
                # somebody else wrote to the stream: read where it stands and go on from there; its events may be purged
                self.conflicts += 1
                head = self._session.call(lambda store: store.head(step.decider, step.decider_id))
                life.versions[step.decider_id] = NO_STREAM if head is None else head.version
                continue
            life.versions[step.decider_id] = version + 1
            return


class _Session:
    """A connection that comes back: calls are repeated until the database answers or the simulation is to stop."""

    def __init__(self, dsn: str, stop: threading.Event) -> None:
        self._dsn = dsn
        self._stop = stop
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> "_Session":
        # A wrong address shows at once; only what has answered before is waited for.
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

    def call(self, ask: Callable[[EventStore], T]) -> T:
        """Return what `ask` returns; it must be safe to repeat.

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
            return retrying(lambda: ask(self._store()))
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise _Stopped from error

    def _store(self) -> EventStore:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        return EventStore(self._connection)
