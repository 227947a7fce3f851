"""Events to append, and their JSON for the store."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from millrace.errors import Malformed
from millrace.event_store.ids import uuid7
from millrace.event_store.json_text import written
from millrace.event_store.rows import Event, Json
from millrace.event_store.tracing import passed_on
from millrace.personal.declaration import marked

if TYPE_CHECKING:
    from pydantic import BaseModel

# the version of a stream without events, as an append expects it
NO_STREAM = 0
# not every longer time has a date in Python
LONGEST = timedelta(days=1_000_000)
RARELY_STATED = {"event_version": 1, "final": False, "metadata": None}


@dataclass(frozen=True)
class NewEvent:
    """An event to append.

    Attributes:
        event: Its name, as registered for its decider.
        data: Any value that JSON can hold.
        event_id: By default a new id that rises with time. An event sent again with the same id is stored once.
        command_id: The command that led to it; by default a new id.
        event_version: The event's version that the data have.
        final: Whether it closes its stream.
        metadata: What led to it: an object with correlation_id, causation_id, traceparent, user, or other keys.
    """

    event: str
    data: Json = field(default_factory=dict)
    _: KW_ONLY
    event_id: UUID = field(default_factory=uuid7)
    command_id: UUID = field(default_factory=uuid7)
    event_version: int = 1
    final: bool = False
    metadata: Json = None


@dataclass(frozen=True)
class StreamEvents:
    """Events to append to the end of one stream, if given only if the stream has `expected_version` events."""

    decider: str
    decider_id: str
    events: tuple[NewEvent, ...]
    expected_version: int | None = None


class LaterEvent(NamedTuple):
    """An event that is scheduled with the events of its stream, as `EventStore.schedule` does."""

    event: NewEvent
    name: str
    after: timedelta | None
    at: datetime | None
    unless: str | None


def require_one_time(after: timedelta | None, at: datetime | None) -> None:
    """Raise `Malformed` unless one of them is stated, and is a time that the server takes."""
    if (at is None) == (after is None) or (
        at.utcoffset() is None if at is not None else not isinstance(after, timedelta) or abs(after) > LONGEST
    ):
        raise Malformed(
            f"Not one of after, at most {LONGEST.days} days, and at, with a time zone, is stated.",
            detail=f"after is {after!r}, at is {at!r}",
            hint="Pass after=timedelta(days=3), or at=datetime(…, tzinfo=UTC).",
        )


def on(
    decider: str,
    decider_id: str | UUID,
    *events: "NewEvent | BaseModel",
    expected_version: int | None = None,
    metadata: Json = None,
) -> StreamEvents:
    """Return events of one stream, as `append` takes them, for `append_all` and for producers.

    Raises:
        Malformed: The stream has no name; or there is no event; or an event is neither a `NewEvent` nor an object of
            the decider's declared events.
    """
    if not events:
        raise Malformed(
            "There is no event to append.", hint="Pass NewEvent(name, data), or an object of a declared event."
        )
    found: list[NewEvent] = []
    for number, event in enumerate(events, 1):
        if isinstance(event, NewEvent):
            found.append(event)
            continue
        declared = vars(type(event)).get("__event__")
        if declared is not None and declared.decider != decider:
            raise Malformed(
                f"Event {number} is {declared.event} of decider {declared.decider}, and the stream is of {decider}.",
                hint=f"Append it to a stream of {declared.decider}.",
            )
        found.append(new_event(event))
    if metadata is not None:
        found = [_with(event, metadata) for event in found]
    if not isinstance(decider, str) or not isinstance(decider_id, str | UUID | int):
        raise Malformed(
            "The stream is no decider and decider_id.",
            detail=f"decider is {decider!r:.100}, decider_id {decider_id!r:.100}.",
            hint="Pass texts; decider_id may be a UUID or an int, too.",
        )
    return StreamEvents(decider, str(decider_id), tuple(found), expected_version)


def all_passed_on(streams: Iterable[StreamEvents], caused_by: Event | None = None) -> list[StreamEvents]:
    """Return events to append with the metadata of the surrounding block, or of the event that caused them."""
    led_to = passed_on(None, caused_by)
    if led_to is None:
        return [*streams]
    return [replace(stream, events=tuple(_with(event, led_to) for event in stream.events)) for stream in streams]


def new_event(data: "BaseModel", **stated: Any) -> NewEvent:  # noqa: ANN401 - what NewEvent takes
    """Return the `NewEvent` for an object of a declared event; `stated` are further fields of the `NewEvent`.

    Raises:
        Malformed: Its class declares no event.
    """
    declared = vars(type(data)).get("__event__")
    if declared is None:
        raise Malformed(
            f"{type(data).__name__} is no event.",
            hint="Pass NewEvent(name, data), or an object of a Pydantic model below @event(decider=…).",
        )
    values = data.model_dump(mode="json", by_alias=True)
    if declared.personal:
        values = marked(values, declared.personal)
    return NewEvent(declared.event, values, event_version=declared.version, **stated)


def batch_json(streams: Iterable[StreamEvents]) -> str:
    """Return events of streams as the JSON text that the store's functions take.

    Raises:
        Malformed: An event cannot be written as JSON; the error says which.
    """
    texts: list[str] = []
    for stream in streams:
        of_stream: dict[str, Json] = {"decider": stream.decider, "decider_id": stream.decider_id}
        if stream.expected_version is not None:
            of_stream["expected_version"] = stream.expected_version
        for event in stream.events:
            texts.append(_json_of(event, of_stream, len(texts) + 1))
            of_stream.pop("expected_version", None)
    return f"[{', '.join(texts)}]"


def stream_json(stream: StreamEvents) -> str:
    """Return the events of one stream as JSON text, without the stream's name; raises the errors of `batch_json`."""
    return f"[{', '.join(_json_of(event, {}, number) for number, event in enumerate(stream.events, 1))}]"


def _with(event: NewEvent, metadata: Json) -> NewEvent:
    """Return an event with more metadata; its own keys win. The store refuses metadata that are no object."""
    if event.metadata is None:
        return replace(event, metadata=metadata)
    if not isinstance(event.metadata, Mapping) or not isinstance(metadata, Mapping):
        return event
    return replace(event, metadata={**metadata, **event.metadata})


def _json_of(event: NewEvent, of_stream: Mapping[str, Json], number: int) -> str:
    """Return the JSON of an event with its stream, without fields that have their usual value."""
    members = {**of_stream, **vars(event)}
    for name, usual in RARELY_STATED.items():
        if members[name] == usual:
            del members[name]
    try:
        return written(members)
    except Malformed as error:
        raise Malformed(
            error.message, detail=f"event {number} of the batch: {error.detail}", hint=error.hint
        ) from error.__cause__
