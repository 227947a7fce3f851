"""Writes events to append as the JSON text that the store's functions take.

Belongs here: that text. Not here: the shapes of the events (`rows`), the calls (`client`).
"""

import json
from collections.abc import Iterable
from uuid import UUID

from millrace.resources.event_store.rows import NewEvent


def events_json(events: Iterable[NewEvent]) -> str:
    """Return a batch of events as the JSON text that the store's functions take."""
    return json.dumps([_members(event) for event in events], default=_uuid_text)


def _members(event: NewEvent) -> dict[str, object]:
    """Return the members of an event in JSON; those that are rarely stated are left out."""
    members = dict(vars(event))
    for name in ("expected_version", "metadata"):
        if members[name] is None:
            del members[name]
    return members


def _uuid_text(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
