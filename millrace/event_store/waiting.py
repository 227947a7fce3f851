"""Reading one's own writes: asking whether a view has an event, and waiting until it has."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import psycopg

from millrace.errors import NeverSeen, TransactionOpen
from millrace.event_store.rows import Appended, EventPosition
from millrace.event_store.sql_functions import SqlFunctions
from millrace.patience import GLANCE_S, POLL_S

# seconds between two questions: short at first, about as long as a drain of a running view; then longer
FIRST_PAUSE_S, LAST_PAUSE_S, GROWTH = GLANCE_S / 10, POLL_S / 2, 1.5
IDLE = psycopg.pq.TransactionStatus.IDLE


class InStream(Protocol):
    """The place of an event in a stream: a result of `append`, an event, or a decision, which names its last event."""

    @property
    def decider(self) -> str:
        """The kind of entity."""

    @property
    def decider_id(self) -> str:
        """The entity."""

    @property
    def offset(self) -> int:
        """The event's offset."""


@dataclass(frozen=True)
class Seen:
    """Whether a view has an event. If it will never get there by itself, `never` says why; `detail` has the values.

    `never` is one of unknown, disabled, unwanted, not_stored, parked, retrying; None if it only takes time.
    """

    seen: bool
    never: str | None
    detail: str | None


class Waiting(SqlFunctions):
    """The part of `PlatformStore` for callers that read their own writes."""

    def has_seen(self, view: str, decider: str, decider_id: str, offset: int) -> Seen:
        """Return whether a view, or the serving version of a read model, has an event of a stream."""
        return self._one(
            Seen, "select * from event_store.has_seen(%s, %s, %s, %s)", (view, decider, decider_id, offset)
        )

    def wait_for(self, view: str, appended: InStream | Iterable[InStream], timeout_s: float = 5.0) -> bool:
        """Wait until a view has an event, or several; return False if it does not have them after `timeout_s` seconds.

        It asks repeatedly, each time in a transaction of its own. In between it holds no lock, and of a pool no
        connection.

        Args:
            view: A view, or a read model: then its serving version counts.
            appended: An event that is committed, or several, as `append_all` returns them.
            timeout_s: How long to wait, in seconds; 0 to ask once.

        Raises:
            NeverSeen: The view will not have the event by itself; `reason` says why.
            TransactionOpen: The connection is in a transaction, which cannot wait for commits of others.
        """
        until = time.monotonic() + timeout_s
        pause = FIRST_PAUSE_S
        waiting = last_of_each_stream(appended)
        while waiting:
            event = waiting[-1]
            with self._connected() as connection:
                # an open transaction may have an older snapshot than the event, and it stops the server's cleaning up
                require_idle(connection, f"The event is {event.decider} {event.decider_id!r}, offset {event.offset}.")
                with connection.transaction():
                    found = type(self)(connection).has_seen(view, event.decider, event.decider_id, event.offset)
            if found.seen:
                waiting.pop()
                continue
            if found.never is not None:
                raise never_seen(view, found)
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * GROWTH, LAST_PAUSE_S)
        return True

    def positions(self, appended: Appended | Iterable[Appended], within_s: int = 5) -> list[EventPosition]:
        """Return the log positions of committed events; waits for them at most `within_s` seconds, from 0 to 60.

        A `position` is None if the event was not sequenced in time.

        Raises:
            TransactionOpen: The connection is in a transaction; until it ends its own events have no positions.
        """
        several = [appended] if isinstance(appended, Appended) else appended
        ids = [event_id for each in several for event_id in each.event_ids]
        with self._connected() as connection:
            require_idle(connection, "Positions are decided after the commit.")
            with connection.transaction():
                call = "select * from event_store.await_positions(%s::uuid[], %s)"
                return type(self)(connection)._all(EventPosition, call, (ids, within_s))


def require_idle(connection: psycopg.Connection | psycopg.AsyncConnection, detail: str) -> None:
    """Refuse a connection with an open transaction, by `TransactionOpen`."""
    if connection.info.transaction_status != IDLE:
        raise TransactionOpen(
            "Nothing that others commit, or that follows a commit, comes within a transaction, and one is open.",
            detail=detail,
            hint="Commit first, or give the store a pool.",
        )


def last_of_each_stream(appended: InStream | Iterable[InStream]) -> list[InStream]:
    """Return the event with the greatest offset of each stream: a view that has it has the earlier ones too."""
    events = appended if isinstance(appended, Iterable) else [appended]
    ordered = sorted(events, key=lambda event: event.offset)
    return [*{(event.decider, event.decider_id): event for event in ordered}.values()]


def never_seen(view: str, found: Seen) -> NeverSeen:
    """Return the error for a view that will not have an event by itself."""
    hints = {
        "unknown": "Name a registered view, or a read model that a drain has built once.",
        "disabled": "An operator lets it go on: enable_view.",
        "unwanted": "Wait for an event that the view wants: its declaration, or register_view, says which.",
        "not_stored": "Commit the append first, and name the event's own stream and offset.",
        "parked": "dead_letters(view) says why it failed; then retry_dead_letters or discard_dead_letter.",
        "retrying": "It is tried again later: stream_views says when, and what the error was.",
    }
    return NeverSeen(
        f"{view} will not have the event by itself: {found.never}.",
        reason=found.never or "",
        detail=found.detail,
        hint=hints.get(found.never or ""),
    )
