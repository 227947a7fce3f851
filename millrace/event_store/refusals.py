"""The one table from SQLSTATE to exception, and the context manager that applies it to psycopg's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from millrace.errors import (
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
    KeyGone,
    LeaseLost,
    Malformed,
    MessageDiffers,
    MillraceError,
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
    StreamClosed,
    StreamWentOn,
    TransactionEnded,
    UnknownCapture,
    UnknownPartition,
    UnknownProducer,
    UnknownSubject,
    UnknownTransaction,
    UnknownView,
    UpcastDiffers,
    UpcastMissing,
    UpcastNeeded,
    VerificationOver,
    ViewInUse,
    WrongMode,
)

BY_SQLSTATE: dict[str, type[MillraceError]] = {
    "MR001": Conflict,
    "MR002": StreamClosed,
    "MR003": EventIdReused,
    "MR004": EventNotRegistered,
    "MR005": Malformed,
    "MR006": ForbiddenChange,
    "MR010": UnknownView,
    "MR011": LeaseLost,
    "MR012": WrongMode,
    "MR013": UnknownPartition,
    "MR014": PartitionLeased,
    "MR015": PositionOutOfRange,
    "MR016": NotInFlight,
    "MR017": ViewInUse,
    "MR018": NotParked,
    "MR019": BelongsToReadModel,
    "MR020": HistoryNeeded,
    "MR021": NotEmpty,
    "MR022": BackupDamaged,
    "MR023": UnknownProducer,
    "MR024": ProducerFenced,
    "MR026": UnknownTransaction,
    "MR027": TransactionEnded,
    "MR028": MessageDiffers,
    "MR030": UnknownCapture,
    "MR031": CaptureInUse,
    "MR032": ChangesDiffer,
    "MR033": StreamWentOn,
    "MR034": DeciderCaptured,
    "MR035": NotQuarantined,
    "MR036": ChangesWaiting,
    "MR041": NotViewOwner,
    "MR045": NotProducerOwner,
    "MR046": NotDeciderOwner,
    "MR049": VerificationOver,
    "MR050": DataRefused,
    "MR051": UpcastNeeded,
    "MR052": UpcastDiffers,
    "MR053": UpcastMissing,
    "MR054": SchemaDiffers,
    "MR055": KeyGone,
    "MR056": UnknownSubject,
}


@contextmanager
def refusals() -> Iterator[None]:
    """Turn the store's SQLSTATEs into their exceptions, and unreadable values into `Malformed`.

    Other errors pass unchanged.

    Raises:
        MillraceError: The subclass that `BY_SQLSTATE` names, from the psycopg error.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise Malformed("A text cannot be stored: it is no Unicode.", detail=str(error)) from error
    except psycopg.Error as error:
        # Postgres itself refuses NUL characters and unreadable literals before a function of ours can
        default = Malformed if isinstance(error, psycopg.DataError) else None
        refusal = BY_SQLSTATE.get(error.sqlstate or "", default)
        if refusal is None:
            raise
        diagnosis = error.diag
        raise refusal(
            diagnosis.message_primary or str(error),
            detail=diagnosis.message_detail,
            hint=diagnosis.message_hint,
        ) from error
