"""The exceptions of Millrace, each with its SQLSTATE in the event store.

    MillraceError
    ├── Conflict                 MR001   another writer was first, or previous_id is wrong
    ├── StreamClosed             MR002   the stream has its final event
    ├── EventIdReused            MR003   the event_id belongs to other content
    ├── EventNotRegistered       MR004   the decider does not know the event
    ├── Malformed                MR005   an argument is null, empty, out of range or unreadable
    ├── ForbiddenChange          MR006   events are never changed or removed
    ├── UnknownView              MR010
    ├── LeaseLost                MR011   another owner took the lease over
    ├── WrongMode                MR012   the view is consumed in the other mode
    ├── UnknownPartition         MR013
    ├── PartitionLeased          MR014   the lease is already held
    ├── PositionOutOfRange       MR015   the log does not hold the position, or the checkpoint cannot move there
    ├── NotInFlight              MR016   the event was not delivered, was answered before, or has another consumer now
    ├── ViewInUse                MR017   a part of the view is leased or in flight
    ├── NotParked                MR018   the stream is no dead letter
    ├── BelongsToReadModel       MR019   the view's position belongs to the rows of a read model
    ├── HistoryNeeded            MR020   events below the position are not archived, or a view needs them
    ├── NotEmpty                 MR021   a backup is restored into an empty store only
    ├── BackupDamaged            MR022   a backup, or the part of it that was loaded, is incomplete
    ├── UnknownProducer          MR023   the producer is not registered, or not with that epoch
    ├── ProducerFenced           MR024   another instance of the producer has registered
    ├── UnknownTransaction       MR026   never begun, lost with a crash of the server, or ended long ago
    ├── TransactionEnded         MR027   committed, abandoned, aborted, expired or superseded
    ├── MessageDiffers           MR028   a message with the same number had another content
    ├── SequenceGap              a message comes before the one that must come first
    ├── UnknownCapture           MR030
    ├── CaptureInUse             MR031   another owner holds the lease of the capture
    ├── ChangesDiffer            MR032   the source's changes differ from the stored ones
    ├── StreamWentOn             MR033   later changes of the stream are events already
    ├── DeciderCaptured          MR034   the decider belongs to a capture
    ├── NotQuarantined           MR035
    ├── ChangesWaiting           MR036   stored changes have not become events yet
    ├── NotViewOwner             MR041   the view belongs to a role that the login is no member of
    ├── NotProducerOwner         MR045   the producer belongs to a role that the login is no member of
    ├── NotDeciderOwner          MR046   the decider, or the event, belongs to a role that the login is no member of
    ├── VerificationOver         MR049   another verification of the captured table began
    ├── DataRefused              MR050   the data do not fit the schema of the event
    ├── UpcastNeeded             MR051   the schema cannot read data of the version before
    ├── UpcastDiffers            MR052   the version of the event has another upcast
    ├── UpcastMissing            MR053   there is no upcast to a version before
    ├── SchemaDiffers            MR054   the version of the event has another schema
    ├── KeyGone                  MR055   the data are sealed with a key that is forgotten, or of another store
    ├── UnknownSubject           MR056   nothing was ever sealed for the person
    ├── NeverSeen                a view will not have an event by itself
    ├── TransactionOpen          nothing can be waited for in a transaction
    ├── ImportRefused            a file cannot be imported as asked
    ├── UnreadableData           JSON that Postgres holds and Python cannot read
    ├── SchemaMismatch           the database and the code do not fit
    ├── GaveUp                   other writers were first in each attempt of a command
    ├── HistoryPurged            a state cannot be computed: the stream's first events were purged
    ├── InvalidSubscription      a declared subscription cannot work
    ├── HandlersHang             too many handlers hang
    ├── ArchiveDamaged           a file of the archive is missing, torn or changed
    ├── ForeignArchive           the folder holds the archive of another event store
    ├── LogIncomplete            archive and log together lack some events
    ├── InvalidSetting           an environment variable MILLRACE_… has an invalid value
    └── Unreachable              a server does not answer

    ValueError                   of declarations: InvalidCapture, InvalidEvent, InvalidReadModel

`TryLater` is no error: a handler raises it to get the event again later.
An exception that only one module raises is declared in that module, below `MillraceError` too:

    read_models      AheadOfLog, EventsNotRegistered, HistoryMissing, NotOwned, DependentObjects, StagedRowsLost,
                     WrongView, FunctionFailed, LookupFailed, NothingToApprove, NothingToCompare, Overtaken,
                     RollupFailed, IndexFailed
    drain            PartitionsFailed, NoMark
    archive          EventsLeft
    producers        MessageInDoubt
    backup           ForeignBackup, NoBackup, Busy
    capture          GapOpen, NotReady, SourceRefuses, SlotBusy, SlotLost, FilterFails, PublicationMissing,
                     ForeignPublication, TableRenamed, TableUnfit, TimelinesUnknown, PgoutputError, BadCondition,
                     TableUnreadable, KeyUnordered, NotText, Stopped
    operations       BadAlertSettings, NotDelivered
    spark, postgres  PackageMissing, PostgresFailed, PsqlMissing, SessionsShared, TookTooLong
    assets           InvalidDeclarations
    platform_defs    ServiceFailed, CannotStart
    testing          StreamsFailed
    user_code        NeverRan
"""


class MillraceError(Exception):
    """A refusal by Millrace. Its text is the message, the detail and the remedy.

    Attributes:
        message: The refusal.
        detail: The values that led to it, or None.
        hint: The remedy, or None.
    """

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.detail = detail
        self.hint = hint
        super().__init__("\n".join(part for part in (message, detail, hint) if part))


class Conflict(MillraceError):
    """Another writer was first, or the stream's head is not the stated previous_id or expected_version."""


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
    """Another owner took the lease over, or it was released."""


class WrongMode(MillraceError):
    """The view is consumed in the other mode."""


class UnknownPartition(MillraceError):
    """The log partition does not exist."""


class PartitionLeased(MillraceError):
    """The lease of the log partition is already held."""


class PositionOutOfRange(MillraceError):
    """The log partition does not hold that position, or the checkpoint cannot move there."""


class NotInFlight(MillraceError):
    """The event was not delivered, was answered before, or went to another consumer after its lock ended."""


class ViewInUse(MillraceError):
    """A part of the view is leased or in flight, so the view cannot be moved or removed."""


class NotParked(MillraceError):
    """The stream is no dead letter of the view."""


class BelongsToReadModel(MillraceError):
    """The view's position belongs to the rows of a read model: both move only together."""


class HistoryNeeded(MillraceError):
    """Events below the position are not archived, or a view still needs them."""


class NotEmpty(MillraceError):
    """The store is not empty: a backup is restored into an empty store only."""


class BackupDamaged(MillraceError):
    """A backup, or the part of it that was loaded, is incomplete."""


class UnknownProducer(MillraceError):
    """The producer is not registered, or not with that epoch."""


class ProducerFenced(MillraceError):
    """Another instance of the producer has registered since."""


class UnknownTransaction(MillraceError):
    """The transaction was never begun, was lost with a crash of the server, or ended without effect long ago."""


class TransactionEnded(MillraceError):
    """The transaction was committed, abandoned or aborted, its deadline has passed, or another one was first."""


class MessageDiffers(MillraceError):
    """A message with the same number had another content: a number names one message for ever."""


class SequenceGap(MillraceError):
    """A message skips others that must come first.

    Attributes:
        expected: The sequence that must come next.
    """

    def __init__(self, message: str, *, expected: int, detail: str | None = None, hint: str | None = None) -> None:
        self.expected = expected
        super().__init__(message, detail=detail, hint=hint)


class UnknownCapture(MillraceError):
    """The capture is not registered."""


class CaptureInUse(MillraceError):
    """Another owner holds the lease of the capture, or works on it."""


class ChangesDiffer(MillraceError):
    """The source's changes differ from the stored ones: it has another history."""


class StreamWentOn(MillraceError):
    """Later changes of the stream are already events: this change comes too late."""


class DeciderCaptured(MillraceError):
    """The decider belongs to a captured table: only that capture appends to it, and no other capture may take it.

    Neither may a table that names its rows differently from the decider's live streams.
    """


class NotQuarantined(MillraceError):
    """The change is not in the quarantine."""


class VerificationOver(MillraceError):
    """The verification of a captured table ended, or another one began."""


class ChangesWaiting(MillraceError):
    """Stored changes of the previous slot have not become events yet."""


class NotViewOwner(MillraceError):
    """The view belongs to a role that the login is no member of."""


class NotProducerOwner(MillraceError):
    """The producer belongs to a role that the login is no member of."""


class NotDeciderOwner(MillraceError):
    """The decider, or the event that gets a schema or upcast, belongs to a role that the login is no member of."""


class DataRefused(MillraceError):
    """The data do not fit the schema of the event; the detail has the value and the rule."""


class UpcastNeeded(MillraceError):
    """A reader of this schema cannot read data of the version before, and no upcast leads from there."""


class UpcastDiffers(MillraceError):
    """The version of the event already has another upcast, until an operator withdraws that."""


class UpcastMissing(MillraceError):
    """An upcast to an earlier version is missing: data of old versions could not be moved that far."""


class SchemaDiffers(MillraceError):
    """The version of the event already has another schema, until an operator withdraws that."""


class KeyGone(MillraceError):
    """The data are sealed with a key that is forgotten, or of another store."""


class UnknownSubject(MillraceError):
    """Nothing was ever sealed for the person with the keys of this store."""


class NeverSeen(MillraceError):
    """A view will not have an event by itself.

    Attributes:
        reason: unknown, disabled, unwanted, not_stored, parked or retrying, as `has_seen` says.
    """

    def __init__(self, message: str, *, reason: str, detail: str | None = None, hint: str | None = None) -> None:
        self.reason = reason
        super().__init__(message, detail=detail, hint=hint)


class TransactionOpen(MillraceError):
    """The connection is in a transaction, which cannot wait for commits of others."""


class ImportRefused(MillraceError):
    """A file cannot be imported with these options."""


class UnreadableData(MillraceError):
    """A row holds JSON that Python cannot read, such as a number of 5,000 digits; the detail names the row."""


class SchemaMismatch(MillraceError):
    """The database's schema and the code do not fit."""


class Unreachable(MillraceError):
    """A server does not answer."""


class InvalidCapture(ValueError):
    """A capture is declared in a way that cannot work; the text says what is allowed."""


class GaveUp(MillraceError):
    """Other writers were first in each attempt of a command."""


class HistoryPurged(MillraceError):
    """The stream's first events were purged, so its state cannot be computed from them."""


class HandlersHang(MillraceError):
    """Too many handlers hang; restart the process."""


class InvalidSubscription(MillraceError):
    """A declared subscription cannot work."""


class TryLater(Exception):
    """Raised by a handler to postpone an event, without a failed attempt. It is delivered again after some seconds.

    Args:
        why: The text that operators see as the stream's last error.
        after_s: The seconds that the stream waits, at most a year.
    """

    def __init__(self, why: str, *, after_s: float = 5.0) -> None:
        self.why = why
        self.after_s = after_s
        super().__init__(why)


class InvalidEvent(ValueError):
    """An event, or its upcast, is declared in a way that cannot work; the text says what is allowed."""


class ArchiveDamaged(MillraceError):
    """A file of the archive is missing, torn or changed; the text names it."""


class ForeignArchive(MillraceError):
    """The folder holds the archive of another event store, or other files."""


class LogIncomplete(MillraceError):
    """Archive and log together lack some events; the text names their positions."""


class InvalidReadModel(ValueError):
    """A read model is declared in a way that cannot work; the text says what is allowed."""


class InvalidSetting(MillraceError):
    """A setting has an invalid value."""
