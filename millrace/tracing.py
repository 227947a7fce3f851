"""Passing on what led to an event: correlation, causation and W3C traces."""

from millrace.resources.event_store import causing, tracing

__all__ = ["causing", "tracing"]
