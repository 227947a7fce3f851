"""Events that are appended later, unless something came first: scheduled, moved, cancelled, and looked at."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from millrace.errors import KeyGone, Malformed
from millrace.event_store.json_text import jsonb
from millrace.event_store.new_events import NewEvent, StreamEvents, all_passed_on, on
from millrace.event_store.rows import Event, Json, Scheduled, ScheduledEvent
from millrace.event_store.sealing import Sealing

if TYPE_CHECKING:
    from pydantic import BaseModel

SCHEDULE = (
    "select * from event_store.schedule_event(%s, %s, %s, %s, %s, %s, coalesce(%s, clock_timestamp() + %s),"
    " %s, %s, %s, %s, %s, %s, %s)"
)
# not every longer time has a date in Python
LONGEST = timedelta(days=1_000_000)


class Scheduling(Sealing):
    """The part of `EventStore` that schedules events."""

    def schedule(
        self,
        decider: str,
        decider_id: str | UUID,
        event: "NewEvent | BaseModel",
        *,
        name: str,
        after: timedelta | None = None,
        at: datetime | None = None,
        unless: str | int | None = None,
        since_version: int | None = None,
        opens: bool = False,
        caused_by: Event | None = None,
    ) -> Scheduled:
        """Let an event be appended to the end of a stream later: not before, usually within a second.

        It commits with the caller's transaction. Scheduled again under the same name, it moves; with the same
        event_id, nothing changes.

        Args:
            decider: The kind of entity.
            decider_id: The entity.
            event: A `NewEvent`, or an object of a declared event.
            name: Its name in the stream, such as `pay`; 200 bytes at most.
            after: How long from now, by the server's clock; or state `at`.
            at: When; with a time zone.
            unless: The name of an event: it is not appended if that came first. Or a number: if the stream has more
                events.
            since_version: After which version `unless` counts; by default the stream's version now.
            opens: Whether it may be the first event of its stream.
            caused_by: The event that led to it, as for `append`.

        Raises:
            Malformed: Not one of `after` and `at` is stated, or the store does not take an argument.
            EventNotRegistered: The decider has no such event.
            DataRefused: The data do not fit the event's schema.
        """
        if (at is None) == (after is None) or (
            at.utcoffset() is None if at is not None else not isinstance(after, timedelta) or abs(after) > LONGEST
        ):
            raise Malformed(
                f"Not one of after, at most {LONGEST.days} days, and at, with a time zone, is stated.",
                detail=f"after is {after!r}, at is {at!r}",
                hint="Pass after=timedelta(days=3), or at=datetime(…, tzinfo=UTC).",
            )
        awaited: Json = {"event": unless} if isinstance(unless, str) else {"version_above": unless}
        rest = (None if unless is None else jsonb(awaited), since_version, opens)
        streams = all_passed_on([on(decider, decider_id, event)], caused_by)
        try:
            (sealed,) = self._sealed(streams)
            return self._scheduled(sealed, (at, after, name), rest)
        except KeyGone:
            (sealed,) = self._sealed_anew(streams)
            return self._scheduled(sealed, (at, after, name), rest)

    def cancel_scheduled(self, decider: str, decider_id: str | UUID, name: str) -> bool:
        """Take back a scheduled event that waits or was refused; return whether there was one."""
        call = "select event_store.cancel_scheduled_event(%s, %s, %s)"
        return self._value(bool, call, (decider, str(decider_id), name))

    def scheduled_events(
        self, decider: str | None = None, decider_id: str | UUID | None = None, limit: int = 100
    ) -> list[ScheduledEvent]:
        """Return scheduled events that wait or were refused, and of a stream also those that are done."""
        call = (
            "select decider, decider_id, name, event_id, event, due_at, made_by, tries, last_error, done_at, outcome"
            " from event_store.scheduled_events_of(%s, %s, %s)"
        )
        return self._all(ScheduledEvent, call, (decider, None if decider_id is None else str(decider_id), limit))

    def _scheduled(
        self, stream: StreamEvents, when: tuple[datetime | None, timedelta | None, str], rest: Sequence[object]
    ) -> Scheduled:
        (event,) = stream.events
        metadata = None if event.metadata is None else jsonb(event.metadata)
        arguments = (
            event.event,
            event.event_id,
            stream.decider,
            stream.decider_id,
            jsonb(event.data),
            event.command_id,
        )
        return self._one(Scheduled, SCHEDULE, (*arguments, *when, event.event_version, event.final, metadata, *rest))
