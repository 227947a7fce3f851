"""Every error that the functions and methods of Millrace raise, and `TryLater`, which a handler raises.

    except StreamClosed as refusal:
        print(refusal.message, refusal.detail, refusal.hint)

`Conflict` and `MillraceError`, the base class, are in `millrace`, too.
"""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late
from millrace.resources.capture.declaration import InvalidCapture
from millrace.resources.commands.decider import GaveUp, HistoryPurged
from millrace.resources.consumers.consumer import HandlersHang
from millrace.resources.consumers.declaration import InvalidSubscription, TryLater
from millrace.resources.errors import (
    BackupDamaged,
    BelongsToReadModel,
    CaptureInUse,
    ChangesDiffer,
    ChangesWaiting,
    Conflict,
    DataRefused,
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
    SchemaDiffers,
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
    UpcastDiffers,
    UpcastMissing,
    UpcastNeeded,
    VerificationOver,
    ViewInUse,
    WrongMode,
)
from millrace.resources.events.moves import InvalidEvent
from millrace.resources.producers.exactly_once import MessageInDoubt

if TYPE_CHECKING:
    from millrace.resources.archive.files import ArchiveDamaged
    from millrace.resources.archive.folder import ForeignArchive
    from millrace.resources.archive.history import LogIncomplete
    from millrace.resources.read_models.declared.declaration import InvalidReadModel
    from millrace.resources.settings import InvalidSetting
else:
    # a service that catches errors needs no Spark
    __getattr__ = imported_late(
        __name__,
        {
            "resources.archive.files": "ArchiveDamaged",
            "resources.archive.folder": "ForeignArchive",
            "resources.archive.history": "LogIncomplete",
            "resources.read_models.declared.declaration": "InvalidReadModel",
            "resources.settings": "InvalidSetting",
        },
    )

__all__ = [
    "ArchiveDamaged",
    "BackupDamaged",
    "BelongsToReadModel",
    "CaptureInUse",
    "ChangesDiffer",
    "ChangesWaiting",
    "Conflict",
    "DataRefused",
    "DeciderCaptured",
    "EventIdReused",
    "EventNotRegistered",
    "ForbiddenChange",
    "ForeignArchive",
    "GaveUp",
    "HandlersHang",
    "HistoryNeeded",
    "HistoryPurged",
    "ImportRefused",
    "InvalidCapture",
    "InvalidEvent",
    "InvalidReadModel",
    "InvalidSetting",
    "InvalidSubscription",
    "LeaseLost",
    "LogIncomplete",
    "Malformed",
    "MessageDiffers",
    "MessageInDoubt",
    "MillraceError",
    "NeverSeen",
    "NotDeciderOwner",
    "NotEmpty",
    "NotInFlight",
    "NotParked",
    "NotProducerOwner",
    "NotQuarantined",
    "NotViewOwner",
    "PartitionLeased",
    "PositionOutOfRange",
    "ProducerFenced",
    "SchemaDiffers",
    "SchemaMismatch",
    "SequenceGap",
    "StreamClosed",
    "StreamWentOn",
    "TransactionEnded",
    "TransactionOpen",
    "TryLater",
    "UnknownCapture",
    "UnknownPartition",
    "UnknownProducer",
    "UnknownTransaction",
    "UnknownView",
    "Unreachable",
    "UnreadableData",
    "UpcastDiffers",
    "UpcastMissing",
    "UpcastNeeded",
    "VerificationOver",
    "ViewInUse",
    "WrongMode",
]  # fmt: skip
