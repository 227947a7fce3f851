"""The rows that an event store takes and returns, and the types of their values, for annotations."""

from millrace.commands.decider import Decided
from millrace.event_store import (
    Appended,
    AuditEntry,
    AvailableRange,
    DeadLetter,
    DeciderEvent,
    EventSchema,
    EventUpcast,
    Json,
    Lock,
    PartitionInfo,
    PartitionLag,
    Scheduled,
    ScheduledEvent,
    Seek,
    Seen,
    StreamEvents,
    StreamHead,
    View,
    ViewInfo,
)
from millrace.read_models.declared.fold_event import FoldEvent, State

__all__ = [
    "Appended", "AuditEntry", "AvailableRange", "DeadLetter", "Decided", "DeciderEvent", "EventSchema", "EventUpcast",
    "FoldEvent", "Json", "Lock", "PartitionInfo", "PartitionLag", "Scheduled", "ScheduledEvent", "Seek", "Seen", "State", "StreamEvents", "StreamHead",
    "View", "ViewInfo",
]  # fmt: skip
