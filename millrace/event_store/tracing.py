"""The cause of an event in its metadata, passed on from the handled event, or from a caller's trace."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from millrace.errors import UnreadableData
from millrace.event_store.rows import Event, Json

NOTHING: Mapping[str, Json] = MappingProxyType({})

PASSED_ON = ("correlation_id", "traceparent")

# https://www.w3.org/TR/trace-context/#traceparent-header: version 00 has exactly this length, later ones may be longer
TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[!-~]{1,200})?"
)

_surroundings: ContextVar[Mapping[str, Json]] = ContextVar("millrace_causes", default=NOTHING)


@contextmanager
def causing(event: Event) -> Iterator[None]:
    """Mark each event that is appended in this block as caused by `event`, and correlate it with `event`.

    Its metadata get a `causation_id`, the event_id of `event`; a `correlation_id`, that of `event`, or its event_id if
    it has none; and the `traceparent` of `event`, if it has one. Metadata that an append states win.

    The block applies to its own thread or task, and to tasks that it starts. An event of `stream_events` comes
    without its metadata: `lease_events` and `read` return them.
    """
    with _within(_led_to_by(event)):
        yield


@contextmanager
def tracing(traceparent: str | None) -> Iterator[None]:
    """Give each event that is appended in this block a W3C `traceparent`, such as the one of a request's header.

    Within `causing` it replaces the event's. None and texts that are no traceparent are ignored, as the specification
    asks of a receiver.
    """
    with _within({"traceparent": traceparent} if is_traceparent(traceparent or "") else NOTHING):
        yield


def is_traceparent(text: str) -> bool:
    """Return whether a text is a W3C traceparent."""
    match = TRACEPARENT.fullmatch(text)
    return match is not None and (match["version"] != "00" or match["more"] is None)


def passed_on(metadata: Json, caused_by: Event | None = None) -> Json:
    """Return the metadata of an event to append: of the surrounding block, then `caused_by`, then the stated ones."""
    surroundings = _surroundings.get()
    if caused_by is not None:
        surroundings = {**surroundings, **_led_to_by(caused_by)}
    if not surroundings or not (metadata is None or isinstance(metadata, Mapping)):
        return metadata
    return {**surroundings, **(metadata or {})}


@contextmanager
def _within(more: Mapping[str, Json]) -> Iterator[None]:
    token = _surroundings.set({**_surroundings.get(), **more})
    try:
        yield
    finally:
        _surroundings.reset(token)


def _led_to_by(event: Event) -> Mapping[str, Json]:
    event_id = str(event.event_id)
    # only these keys: the user of the first event did not cause the next one
    of_event = {name: value for name, value in metadata_of(event).items() if name in PASSED_ON}
    return {"correlation_id": event_id, **of_event, "causation_id": event_id}


def metadata_of(event: Event) -> Mapping[str, Json]:
    """Return the metadata of an event; none if it was read without them, or if Python cannot read them."""
    try:
        metadata = event.metadata
    except UnreadableData:
        return NOTHING
    return metadata if isinstance(metadata, Mapping) else NOTHING
