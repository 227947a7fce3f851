"""Passing on the cause of an event: correlation, causation and W3C traces."""

from millrace.event_store import causing, tracing

__all__ = ["causing", "tracing"]
