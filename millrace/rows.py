"""The rows that an event store takes and returns, and the types of what they hold: to annotate code with."""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late
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

if TYPE_CHECKING:
    from millrace.resources.read_models.fold import State
else:
    # a service that annotates its code needs no Spark
    __getattr__ = imported_late(__name__, {"resources.read_models.fold": "State"})

__all__ = [
    "AppendedEvent", "AuditEntry", "AvailableRange", "ChainedEvent", "DeadLetter", "Decided", "DeciderEvent", "Json",
    "LeasedEvent", "Lock", "LogEvent", "PartitionInfo", "PartitionLag", "RecordedEvent", "Seek", "Seen", "State",
    "StreamHead", "VersionedEvent", "View", "ViewInfo",
]  # fmt: skip
