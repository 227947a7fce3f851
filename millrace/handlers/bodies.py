"""The body that is sent for an event: as JSON, or as CloudEvents 1.0 (https://github.com/cloudevents/spec).

A cloud event is sent in structured mode: signatures of Standard Webhooks do not cover headers.
"""

import json
from collections.abc import Callable, Mapping
from urllib.parse import quote

from millrace.event_store import Delivery
from millrace.event_store.tracing import is_traceparent, metadata_of

# the fields that receivers get beside the data
OF_JSON = (
    "event", "event_id", "event_version", "decider", "decider_id", "command_id", "previous_id", "final", "created_at",
    "offset",
)  # fmt: skip
# names of extensions have only small letters and digits
OF_METADATA = {"correlation_id": "correlationid", "causation_id": "causationid"}


def json_body(event: Delivery) -> str:
    """Return an event as JSON. Its data are the text that Postgres printed, even if Python cannot read it."""
    values = {name: getattr(event, name) for name in OF_JSON}
    fields = {
        name: value if value is None or isinstance(value, bool | int) else str(value) for name, value in values.items()
    }
    return _with_data(fields, event)


def cloud_event(event: Delivery) -> str:
    """Return an event in CloudEvents' JSON format; fields unknown to the format are extensions."""
    fields: dict[str, object] = {
        "specversion": "1.0",
        "id": str(event.event_id),
        "source": f"/deciders/{quote(event.decider, safe='')}",
        "type": event.event,
        "subject": event.decider_id,
        "time": event.created_at.isoformat(),
        "datacontenttype": "application/json",
        "eventversion": event.event_version,
        "streamversion": event.version,
        "final": event.final,
        "commandid": str(event.command_id),
        # an integer of CloudEvents has 32 bits
        "offset": str(event.offset),
    }
    if event.previous_id is not None:
        fields["previousid"] = str(event.previous_id)
    metadata = metadata_of(event)
    for name, extension in OF_METADATA.items():
        if isinstance(value := metadata.get(name), str) and value:
            fields[extension] = value
    if (trace := traceparent_of(event)) is not None:
        fields["traceparent"] = trace
    return _with_data(fields, event)


def traceparent_of(event: Delivery) -> str | None:
    """Return the W3C traceparent of an event's metadata, if it has one."""
    trace = str(metadata_of(event).get("traceparent") or "")
    return trace if is_traceparent(trace) else None


# the form of a view -> the content type, and the function that makes the body
FORMS: Mapping[str, tuple[str, Callable[[Delivery], str]]] = {
    "json": ("application/json", json_body),
    "cloudevents": ("application/cloudevents+json; charset=utf-8", cloud_event),
}


def _with_data(fields: Mapping[str, object], event: Delivery) -> str:
    return f'{json.dumps(fields)[:-1]}, "data": {event.data_json}}}'
