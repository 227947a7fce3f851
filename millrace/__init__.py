"""Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster.

This is the face: everything that a user's own code imports, and nothing else is public.

    from millrace import EventStore, read_model, stream_id, count
    from millrace.testing import given

Belongs here: names. They are looked up when they are first used, for every process imports this package and few need
Spark or Dagster. Not here: what they name; nothing inside imports from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
    from millrace.platform_defs.cli.signals import stop_on_signals
    from millrace.platform_defs.local.supervisor import Service
    from millrace.platform_defs.local.surroundings import Surroundings
    from millrace.resources.archive.history import day_history, history_frame, read_history
    from millrace.resources.capture.declaration import Capture, CapturedTable, InvalidCapture
    from millrace.resources.commands.decider import Decided, Decider, Emit, GaveUp, HistoryPurged
    from millrace.resources.commands.handle import handle
    from millrace.resources.consumers.consumer import HandlersHang, consume
    from millrace.resources.consumers.declaration import InvalidSubscription, Subscription, TryLater, subscription
    from millrace.resources.consumers.telling import Counters
    from millrace.resources.errors import (
        BackupDamaged,
        BelongsToReadModel,
        CaptureInUse,
        ChangesDiffer,
        ChangesWaiting,
        Conflict,
        DeciderCaptured,
        EventIdReused,
        EventNotRegistered,
        ForbiddenChange,
        HistoryNeeded,
        ImportRefused,
        LeaseLost,
        Malformed,
        MessageDiffers,
        MillraceError,
        NeverSeen,
        NotDeciderOwner,
        NotEmpty,
        NotInFlight,
        NotParked,
        NotProducerOwner,
        NotQuarantined,
        NotViewOwner,
        PartitionLeased,
        PositionOutOfRange,
        ProducerFenced,
        SchemaMismatch,
        SequenceGap,
        StreamClosed,
        StreamWentOn,
        TransactionEnded,
        TransactionOpen,
        UnknownCapture,
        UnknownPartition,
        UnknownProducer,
        UnknownTransaction,
        UnknownView,
        Unreachable,
        UnreadableData,
        ViewInUse,
        WrongMode,
    )
    from millrace.resources.event_log_source import EventLogSource
    from millrace.resources.event_store import (
        AppendedEvent,
        AsyncEventStore,
        AuditEntry,
        AvailableRange,
        ChainedEvent,
        DeadLetter,
        DeciderEvent,
        EventStore,
        Json,
        LeasedEvent,
        Lock,
        LogEvent,
        NewEvent,
        PartitionInfo,
        PartitionLag,
        RecordedEvent,
        Seek,
        Seen,
        StreamHead,
        VersionedEvent,
        View,
        ViewInfo,
        causing,
        tracing,
    )
    from millrace.resources.event_store.migrations import migrate
    from millrace.resources.event_store.wake_ups import Wakeups
    from millrace.resources.postgres.dsn import embedded_dsn
    from millrace.resources.postgres.resource import PostgresResource
    from millrace.resources.producers import IdempotentProducer, ProducerStamp, ProducerStore
    from millrace.resources.producers.exactly_once import Answer, ExactlyOnce, MessageInDoubt, Transaction
    from millrace.resources.read_models.columns import (
        all_,
        any_,
        avg,
        count,
        field,
        first,
        last,
        max_,
        min_,
        set_union,
        stream_id,
        sum_,
    )
    from millrace.resources.read_models.declaration import InvalidReadModel, ReadModel, read_model
    from millrace.resources.read_models.fold import Event, State, fold
    from millrace.resources.read_models.recompute import recompute
    from millrace.resources.reports import replace_day
    from millrace.resources.spark import spark_session
    from millrace.resources.spark.resource import SparkResource

# module -> the names that are taken from it
_PLACES = {
    # Declaring read models
    "resources.read_models.columns": "all_ any_ avg count field first last max_ min_ set_union stream_id sum_",
    "resources.read_models.declaration": "InvalidReadModel ReadModel read_model",
    "resources.read_models.fold": "Event State fold",
    "resources.read_models.recompute": "recompute",
    # Declaring captures
    "resources.capture.declaration": "Capture CapturedTable InvalidCapture",
    # Consumers
    "resources.consumers.declaration": "InvalidSubscription Subscription TryLater subscription",
    "resources.consumers.consumer": "HandlersHang consume",
    "resources.consumers.telling": "Counters",
    # The event store
    "resources.event_store": (
        "AppendedEvent AsyncEventStore AuditEntry AvailableRange ChainedEvent DeadLetter DeciderEvent EventStore Json "
        "LeasedEvent Lock LogEvent NewEvent PartitionInfo PartitionLag RecordedEvent Seek Seen StreamHead "
        "VersionedEvent View ViewInfo causing tracing"
    ),
    "resources.event_store.migrations": "migrate",
    # Commands
    "resources.commands.decider": "Decided Decider Emit GaveUp HistoryPurged",
    "resources.commands.handle": "handle",
    "resources.event_store.wake_ups": "Wakeups",
    # Exactly-once producers
    "resources.producers": "IdempotentProducer ProducerStamp ProducerStore",
    "resources.producers.exactly_once": "Answer ExactlyOnce MessageInDoubt Transaction",
    # Spark, and reports in it
    "resources.spark": "spark_session",
    "resources.event_log_source": "EventLogSource",
    "resources.archive.history": "day_history history_frame read_history",
    "resources.reports": "replace_day",
    "resources.postgres.resource": "PostgresResource",
    "resources.spark.resource": "SparkResource",
    # Services and commands of one's own
    "platform_defs.local.supervisor": "Service",
    "platform_defs.local.surroundings": "Surroundings",
    "platform_defs.cli.options": "DsnOption chosen_dsn",
    "platform_defs.cli.signals": "stop_on_signals",
    "resources.postgres.dsn": "embedded_dsn",
    # Errors
    "resources.errors": (
        "BackupDamaged BelongsToReadModel CaptureInUse ChangesDiffer ChangesWaiting Conflict DeciderCaptured "
        "EventIdReused EventNotRegistered ForbiddenChange HistoryNeeded ImportRefused LeaseLost Malformed "
        "MessageDiffers MillraceError NeverSeen NotDeciderOwner NotEmpty NotInFlight NotParked "
        "NotProducerOwner NotQuarantined NotViewOwner PartitionLeased PositionOutOfRange ProducerFenced "
        "SchemaMismatch SequenceGap StreamClosed StreamWentOn TransactionEnded TransactionOpen UnknownCapture "
        "UnknownPartition UnknownProducer UnknownTransaction UnknownView Unreachable UnreadableData "
        "ViewInUse WrongMode"
    ),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = [
    "Answer", "AppendedEvent", "AsyncEventStore", "AuditEntry", "AvailableRange", "BackupDamaged",
    "BelongsToReadModel", "Capture", "CaptureInUse", "CapturedTable", "ChainedEvent", "ChangesDiffer",
    "ChangesWaiting", "Conflict", "Counters", "DeadLetter", "Decided", "Decider", "DeciderCaptured",
    "DeciderEvent", "DsnOption", "Emit", "Event", "EventIdReused", "EventLogSource", "EventNotRegistered",
    "EventStore", "ExactlyOnce", "ForbiddenChange", "GaveUp", "HandlersHang", "HistoryNeeded", "HistoryPurged",
    "IdempotentProducer", "ImportRefused", "InvalidCapture", "InvalidReadModel", "InvalidSubscription", "Json",
    "LeaseLost", "LeasedEvent", "Lock", "LogEvent", "Malformed", "MessageDiffers", "MessageInDoubt",
    "MillraceError", "NeverSeen", "NewEvent", "NotDeciderOwner", "NotEmpty", "NotInFlight", "NotParked",
    "NotProducerOwner", "NotQuarantined", "NotViewOwner", "PartitionInfo", "PartitionLag", "PartitionLeased",
    "PositionOutOfRange", "PostgresResource", "ProducerFenced", "ProducerStamp", "ProducerStore", "ReadModel",
    "RecordedEvent", "SchemaMismatch", "Seek", "Seen", "SequenceGap", "Service", "SparkResource", "State",
    "StreamClosed", "StreamHead", "StreamWentOn", "Subscription", "Surroundings", "Transaction",
    "TransactionEnded", "TransactionOpen", "TryLater", "UnknownCapture", "UnknownPartition", "UnknownProducer",
    "UnknownTransaction", "UnknownView", "Unreachable", "UnreadableData", "VersionedEvent", "View", "ViewInUse",
    "ViewInfo", "Wakeups", "WrongMode", "all_", "any_", "avg", "causing", "chosen_dsn", "consume", "count",
    "day_history", "embedded_dsn", "field", "first", "fold", "handle", "history_frame", "last",
    "max_", "migrate", "min_", "read_history", "read_model", "recompute", "replace_day", "set_union",
    "spark_session", "stop_on_signals", "stream_id", "subscription", "sum_", "tracing",
]  # fmt: skip


# unseen by a type checker, which would take every name for one of ours
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name's module when the name is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'millrace' has no attribute {name!r}")
        value = getattr(import_module(f"millrace.{_MODULE_OF[name]}"), name)
        # the next use finds it without asking
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
