"""Declaring events as Pydantic models: their schemas, and the events that their objects make."""

from millrace.resources.events.model import event, new_event
from millrace.resources.events.registering import register_events

__all__ = ["event", "new_event", "register_events"]
