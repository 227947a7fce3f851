"""The exceptions of Millrace, each with the SQLSTATE by which the event store raises it.

    MillraceError
    ├── Conflict                 MR001   another writer was first, or previous_id is wrong
    ├── StreamClosed             MR002   the stream has its final event
    ├── EventIdReused            MR003   the event_id belongs to other content
    ├── EventNotRegistered       MR004   the decider does not know the event
    ├── Malformed                MR005   an argument is null, empty, out of range or unreadable
    ├── ForbiddenChange          MR006   events are never changed or removed
    ├── UnknownView              MR010
    ├── LeaseLost                MR011   somebody else took the lease over
    ├── WrongMode                MR012   the view is consumed in the other mode
    ├── UnknownPartition         MR013
    ├── PartitionLeased          MR014   somebody holds the lease
    ├── PositionOutOfRange       MR015   the log does not hold the position, or the checkpoint cannot move there
    ├── NotInFlight              MR016   the event was not delivered, was answered before, or is somebody else's now
    ├── ViewInUse                MR017   something of the view is leased or in flight
    ├── NotParked                MR018   the stream is no dead letter
    ├── BelongsToReadModel       MR019   the view's position belongs to the rows of a read model
    ├── HistoryNeeded            MR020   events below the position are not archived, or a view needs them
    ├── NotEmpty                 MR021   a backup is restored into an empty store only
    ├── BackupDamaged            MR022   a backup, or what was loaded of it, is not whole
    ├── UnknownProducer          MR023   or nobody registered it with that epoch
    ├── ProducerFenced           MR024   another instance of the producer has registered
    ├── UnknownTransaction       MR026   never begun, lost with a crash of the server, or ended long ago
    ├── TransactionEnded         MR027   committed, abandoned, aborted, expired or superseded
    ├── MessageDiffers           MR028   the number of a message came before with another content
    ├── SequenceGap              a message comes before the one that must come first
    ├── UnknownCapture           MR030
    ├── CaptureInUse             MR031   somebody else holds the lease of the capture
    ├── ChangesDiffer            MR032   the source gives other changes than those that are stored
    ├── StreamWentOn             MR033   later changes of the stream are events already
    ├── DeciderCaptured          MR034   the decider belongs to a capture
    ├── NotQuarantined           MR035
    ├── ChangesWaiting           MR036   stored changes are no events yet
    ├── NotViewOwner             MR041   the view belongs to a role that the login is no member of
    ├── NotProducerOwner         MR045   the producer belongs to a role that the login is no member of
    ├── NotDeciderOwner          MR046   the decider, or the event, belongs to a role that the login is no member of
    ├── VerificationOver         MR049   another verification of the captured table began
    ├── DataRefused              MR050   the data do not fit the schema of the event
    ├── UpcastNeeded             MR051   by the schema data of the version before cannot be read
    ├── UpcastDiffers            MR052   the version of the event has another upcast
    ├── UpcastMissing            MR053   there is no upcast to a version before
    ├── SchemaDiffers            MR054   the version of the event has another schema
    ├── NeverSeen                a view will not have an event by itself
    ├── TransactionOpen          nothing can be waited for in a transaction
    ├── ImportRefused            a file cannot be imported as asked
    ├── UnreadableData           JSON that Postgres holds and Python cannot read
    ├── SchemaMismatch           the database and the code do not fit
    ├── GaveUp                   other writers were first each time that a command was tried
    ├── HistoryPurged            a state cannot be computed: the stream's first events were purged
    ├── InvalidSubscription      a declared subscription cannot work
    ├── HandlersHang             too many handlers are stuck
    ├── MessageInDoubt           the store did not say whether it stored a message
    ├── ArchiveDamaged           a file of the archive is missing, torn or changed
    ├── ForeignArchive           the folder holds the archive of another event store
    ├── LogIncomplete            archive and log together lack some events
    ├── InvalidSetting           an environment variable MILLRACE_… has a value that it cannot have
    └── Unreachable              a server does not answer

    ValueError                   of declarations: InvalidCapture, InvalidEvent, InvalidReadModel

`TryLater` is no error: a handler raises it to get the event again later.
An exception that one module alone raises is declared in that module, below `MillraceError` too:

    read_models      AheadOfLog, EventsNotRegistered, HistoryMissing, NotOwned, DependentObjects, StagedRowsLost,
                     WrongView, FunctionFailed, LookupFailed, NothingToApprove, NothingToCompare, Overtaken,
                     RollupFailed, IndexFailed
    consumption      PartitionsFailed, NoMark
    archive          EventsLeft
    backup           ForeignBackup, NoBackup, Busy
    capture          GapOpen, NotReady, SourceRefuses, SlotBusy, SlotLost, FilterFails, PublicationMissing,
                     ForeignPublication, TableRenamed, TableUnfit, TimelinesUnknown, PgoutputError, BadCondition,
                     TableUnreadable, KeyUnordered, NotText, Stopped
    alerts           BadAlertSettings, NotDelivered
    spark, postgres  PackageMissing, PostgresFailed, PsqlMissing, TookTooLong
    assets           InvalidDeclarations
    platform_defs    ServiceFailed, CannotStart
    sessions         SessionsShared
    testing          StreamsFailed
    user_code        NeverRan
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.producers.stamps import ProducerStamp


class MillraceError(Exception):
    """Something Millrace refuses. Its text is the message, the detail and the remedy.

    Attributes:
        message: What is refused.
        detail: The values that led to it, or None.
        hint: The remedy, or None.
    """

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.detail = detail
        self.hint = hint
        super().__init__("\n".join(part for part in (message, detail, hint) if part))


class Conflict(MillraceError):
    """Another writer was first, or the stream is not where previous_id or expected_version say."""


class StreamClosed(MillraceError):
    """The stream has its final event."""


class EventIdReused(MillraceError):
    """The event_id is stored with other content."""


class EventNotRegistered(MillraceError):
    """The decider does not know the event."""


class Malformed(MillraceError):
    """An argument is null, empty, out of range or unreadable."""


class ForbiddenChange(MillraceError):
    """Events and their registrations are never changed or removed."""


class UnknownView(MillraceError):
    """The view is not registered."""


class LeaseLost(MillraceError):
    """Somebody else took the lease over, or it was given back."""


class WrongMode(MillraceError):
    """The view is consumed in the other mode."""


class UnknownPartition(MillraceError):
    """The log partition does not exist."""


class PartitionLeased(MillraceError):
    """Somebody holds the lease of the log partition."""


class PositionOutOfRange(MillraceError):
    """The log partition does not hold that position, or the checkpoint cannot move there."""


class NotInFlight(MillraceError):
    """The event was not delivered, was answered before, or somebody else got it after its lock ended."""


class ViewInUse(MillraceError):
    """Something of the view is leased or in flight, so it cannot be moved or removed."""


class NotParked(MillraceError):
    """The stream is no dead letter of the view."""


class BelongsToReadModel(MillraceError):
    """The view's position belongs to the rows of a read model: neither moves without the other."""


class HistoryNeeded(MillraceError):
    """Events below the position are not archived, or a view still needs them."""


class NotEmpty(MillraceError):
    """The store holds something: a backup is restored into an empty one only."""


class BackupDamaged(MillraceError):
    """A backup, or what was loaded of it, is not whole."""


class UnknownProducer(MillraceError):
    """The producer is not registered, or not with that epoch."""


class ProducerFenced(MillraceError):
    """Another instance of the producer has registered since."""


class UnknownTransaction(MillraceError):
    """The transaction was never begun, went with a crash of the server, or ended without an effect long ago."""


class TransactionEnded(MillraceError):
    """The transaction was committed, abandoned or aborted, its deadline has passed, or another one was first."""


class MessageDiffers(MillraceError):
    """The number of a message came before with another content: a number names one message for ever."""


class SequenceGap(MillraceError):
    """A message left some out.

    Attributes:
        expected: The sequence that must come first.
    """

    def __init__(self, message: str, *, expected: int, detail: str | None = None, hint: str | None = None) -> None:
        self.expected = expected
        super().__init__(message, detail=detail, hint=hint)


class UnknownCapture(MillraceError):
    """The capture is not registered."""


class CaptureInUse(MillraceError):
    """Somebody else holds the lease of the capture, or works on it."""


class ChangesDiffer(MillraceError):
    """The source gives other changes than those that are stored: it has another history."""


class StreamWentOn(MillraceError):
    """Later changes of the stream are events already: this one comes too late."""


class DeciderCaptured(MillraceError):
    """The decider is that of a captured table: only its capture appends to it, and no other capture has it.

    Nor has a table whose rows are named otherwise than the decider's live streams are.
    """


class NotQuarantined(MillraceError):
    """The change is not in the quarantine."""


class VerificationOver(MillraceError):
    """The verification of a captured table ended, or another one began."""


class ChangesWaiting(MillraceError):
    """Changes of the slot before are stored and no events yet."""


class NotViewOwner(MillraceError):
    """The view belongs to a role that the login is no member of."""


class NotProducerOwner(MillraceError):
    """The producer belongs to a role that the login is no member of."""


class NotDeciderOwner(MillraceError):
    """The decider, or the event whose shape it is, belongs to a role that the login is no member of."""


class DataRefused(MillraceError):
    """The data do not fit the schema of the event; the detail has the value and the rule."""


class UpcastNeeded(MillraceError):
    """Who reads by the schema cannot read data of the version before, and no upcast leads from there."""


class UpcastDiffers(MillraceError):
    """The version of the event has another upcast: it has one, until an operator withdraws it."""


class UpcastMissing(MillraceError):
    """An upcast to a version before is missing: data of old versions could not be moved that far."""


class SchemaDiffers(MillraceError):
    """The version of the event has another schema: it has one, until an operator withdraws it."""


class NeverSeen(MillraceError):
    """A view will not have an event by itself.

    Attributes:
        reason: unknown, disabled, unwanted, not_stored, parked or retrying, as `has_seen` says.
    """

    def __init__(self, message: str, *, reason: str, detail: str | None = None, hint: str | None = None) -> None:
        self.reason = reason
        super().__init__(message, detail=detail, hint=hint)


class TransactionOpen(MillraceError):
    """The connection is in a transaction, where what others commit cannot be waited for."""


class ImportRefused(MillraceError):
    """A file cannot be imported as asked."""


class UnreadableData(MillraceError):
    """A row holds JSON that Python cannot read, such as a number of 5,000 digits; the detail names the row."""


class SchemaMismatch(MillraceError):
    """The database's schema and the code do not fit."""


class Unreachable(MillraceError):
    """A server does not answer."""


class InvalidCapture(ValueError):
    """A capture is declared in a way that cannot work; the text says what is allowed."""


class GaveUp(MillraceError):
    """Other writers were first each time that a command was tried."""


class HistoryPurged(MillraceError):
    """The stream's first events were purged, so its state cannot be computed from them."""


class HandlersHang(MillraceError):
    """Too many handlers are stuck; restart the process."""


class InvalidSubscription(MillraceError):
    """A declared subscription cannot work."""


class TryLater(Exception):
    """Raised by a handler: not now, and no failed attempt. The event is delivered again after some seconds.

    Args:
        why: What operators see as the stream's last error.
        after_s: How many seconds the stream waits, at most a year.
    """

    def __init__(self, why: str, *, after_s: float = 5.0) -> None:
        self.why = why
        self.after_s = after_s
        super().__init__(why)


class InvalidEvent(ValueError):
    """An event, or what becomes of it, is declared in a way that cannot work; the text says what is allowed."""


class MessageInDoubt(MillraceError):
    """The store could not be reached, so that nobody knows whether a message was stored.

    Attributes:
        stamp: The message: send it again with this stamp, before any other of its producer.
    """

    def __init__(self, stamp: "ProducerStamp") -> None:
        self.stamp = stamp
        super().__init__(
            "message is in doubt",
            detail=f"message {stamp.message_id}: the store did not say whether it was stored",
            hint="Send the same message again with the same stamp: process(error.stamp, work).",
        )


class ArchiveDamaged(MillraceError):
    """A file of the archive is missing, torn or changed; the text names it."""


class ForeignArchive(MillraceError):
    """The folder holds the archive of another event store, or other files."""


class LogIncomplete(MillraceError):
    """Archive and log together lack some events; the text names their positions."""


class InvalidReadModel(ValueError):
    """A read model is declared in a way that cannot work; the text says what is allowed."""


class InvalidSetting(MillraceError):
    """A setting has a value that it cannot have."""
