"""Following the log as it grows, on a screen: each new event once, in the order of its log partition."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from heapq import merge

import psycopg
from msgspec import structs

from millrace.errors import MillraceError, PositionOutOfRange
from millrace.event_store.platform import PlatformStore
from millrace.event_store.rows import Event
from millrace.event_store.wake_ups import Wakeups
from millrace.patience import LOOK_S, PATIENCE_S, PAUSE_S
from millrace.postgres.connecting import connect

# events of one log partition that one query reads
PAGE = 500

Show = Callable[[Sequence[Event]], None]


@dataclass(frozen=True)
class EventFilter:
    """Which events a person wants to see; None does not filter.

    Attributes:
        decider: The decider.
        decider_id: The stream.
        event: The event's name.
        since: The earliest time of the append.
        correlation_id: The correlation_id in its metadata.
    """

    decider: str | None = None
    decider_id: str | None = None
    event: str | None = None
    since: datetime | None = None
    correlation_id: str | None = None

    def latest(self, store: PlatformStore, limit: int) -> list[Event]:
        """Return the newest wanted events, the newest last."""
        found = store.latest_events(limit, self.decider, self.decider_id, self.event, self.since, self.correlation_id)
        return found[::-1]

    def takes(self, event: Event) -> bool:
        """Return whether an event passes the filters that `read_log` does not apply."""
        return (
            (self.decider_id is None or event.decider_id == self.decider_id)
            and (self.since is None or event.created_at >= self.since)
            and (self.correlation_id is None or correlation_of(event) == self.correlation_id)
        )


class Follower:
    """Shows events as they get their positions: `begin` and all calls of `show_next` together leave no gap in the log.

    Each call may use another connection: the follower keeps its positions itself.
    """

    def __init__(self, event_filter: EventFilter) -> None:
        self.filter = event_filter
        # log partition -> the next position
        self.positions: dict[int, int] = {}

    def begin(self, connection: psycopg.Connection, limit: int) -> list[Event]:
        """Return the newest events that have a position, the newest last; `show_next` continues from there."""
        with as_of_now(connection):
            store = PlatformStore(connection)
            found = [event for event in self.filter.latest(store, limit) if event.position is not None]
            self.positions = {each.partition: each.high_water_mark for each in store.available_offset_range()}
        return found

    def show_next(self, connection: psycopg.Connection, show: Show) -> bool:
        """Show the next events; return whether more may be ready already.

        If the connection fails, nothing was shown, and the next call finds the same events.

        Raises:
            PositionOutOfRange: Events were lost before they were shown: they were purged, or the store was restored.
        """
        found: list[list[Event]] = []
        positions = dict(self.positions)
        more = False
        with as_of_now(connection):
            store = PlatformStore(connection)
            for each in store.available_offset_range():
                position = positions.get(each.partition, 0)
                if not each.earliest_position <= position <= each.high_water_mark:
                    purged = position < each.earliest_position
                    raise PositionOutOfRange(
                        "The log does not go on where it was read up to.",
                        detail=f"Log partition {each.partition}: the next position is {position}; it holds"
                        f" {each.earliest_position} up to before {each.high_water_mark}."
                        f" {'Events were purged before they were shown.' if purged else 'The store is another one.'}",
                        hint="Start again to go on with the newest events.",
                    )
                if position == each.high_water_mark:
                    continue
                page = store.read_log(
                    each.partition, position, PAGE, _only(self.filter.decider), _only(self.filter.event)
                )
                found.append(
                    [structs.replace(event, partition=each.partition) for event in page if self.filter.takes(event)]
                )
                # with fewer than a page, read_log has searched up to the mark
                last = page[-1].position if len(page) == PAGE else None
                positions[each.partition] = each.high_water_mark if last is None else last + 1
                more |= last is not None
        # each log partition stays in its own order
        if shown := list(merge(*found, key=lambda event: event.offset)):
            show(shown)
        self.positions = positions
        return more


def follow(
    dsn: str,
    event_filter: EventFilter,
    limit: int,
    show: Show,
    stop: threading.Event,
    *,
    lost: Callable[[psycopg.OperationalError], None],
    patience_s: float = PATIENCE_S,
) -> None:
    """Show the newest events and then each new one, once, until `stop` is set. Outlasts restarts of the server.

    Args:
        dsn: The event store.
        event_filter: The events to show.
        limit: The greatest number of newest events to show first.
        show: Takes events, in order.
        stop: Ends it.
        lost: Is called once each time the server goes away.
        patience_s: How long the server may be away, in seconds.

    Raises:
        psycopg.OperationalError: The server does not answer at the beginning, or was away for longer.
        PositionOutOfRange: Events were lost before they were shown.
    """
    follower = Follower(event_filter)
    begun = False
    lost_at: float | None = None
    while not stop.is_set():
        try:
            with connect(dsn) as connection, Wakeups(dsn, poll_s=LOOK_S) as positions:
                if not begun:
                    show(follower.begin(connection, limit))
                    begun = True
                while not stop.is_set():
                    more = follower.show_next(connection, show)
                    lost_at = None
                    if not more:
                        positions.wait(PAUSE_S, stop)
        except psycopg.OperationalError as error:
            if not begun or (lost_at is not None and time.monotonic() - lost_at > patience_s):
                raise
            if lost_at is None:
                lost(error)
                lost_at = time.monotonic()
            stop.wait(LOOK_S)


def as_of_now(connection: psycopg.Connection) -> AbstractContextManager[psycopg.Transaction]:
    """Begin a read-only transaction on an idle connection: all of its statements see the same moment."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection.transaction()


def correlation_of(event: Event) -> str | None:
    """Return the correlation_id of an event; None without one, or where Python cannot read the metadata."""
    try:
        metadata = event.metadata
    except MillraceError:
        return None
    found = metadata.get("correlation_id") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else None


def _only(name: str | None) -> list[str] | None:
    return None if name is None else [name]
