"""Declaring events as Pydantic models, the events that their objects make, and how data of one version become the next.

The moves of an upcast are `rename`, `default`, `drop`, `cast`, `values`, `scale`, `nest` and `lift`.
"""

from millrace.resources.event_store.new_events import new_event
from millrace.resources.events.model import event
from millrace.resources.events.moves import cast, default, drop, lift, nest, rename, scale, values
from millrace.resources.events.registering import register_events

__all__ = [
    "cast",
    "default",
    "drop",
    "event",
    "lift",
    "nest",
    "new_event",
    "register_events",
    "rename",
    "scale",
    "values",
]
