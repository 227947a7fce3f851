"""Calls of SQL functions, argument by argument, to test functions with other forms of client methods."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from msgspec import Struct

from millrace.event_store import Event, Json, NewEvent, StreamEvents
from millrace.event_store.ids import uuid7
from millrace.event_store.json_text import jsonb, written
from millrace.event_store.rows import RECORDED
from millrace.event_store.sql_functions import SqlFunctions


@dataclass(frozen=True)
class BatchEvent:
    """An event of a batch with all fields of `append_events`; a None field is not stated."""

    decider: str
    decider_id: str
    event: str
    event_id: UUID = field(default_factory=uuid7)
    data: Json = None
    command_id: UUID = field(default_factory=uuid7)
    event_version: int = 1
    final: bool = False
    expected_version: int | None = None
    metadata: Json = None
    previous_id: UUID | None = None

    @property
    def alone(self) -> StreamEvents:
        """Return the event as producers send it."""
        event = NewEvent(
            self.event,
            self.data,
            event_id=self.event_id,
            command_id=self.command_id,
            event_version=self.event_version,
            final=self.final,
            metadata=self.metadata,
        )
        return StreamEvents(self.decider, self.decider_id, (event,), self.expected_version)


class BatchedEvent(Struct, frozen=True):
    """A row of `append_events`, and the event's stream."""

    event_id: UUID
    previous_id: UUID | None
    offset: int
    version: int
    appended: bool
    decider: str = ""
    decider_id: str = ""


def append_event(
    store: SqlFunctions,
    event: str,
    event_id: UUID,
    decider: str,
    decider_id: str | UUID,
    data: Json,
    command_id: UUID,
    previous_id: UUID | None,
    event_version: int = 1,
    *,
    final: bool = False,
    expected_version: int | None = None,
    metadata: Json = None,
) -> Event:
    """Call `append_event`, and leave out columns that `get_events` does not return."""
    query = "select {} from event_store.append_event(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    return store._one(
        Event,
        query.format(RECORDED),
        (
            event,
            event_id,
            decider,
            decider_id,
            jsonb(data),
            command_id,
            previous_id,
            event_version,
            final,
            expected_version,
            None if metadata is None else jsonb(metadata),
        ),
    )


def append_events(store: SqlFunctions, events: Iterable[BatchEvent]) -> list[BatchedEvent]:
    """Call `append_events`."""
    given = list(events)
    rare = {"expected_version", "metadata", "previous_id"}
    stated = [{k: v for k, v in vars(event).items() if v is not None or k not in rare} for event in given]
    rows = store._all(BatchedEvent, "select * from event_store.append_events(%s::jsonb)", (written(stated),))
    return [
        BatchedEvent(
            row.event_id, row.previous_id, row.offset, row.version, row.appended, event.decider, event.decider_id
        )
        for row, event in zip(rows, given, strict=True)
    ]


def get_events(store: SqlFunctions, decider_id: str | UUID, decider: str) -> list[Event]:
    """Call `get_events`."""
    query = "select {} from event_store.get_events(%s, %s)"
    return store._all(Event, query.format(RECORDED), (decider_id, decider))


def get_last_event(store: SqlFunctions, decider_id: str | UUID, decider: str) -> Event | None:
    """Call `get_last_event`."""
    query = "select {} from event_store.get_last_event(%s, %s)"
    return store._first(Event, query.format(RECORDED), (decider_id, decider))
