"""The rows that an event store takes and returns, and the types of what they hold: to annotate code with."""

from millrace.resources.commands.decider import Decided
from millrace.resources.event_store import (
    AppendedEvent,
    AuditEntry,
    AvailableRange,
    ChainedEvent,
    DeadLetter,
    DeciderEvent,
    Json,
    LeasedEvent,
    Lock,
    LogEvent,
    PartitionInfo,
    PartitionLag,
    RecordedEvent,
    Seek,
    Seen,
    StreamHead,
    VersionedEvent,
    View,
    ViewInfo,
)
from millrace.resources.read_models.fold_event import FoldEvent, State

__all__ = [
    "AppendedEvent", "AuditEntry", "AvailableRange", "ChainedEvent", "DeadLetter", "Decided", "DeciderEvent",
    "FoldEvent", "Json", "LeasedEvent", "Lock", "LogEvent", "PartitionInfo", "PartitionLag", "RecordedEvent", "Seek",
    "Seen", "State", "StreamHead", "VersionedEvent", "View", "ViewInfo",
]  # fmt: skip
